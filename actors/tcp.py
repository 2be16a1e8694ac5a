"""Between hosts: messages and the register contents they speak of travel together on a TCP
connection per pair of ranks.

A Ready message carries just the parts of the slot that its receiver's actors read (of rows whose
number sizes beside them tell, the sizes and then those rows); they land in a
mirror of the sender's registers, laid out like the original, so that boxing reads a far rank's
memory as it reads a near one's. Sends go out of the registers themselves: a slot is not written
again before the receiver has freed it.

Freed messages have a connection of their own. Behind megabytes of contents, of which nobody is in a
hurry, they would keep a rank waiting for memory that all have read long ago.

Frame: code (8 bytes), bytes that follow (8 bytes), the parts. Both ends work out the parts from the
plan, and rows from the sizes before them; nothing else describes them.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.actors.boxing import channels_of, read_parts, read_rows
from oneflow.actors.bus import describe_code
from oneflow.actors.registers import RegisterMemory, is_met, shared_layout, storage_of
from oneflow.boxing.transport.mesh import round_trip_s
from oneflow.boxing.transport.rendezvous import peer_gone
from oneflow.core.actor_kinds import READS_PEERS
from oneflow.core.errors import ProtocolError
from oneflow.core.metrics import METRICS
from oneflow.core.plan import Plan, RegisterSpec
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import device_of, hardware_for

_HEADER = struct.Struct("<QQ")
MAX_IOV = 64


class Mirrors:
    """Shared registers of one rank as this process sees them: its own, or a mirror of a far
    rank's.
    """

    def __init__(self, plan: Plan, rank: int, buffer: Array) -> None:
        self._offsets = shared_layout(plan, rank)[0]
        self._rank = rank
        self._buffer = buffer
        self._memory: dict[int, RegisterMemory] = {}

    def holds(self, register: RegisterSpec) -> bool:
        """Whether it is shared at all."""
        return storage_of(register).id in self._offsets

    def arrays(self, register: RegisterSpec, slot: int) -> Mapping[int, Any]:
        found = self._memory.get(register.id)
        if found is None:
            offset = self._offsets[storage_of(register).id]
            found = RegisterMemory(register, self._rank, self._buffer, offset)
            self._memory[register.id] = found
        return found.arrays[slot]


class _Parts:
    """The parts that one Ready message carries, as byte views; strided ones go through a buffer
    of their own.

    rows: list the parts that follow, of which the first ones tell the sizes.
    """

    __slots__ = ("nbytes", "rows", "staged", "views")

    def __init__(self, parts: list[Array], rows: Sequence[Callable[[], list[Array]]] = ()) -> None:
        self.views: list[memoryview] = []
        self.staged: list[tuple[Array, Array]] = []
        self.rows = rows
        for part in parts:
            flat = part
            if not (isinstance(part, np.ndarray) and part.flags.c_contiguous):
                flat = _staging_for(part)
                self.staged.append((part, flat))
            if flat.nbytes:
                self.views.append(flat.reshape(-1).view(np.uint8).data)
        self.nbytes = sum(v.nbytes for v in self.views)

    def following(self) -> _Parts | None:
        """The parts that follow these, which have come; None if there are none."""
        return _Parts([part for rows in self.rows for part in rows()]) if self.rows else None


def _staging_for(part: Array) -> Array:
    """A contiguous host array for the bytes of `part` that go over the socket."""
    return device_of(part).staging(part)


def _to_staging(staged: Array, part: Array) -> None:
    if isinstance(part, np.ndarray):
        np.copyto(staged, part)
    else:
        device_of(part).to_staging(staged, part)


def _from_staging(part: Array, staged: Array) -> None:
    if isinstance(part, np.ndarray):
        np.copyto(part, staged)
    else:
        device_of(part).from_staging(part, staged)


@dataclass(slots=True)
class _Incoming:
    """A message on its way in. left: bytes that no parts have claimed.  parts: those that come
    next, None at the end.
    """

    code: int
    nbytes: int
    left: int
    parts: _Parts | None

    def land(self) -> None:
        """The parts are in: put them where they belong, and go on to those that follow."""
        assert self.parts is not None
        for part, staged in self.parts.staged:
            _from_staging(part, staged)
        self.parts = self.parts.following()


class Connection:
    """One peer on another host."""

    def __init__(
        self, plan: Plan, rank: int, peer: int, sock: socket.socket, mine: Mirrors, theirs: Mirrors
    ) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.is_open = True
        self.broken: tuple[float, str] | None = None
        """Since when and why the connection is broken."""
        self.peer = peer
        self._rank = rank
        self._registers = {r.id: r for r in plan.registers}
        self._mine, self._theirs = mine, theirs
        self._out: deque[memoryview] = deque()
        self._sent: dict[int, _Parts] = {}
        self._received: dict[int, _Parts] = {}
        self._header = bytearray(_HEADER.size)
        self._targets: deque[memoryview] = deque([memoryview(self._header)])
        self._incoming: _Incoming | None = None

    # ---- sending ---------------------------------------------------------------------------------

    def send(self, code: int) -> None:
        parts = self._parts(self._sent, code, self._mine, self._rank, self.peer)
        later = parts.following() if parts is not None else None
        carried = [p for p in (parts, later) if p is not None]
        nbytes = sum(p.nbytes for p in carried)
        self._out.append(memoryview(_HEADER.pack(code, nbytes)))
        for some in carried:
            for part, staged in some.staged:
                _to_staging(staged, part)
            self._out.extend(some.views)
        METRICS.message_sent("tcp", nbytes + _HEADER.size)
        self.flush()

    def flush(self) -> bool:
        """Write as much as the socket takes; True if nothing waits any more."""
        out = self._out
        if self.broken:
            out.clear()
        while out:
            try:
                written = self.socket.sendmsg([out[i] for i in range(min(len(out), MAX_IOV))])
            except BlockingIOError:
                return False
            except OSError as error:
                self._break(str(error))
                return True
            while written:
                if written >= out[0].nbytes:
                    written -= out.popleft().nbytes
                else:
                    out[0] = out[0][written:]
                    written = 0
        return True

    # ---- receiving -------------------------------------------------------------------------------

    def receive(self) -> list[int]:
        """Codes of the messages that have come in whole."""
        codes: list[int] = []
        while True:
            while self._targets:
                try:
                    got = self.socket.recv_into(self._targets[0])
                except BlockingIOError:
                    return codes
                except OSError as error:
                    self._break(str(error))
                    return codes
                if got == 0:
                    self._end_of_stream()
                    return codes
                if got == self._targets[0].nbytes:
                    self._targets.popleft()
                else:
                    self._targets[0] = self._targets[0][got:]
            self._take(codes)

    def _end_of_stream(self) -> None:
        """A peer that has done its part closes first; whether it is still needed, the control
        plane knows.
        """
        if self._incoming is not None or self._targets[0].nbytes != _HEADER.size:
            self._break("it closed the connection in the middle of a message")
        self.is_open = False

    def _take(self, codes: list[int]) -> None:
        """A header is in, or parts that it announced."""
        incoming = self._incoming
        if incoming is None:
            code, nbytes = _HEADER.unpack(self._header)
            parts = self._parts(self._received, code, self._theirs, self.peer, self._rank)
            incoming = self._incoming = _Incoming(code, nbytes, nbytes, parts)
        else:
            incoming.land()
        while incoming.parts is not None:
            incoming.left -= incoming.parts.nbytes
            if incoming.left < 0:
                break
            if incoming.parts.views:
                self._targets.extend(incoming.parts.views)
                return
            incoming.land()
        if incoming.left:
            expected = incoming.nbytes - incoming.left
            raise ProtocolError(
                f"rank {self._rank}: {describe_code(incoming.code)} from rank {self.peer} "
                f"carries {incoming.nbytes} bytes, the plan says {expected}"
            )
        METRICS.messages_taken("tcp", 1, incoming.nbytes + _HEADER.size)
        self._incoming = None
        self._targets.append(memoryview(self._header))
        codes.append(incoming.code)

    # ---- parts -----------------------------------------------------------------------------------

    def _parts(
        self, cache: dict[int, _Parts], code: int, memory: Mirrors, source: int, reader: int
    ) -> _Parts | None:
        """Return the parts that a Ready message carries; None for Freed."""
        if code & 1:
            return None
        found = cache.get(code)
        if found is None:
            register = self._registers.get(code >> 9)
            slot = (code >> 1) & 255
            if register is None or slot >= register.num_slots or not is_met(register):
                raise ProtocolError(
                    f"rank {source} speaks of {describe_code(code)}, which is not in the plan"
                )
            if not memory.holds(register):  # whoever waits for it reads no memory of peers
                cache[code] = found = _Parts([])
                return found
            arrays = memory.arrays(register, slot)
            readers = [
                actor
                for actor in register.consumers
                if actor.kind in READS_PEERS and reader in actor.placement
                if any(
                    c.register is register and c.source == source
                    for c in channels_of(actor, reader)
                )
            ]
            parts = [p for a in readers for p in read_parts(a, reader, source, register, arrays)]
            rows = [read_rows(a, reader, register, arrays) for a in readers]
            found = cache[code] = _Parts(parts, [r for r in rows if r is not None])
        return found

    # ---- breaking --------------------------------------------------------------------------------

    def _break(self, cause: str) -> None:
        """Mostly the echo of a rank that has died, of which the control plane can say more: so
        it gets time to.
        """
        self.is_open = False
        self.broken = self.broken or (time.monotonic(), cause)

    def give_up(self, patience_s: float) -> None:
        """Raises PeerLostError if the connection has been broken for longer than `patience_s`."""
        if self.broken and time.monotonic() - self.broken[0] > patience_s:
            raise peer_gone(self._rank, self.peer, self.broken[1])


class TcpBus:
    """The far ranks of a job.

    connections: one to each.  for_freed: another to each, for Freed messages alone; without them
    all take the first.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        patience_s: float,
        for_freed: Sequence[Connection] = (),
    ) -> None:
        self._for_ready = {c.peer: c for c in connections}
        self._for_freed = {c.peer: c for c in for_freed or connections}
        self._all = [*connections, *for_freed]
        self._patience_s = patience_s
        self._stuck: set[Connection] = set()
        self._watched: list[int] = []

    def post(self, rank: int, code: int) -> None:
        connection = (self._for_freed if code & 1 else self._for_ready)[rank]
        connection.send(code)
        if not connection.flush():
            self._stuck.add(connection)

    def poll(self) -> list[tuple[int, int]]:
        self.flush()
        arrived = [(c.peer, code) for c in self._open() for code in c.receive()]
        if arrived:
            METRICS.mailbox_depth.note(len(arrived))
        return arrived

    def flush(self) -> bool:
        if self._stuck:
            self._stuck = {c for c in self._stuck if not c.flush()}
        return not self._stuck

    def _open(self) -> list[Connection]:
        return [c for c in self._all if c.is_open]

    def sample_latency(self) -> None:
        """Half of each connection's round trip as the kernel has measured it; for the counters."""
        latency = METRICS.message_latency_seconds["tcp"]
        for connection in self._open():
            seconds = round_trip_s(connection.socket)
            if seconds:
                latency.observe(seconds / 2)

    def wait(self, timeout_s: float) -> None:
        self.give_up()
        sockets = [*self._watched, *(c.socket.fileno() for c in self._open())]
        blocked = [c.socket for c in self._stuck if c.is_open]
        select.select(sockets, blocked, [], timeout_s)

    def watch(self, file: int) -> bool:
        self._watched.append(file)
        return True

    def give_up(self) -> None:
        """Raises PeerLostError if a connection has been broken for too long."""
        for connection in self._all:
            connection.give_up(self._patience_s)

    def close(self) -> None:
        for connection in self._all:
            connection.socket.close()


def make_mirrors(plan: Plan, rank: int) -> Any:
    """Memory for a copy of `rank`'s shared registers, on the device of this rank's own."""
    return hardware_for(plan.device_type).allocate(max(shared_layout(plan, rank)[1], 1))
