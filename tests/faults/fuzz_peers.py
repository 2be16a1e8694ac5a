"""Words between ranks of a job: register contents over TCP, who they are, rendezvous."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from oneflow.core.errors import OneFlowError
from oneflow.services.line import line_options
from oneflow.services.proof import SESSION_KEY
from tests.support.proving import open_proven, proven

from .fuzz_inputs import NUMBERS, Verdict, judged, mutated, random_message, watched, wire_bytes

GRAPH = """graph far pieces=1 {
  %0: float32[7, 6] S(0) = input(; name='x') @cpu[0, 1]
  %1: float32[7, 6] S(1) = to_global(%0) @cpu[0, 1]
  %2: float32[7, 6] ? = relu(%1) @cpu[0, 1]
  %3: float32[7, 6] B = to_global(%2) @cpu[0, 1]
  output(%3; index=0) @cpu[0, 1]
}"""
HEADER = struct.Struct("<QQ")
IN_FLIGHT = 32
CONNECTIONS = 4
CALL_S = 0.3


# ---- register contents ---------------------------------------------------------------------------


def fuzz_contents(verdict: Verdict, seeds: range) -> None:
    """Frames of a peer: right ones, then one of a wrong register, slot or size, or cut."""
    from oneflow.actors.tcp import Connection, Mirrors, make_mirrors

    plan, frames = plan_and_frames()
    theirs = Mirrors(plan, 0, make_mirrors(plan, 0))
    mine = Mirrors(plan, 1, make_mirrors(plan, 1))
    with socket.create_server(("127.0.0.1", 0)) as server:
        for seed in watched(seeds):
            rng = random.Random(seed)
            stream = b"".join(rng.choice(frames) for _ in range(rng.randrange(4)))
            stream += _odd_frame(rng, frames)
            near = socket.create_connection(server.getsockname())
            far, _ = server.accept()
            with near, far, judged(verdict, seed, (OneFlowError,)):
                connection = Connection(plan, 1, 0, far, mine, theirs)
                near.sendall(stream)
                near.close()
                while connection.is_open:
                    connection.receive()
                connection.give_up(-1.0)


def plan_and_frames() -> tuple[Any, list[bytes]]:
    """A plan of two ranks, and all that rank 0 may send rank 1."""
    from oneflow.actors.bus import freed_code, ready_code
    from oneflow.actors.registers import is_shared
    from oneflow.actors.tcp import Connection, Mirrors, make_mirrors
    from oneflow.core.graph_text import parse_graph
    from oneflow.core.job_config import Cluster, JobConfig
    from oneflow.scheduler.compiler.pipeline import compile_graph

    plan = compile_graph(parse_graph(GRAPH), JobConfig("far"), Cluster(2))
    own, other = Mirrors(plan, 0, make_mirrors(plan, 0)), Mirrors(plan, 1, make_mirrors(plan, 1))
    frames = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with near, far:
        sender = Connection(plan, 0, 1, near, own, other)
        for register in (r for r in plan.registers if is_shared(r)):
            for slot in range(register.num_slots):
                for code in (ready_code(register, slot), freed_code(register, slot)):
                    sender.send(code)
                    frames.append(far.recv(1 << 16))
    return plan, frames


def _odd_frame(rng: random.Random, frames: list[bytes]) -> bytes:
    frame = rng.choice(frames)
    kind = rng.randrange(5)
    if kind == 0:
        return mutated(rng, frame)
    if kind == 1:
        return frame[: rng.randrange(len(frame))]
    code, nbytes = HEADER.unpack(frame[:16])
    if kind == 2:
        code = rng.choice((code ^ 1 << rng.randrange(20), *NUMBERS)) % 2**64
    elif kind == 3:
        nbytes = rng.choice((nbytes + 1, nbytes - 1, *NUMBERS)) % 2**64
    return HEADER.pack(code, nbytes) + frame[16:]


# ---- who they are --------------------------------------------------------------------------------


class _Keys:
    """A rendezvous as far as it is kept. The job goes on until `is_over`."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.is_over = False

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str, timeout_s: float) -> bytes:
        while key not in self.values:
            time.sleep(0.001)
        return self.values[key]

    def check(self, ranks: Any) -> None:
        if self.is_over:
            raise OneFlowError("the job is over")


def fuzz_strangers(verdict: Verdict, seeds: range) -> None:
    """Strangers connect to a rank and are none of its peers. The peer that comes last is let in."""
    from oneflow.boxing.transport.mesh import Mesh

    keys, found = _Keys(), Counter[str]()
    sockets: dict[int, Any] = {}

    def wait_for_peer() -> None:
        try:
            sockets.update(Mesh("j", 0, [0, 1], [1], keys, keys.check).open())
        except OneFlowError as error:
            found[type(error).__name__] += 1

    logger = logging.getLogger("oneflow.boxing.transport.mesh")
    level = logger.level
    logger.setLevel(logging.ERROR)  # each stranger is worth a line, but not here
    thread = threading.Thread(target=wait_for_peer)
    thread.start()
    address = keys.get("mesh/j/0", 5.0).decode().split()
    for seed in watched(seeds):
        with judged(verdict, seed, (OSError,)):  # it may hang up on us at any time
            _knock(random.Random(seed), (address[0], int(address[1])))
    Mesh("j", 1, [0, 1], [0], keys, keys.check).open()[0].close()
    thread.join(20)
    if thread.is_alive() or found or list(sockets) != [1]:
        verdict.blame(f"the peer that came after the strangers was not let in: {found}")
    keys.is_over = True
    logger.setLevel(level)
    for sock in sockets.values():
        sock.close()


def _knock(rng: random.Random, address: tuple[str, int]) -> None:
    rank = rng.choice((1, 1, 1, 0, 2, 2**32 - 1))
    data = struct.pack("<I", rank) + rng.randbytes(rng.choice((0, 31, 32, 33, 64, 64, 64, 500)))
    with socket.create_connection(address, 60) as line:
        line.sendall(data[: rng.choice((0, 1, 3, 4, 40, 1000))])
        line.shutdown(socket.SHUT_WR)
        line.settimeout(60)
        while line.recv(100):
            pass


# ---- rendezvous ----------------------------------------------------------------------------------


@contextmanager
def job_scheduler() -> Iterator[tuple[str, str]]:
    """Address and token of the control plane that rank 0 of a job hosts."""
    from oneflow.core.config import Config
    from oneflow.scheduler.server import SchedulerServer

    token = "0123456789abcdef0123456789abcdef"
    config = Config(world_size=2, job_token=token)
    server = SchedulerServer("127.0.0.1:0", 2, lambda graph, config: b"", config)
    address = server.start()
    try:
        yield address, token
    finally:
        server.stop(0.0)


def fuzz_control(verdict: Verdict, seeds: range, declared: frozenset[str]) -> None:
    """Calls over sockets, in whose answers errors have our own types; then it still answers."""
    from oneflow.protos import control_pb2 as pb

    methods = [
        (f"/oneflow.Scheduler/{m.name}", getattr(pb, m.input_type.name), m.client_streaming)
        for m in pb.DESCRIPTOR.services_by_name["Scheduler"].methods
    ]

    def make(rng: random.Random, seed: int) -> Call:
        path, kind, streams = methods[seed % len(methods)]
        count = rng.choice((1, 1, 2, 3)) if streams else 1
        bodies = [_body(rng, kind) for _ in range(count)]
        wrong = rng.random() < 0.1
        return Call(path, bodies, streams, streams, "" if wrong else token)

    with job_scheduler() as (address, token):
        feed_calls(verdict, seeds, address, make, (token,), declared)
        _control_answers(verdict, address, token)


def _body(rng: random.Random, kind: Any) -> bytes:
    """Deadlines are short, or ranks would be waited for."""
    if rng.random() < 0.4:
        return wire_bytes(rng, kind)
    message = random_message(rng, kind, 0, 0.8)
    if hasattr(message, "timeout_s"):
        message.timeout_s = rng.choice((0.0, 0.01, -1.0, float("nan"), 0.05))
    found: bytes = message.SerializeToString()
    return found


def _control_answers(verdict: Verdict, address: str, token: str) -> None:
    from oneflow.protos import control_pb2 as pb

    with proven(address, token) as (channel, metadata):
        ask = channel.unary_unary(
            "/oneflow.Scheduler/Get", pb.GetRequest.SerializeToString, pb.GetReply.FromString
        )
        reply = ask(
            pb.GetRequest(key="nothing", timeout_s=0.01),
            timeout=60,
            metadata=metadata,
        )
        if not reply.error.type:
            verdict.blame("a key that nobody put has a value")


# ---- calls by the dozen --------------------------------------------------------------------------


class Call:
    """One call that is to be made. token: that its connection has proven, or one that is no
    session's and only shown.
    """

    def __init__(self, path: str, bodies: list[bytes], up: bool, down: bool, token: str) -> None:
        self.path, self.bodies, self.up, self.down, self.token = path, bodies, up, down, token


def feed_calls(
    verdict: Verdict,
    seeds: range,
    address: str,
    make: Callable[[random.Random, int], Call],
    tokens: tuple[str, ...],
    declared: frozenset[str],
) -> None:
    """IN_FLIGHT calls at a time over a few connections, on which one of `tokens` was proven; each
    ends with a declared code.
    """
    asyncio.run(_feed_all(verdict, seeds, address, make, tokens, declared))


async def _feed_all(
    verdict: Verdict,
    seeds: range,
    address: str,
    make: Callable[[random.Random, int], Call],
    tokens: tuple[str, ...],
    declared: frozenset[str],
) -> None:
    coming = iter(watched(seeds))
    more = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    options = [*line_options(), *more]
    opened = {
        token: [await open_proven(address, token, options) for _ in range(CONNECTIONS)]
        for token in tokens
    }

    async def work(number: int) -> None:
        for seed in coming:
            call = make(random.Random(seed), seed)
            line = opened.get(call.token, opened[tokens[0]])[number % CONNECTIONS]
            shown = ((SESSION_KEY, call.token.encode().hex()),)
            metadata = line.metadata if call.token in opened else shown
            started = time.monotonic()
            code = await _one_call(line.channel, call, metadata)
            verdict.slowest_s = max(verdict.slowest_s, time.monotonic() - started)
            verdict.note(code)
            if code not in declared:
                verdict.blame(f"seed {seed}: {call.path}: {code}")

    await asyncio.gather(*(work(number) for number in range(IN_FLIGHT)))
    for lines in opened.values():
        for line in lines:
            await line.close()


async def _one_call(channel: Any, call: Call, metadata: Any) -> str:
    """The code; DEADLINE_EXCEEDED counts as an answer: streams that follow have no end."""
    import grpc

    kind = f"{'stream' if call.up else 'unary'}_{'stream' if call.down else 'unary'}"
    method = getattr(channel, kind)(call.path)

    async def bodies() -> Any:
        for body in call.bodies:
            yield body

    request: Any = bodies() if call.up else call.bodies[0]
    try:
        answer = method(request, timeout=CALL_S, metadata=metadata)
        if not call.down:
            await answer
            return "OK"
        number = 0
        async for _ in answer:
            number += 1
            if number > 3:
                answer.cancel()
                break
        return "OK"
    except grpc.aio.AioRpcError as error:
        return _named(error)
    except asyncio.InvalidStateError:  # it answered while we were still talking
        return "OK"
    except asyncio.CancelledError:
        return "OK"


def _named(error: Any) -> str:
    """The code; with what was said, if it means a defect."""
    code = str(error.code().name)
    if error.details() == "Internal error from Core":  # the same, as gRPC says it
        return "OK"
    if code in ("UNKNOWN", "INTERNAL"):
        return f"{code}: {error.details()}"[:200]
    return code
