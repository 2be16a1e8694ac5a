"""One call over connections: headers first, then data, if all ranks mean the same."""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from oneflow.boxing.collectives.base import TEXT_NBYTES, CallInfo
from oneflow.boxing.collectives.streams import Incoming, Outgoing, PeerStreams, raw
from oneflow.core.errors import TransportError

if TYPE_CHECKING:
    from oneflow.boxing.collectives.tcp import TcpCollectives

EAGER_NBYTES = 1 << 20
"""So many bytes leave with the header, before it is known that all ranks mean the same call. What a
socket does not hold waits at the sender; with a quarter of this 1 MiB takes half as long again."""

HEADER = struct.Struct(f"<qqqq{TEXT_NBYTES}s")
"""Number of the call, signature, bytes that follow, how many of them at once, text."""


class Call:
    """The knowledge that the streams of one call share: which peers have come, and whether all mean
    the same.

    send: peer -> (bytes, how many of them leave at once, stream).  receive: peer -> (bytes,
    stream).  begin: called when all headers are there and agree.
    """

    def __init__(
        self, group: TcpCollectives, info: CallInfo, signature: int, begin: Callable[[], None]
    ) -> None:
        self.info = info
        self.send: dict[int, tuple[int, int, Any]] = {}
        self.receive: dict[int, tuple[int, Incoming]] = {}
        self.local: Iterator[None] = iter(())
        self.texts: dict[int, str] = {}
        self.differs = False
        self._group = group
        self._signature = signature
        self._begin = begin
        self._number = 0

    def start(self, number: int) -> None:
        self._number = number
        if not self._group.peers:
            self._begin()
        for peer, link in self._group.links.items():
            link.start(self._outgoing(peer), self._incoming(peer))

    @property
    def is_met(self) -> bool:
        """All headers are there."""
        return len(self.texts) == len(self._group.peers)

    @property
    def is_agreed(self) -> bool:
        return self.is_met and not self.differs

    @property
    def is_off(self) -> bool:
        return self.is_met and self.differs

    def _outgoing(self, peer: int) -> Outgoing:
        nbytes, eager, stream = self.send[peer]
        encoded = self.info.encoded
        header = HEADER.pack(self._number, self._signature, nbytes, eager, encoded)
        first = [memoryview(header)]
        for batch in stream:
            if batch is None:
                yield first or None
                first = []
                continue
            rest = batch
            while rest and not self.is_agreed:
                head, rest = _split(rest, eager)
                eager -= sum(map(len, head))
                if first or head:
                    yield first + head
                    first = []
                while rest and not self.is_met:
                    yield None
                if rest and self.differs:
                    return
            if rest:
                yield first + rest
                first = []
        if first:
            yield first

    def _incoming(self, peer: int) -> Incoming:
        header = bytearray(HEADER.size)
        yield memoryview(header)
        eager = self._take(peer, header)
        while not self.is_met:
            yield None
        if not self.differs:
            yield from self.receive[peer][1]
            return
        while eager:
            waste = raw(self._group.block("unpack", peer))[:eager]
            yield waste
            eager -= len(waste)

    def _take(self, peer: int, header: bytearray) -> int:
        """Compares a peer's header; returns how many bytes follow it at once."""
        number, signature, nbytes, eager, encoded = HEADER.unpack(header)
        text = encoded.rstrip(b"\0").decode(errors="replace")
        if number != self._number or not 0 <= eager <= min(nbytes, EAGER_NBYTES):
            raise TransportError(
                f"rank {peer} sent what is no header of call {self._number} ({self.info.text}): "
                f"call {number}, {nbytes} bytes, {text!r}"
            )
        expected = self.receive[peer][0]
        if signature == self._signature and nbytes != expected:
            raise TransportError(
                f"{self.info.text}: rank {peer} announces {nbytes} bytes, where {expected} are due"
            )
        self.texts[peer] = text
        self.differs = self.differs or signature != self._signature
        if self.is_agreed:
            self._begin()
        return int(eager)


class Waiting:
    """The sockets that a call still waits for, each with the events that its streams want."""

    def __init__(self, busy: dict[int, PeerStreams]) -> None:
        self._busy = busy
        self._poll = select.poll()
        self._wanted: dict[int, int] = {}

    def update(self) -> None:
        """Drop links that are done from `busy`, and ask for the events that the others want now."""
        for fd, link in list(self._busy.items()):
            if link.is_done:
                del self._busy[fd]
                if self._wanted.pop(fd, None) is not None:
                    self._poll.unregister(fd)
                continue
            wanted = link.wants_to_receive * select.POLLIN | link.wants_to_send * select.POLLOUT
            if self._wanted.get(fd) != wanted:
                self._wanted[fd] = wanted
                self._poll.register(fd, wanted)

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._poll.poll(timeout_s * 1000)


def _split(views: list[memoryview], nbytes: int) -> tuple[list[memoryview], list[memoryview]]:
    """The first `nbytes` of some views, and the rest."""
    head: list[memoryview] = []
    rest = list(views)
    while rest and nbytes >= len(rest[0]):
        nbytes -= len(rest[0])
        head.append(rest.pop(0))
    if rest and nbytes:
        head.append(rest[0][:nbytes])
        rest[0] = rest[0][nbytes:]
    return head, rest
