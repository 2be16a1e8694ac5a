"""Messages and register contents on one stream, however the bytes are cut on the way."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from oneflow.actors.boxing import channels_of, read_parts
from oneflow.actors.bus import freed_code, ready_code
from oneflow.actors.registers import is_shared
from oneflow.actors.tcp import Connection, Mirrors, TcpBus, make_mirrors
from oneflow.core.actor_kinds import READS_PEERS
from oneflow.core.errors import PeerLostError, ProtocolError
from oneflow.core.plan import Plan, RegisterSpec
from tests.support.waiting import CALL_S, wait_until

from .programs import compile_text

# Rows become columns, so a part is strided; and sums of three tensors travel side by side.
GRAPH = """graph far pieces=1 {
  %0: float32[7, 6] S(0) = input(; name='x') @cpu[0, 1]
  %1: float32[7, 6] S(1) = to_global(%0) @cpu[0, 1]
  %2: float32[7, 6] ? = relu(%1) @cpu[0, 1]
  %3: float32[7, 6] B = to_global(%2) @cpu[0, 1]
  output(%3; index=0) @cpu[0, 1]
}"""


@dataclass
class Pair:
    """A sender (rank 0) and a receiver (rank 1); bytes stop at `relay`, a socket a side."""

    plan: Plan
    sender: Connection
    receiver: Connection
    relay: tuple[socket.socket, socket.socket]
    mine: Mirrors
    mirror: Mirrors

    def pass_on(self, chunk: int) -> int:
        """Hands at most `chunk` bytes on; returns how many."""
        try:
            data = self.relay[0].recv(chunk)
        except BlockingIOError:
            return 0
        self.relay[1].sendall(data)
        return len(data)

    def parts(self, memory: Mirrors, register: RegisterSpec, slot: int) -> list[Any]:
        """Bytes that rank 1 reads of a register of rank 0."""
        arrays = memory.arrays(register, slot)
        return [
            part
            for actor in register.consumers
            if actor.kind in READS_PEERS
            if any(c.register is register and c.source == 0 for c in channels_of(actor, 1))
            for part in read_parts(actor, 1, 0, register, arrays)
        ]


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    return near, far


@pytest.fixture
def pair() -> Iterator[Pair]:
    plan = compile_text(GRAPH, 2)
    (a, a_far), (b_far, b) = tcp_pair(), tcp_pair()
    a_far.setblocking(False)
    own, mirror = make_mirrors(plan, 0), make_mirrors(plan, 0)
    mine, theirs = Mirrors(plan, 0, own), Mirrors(plan, 0, mirror)
    unused = Mirrors(plan, 1, make_mirrors(plan, 1))
    sender = Connection(plan, 0, 1, a, mine, unused)
    receiver = Connection(plan, 1, 0, b, unused, theirs)
    yield Pair(plan, sender, receiver, (a_far, b_far), mine, theirs)
    for sock in (a, a_far, b_far, b):
        sock.close()


def codes_of(plan: Plan) -> list[tuple[RegisterSpec, int, int]]:
    """(register, slot, code) of every Ready message between the ranks."""
    return [
        (r, slot, ready_code(r, slot))
        for r in plan.registers
        if is_shared(r)
        for slot in range(r.num_slots)
    ]


@pytest.mark.parametrize("chunk", [1, 7, 16, 100, 65536])
def test_contents_arrive_however_they_are_cut(pair: Pair, chunk: int) -> None:
    rng, expected, codes = np.random.default_rng(0), {}, []
    for register, slot, code in codes_of(pair.plan):
        sent = pair.parts(pair.mine, register, slot)
        for part in sent:
            part[...] = rng.normal(size=part.shape)
        expected[code] = [p.copy() for p in sent]
        pair.sender.send(code)
        pair.sender.send(freed_code(register, slot))
        codes += [code, freed_code(register, slot)]
    assert any(
        not p.flags.c_contiguous for r, s, _ in codes_of(pair.plan) for p in parts_of(pair, r, s)
    )
    received: list[int] = []
    while len(received) < len(codes):
        pair.sender.flush()
        pair.pass_on(chunk)
        received += pair.receiver.receive()
    assert received == codes
    for register, slot, code in codes_of(pair.plan):
        for got, wanted in zip(parts_of(pair, register, slot), expected[code], strict=True):
            np.testing.assert_array_equal(got, wanted)


def parts_of(pair: Pair, register: RegisterSpec, slot: int) -> list[Any]:
    return pair.parts(pair.mirror, register, slot)


def test_a_socket_that_takes_little_is_written_to_again(pair: Pair) -> None:
    """Ten thousand messages at once: more than the socket buffers hold."""
    pair.sender.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    register, slot, code = codes_of(pair.plan)[0]
    nbytes = 16 + sum(p.nbytes for p in pair.parts(pair.mine, register, slot))
    for _ in range(10_000):
        pair.sender.send(code)
    rng, left, received = random.Random(0), 10_000 * nbytes, 0
    while left:
        pair.sender.flush()
        left -= pair.pass_on(rng.randrange(1, 50_000))
        received += len(pair.receiver.receive())
    while received < 10_000:
        received += len(pair.receiver.receive())
    assert pair.sender.flush() and pair.receiver.receive() == []


def receive_until(pair: Pair) -> list[int]:
    """Reads until some of the bytes just written have come."""
    pair.receiver.socket.settimeout(CALL_S)
    pair.receiver.socket.recv(1, socket.MSG_PEEK)
    pair.receiver.socket.setblocking(False)
    return pair.receiver.receive()


def test_a_freed_message_overtakes_contents(pair: Pair) -> None:
    """Contents stop at the relay, and fill the sender's queue."""
    register, slot, code = codes_of(pair.plan)[0]
    near, far = tcp_pair()
    unused: Any = None
    sender = TcpBus([pair.sender], 1.0, [Connection(pair.plan, 0, 1, near, unused, unused)])
    receiver = TcpBus([pair.receiver], 1.0, [Connection(pair.plan, 1, 0, far, unused, unused)])
    freed = freed_code(register, slot)
    sender.post(1, code)
    sender.post(1, freed)
    assert wait_until(receiver.poll) == [(0, freed)]

    def passed_on() -> list[tuple[int, int]]:
        pair.pass_on(1 << 16)
        return receiver.poll()

    assert wait_until(passed_on) == [(0, code)]
    for sock in (near, far):
        sock.close()


@pytest.mark.parametrize(
    ("code", "nbytes", "message"),
    [(0, 3, "carries 3 bytes, the plan says"), (99 << 9, 0, "which is not in the plan")],
)
def test_what_the_plan_does_not_say_is_refused(
    pair: Pair, code: int, nbytes: int, message: str
) -> None:
    code = code or codes_of(pair.plan)[0][2]
    pair.relay[1].sendall(struct.pack("<QQ", code, nbytes))
    with pytest.raises(ProtocolError, match=message):
        receive_until(pair)


def test_an_end_between_messages_is_no_failure(pair: Pair) -> None:
    register, slot, _ = codes_of(pair.plan)[0]
    pair.relay[1].sendall(struct.pack("<QQ", freed_code(register, slot), 0))
    assert receive_until(pair) == [freed_code(register, slot)]
    pair.relay[1].close()
    assert receive_until(pair) == []
    assert not pair.receiver.is_open
    pair.receiver.give_up(0.0)


@pytest.mark.parametrize("sent", [1, 15, 16, 20])
def test_an_end_within_a_message_is_one(pair: Pair, sent: int) -> None:
    _, _, code = next(c for c in codes_of(pair.plan) if pair.parts(pair.mine, c[0], c[1]))
    pair.sender.send(code)
    pair.relay[0].settimeout(CALL_S)
    pair.relay[1].sendall(pair.relay[0].recv(sent, socket.MSG_WAITALL))
    pair.relay[1].close()
    while pair.receiver.is_open:
        assert receive_until(pair) == []
    with pytest.raises(PeerLostError, match="in the middle of a message"):
        pair.receiver.give_up(-1.0)
