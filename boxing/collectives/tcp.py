"""Collectives of ranks on different hosts: one TCP connection for each pair, used by all calls.

A call sends every peer a header (call number, signature, lengths, text), and then the parts that
this peer reads, straight from the source. The first bytes go with the header, the rest when the
headers of all peers are there and agree; until then nothing is taken from a socket but headers.
If they differ, no rank has touched its target, every rank throws away the few bytes on their way,
and every rank raises the same DesyncError. After any other error the streams are cut in the middle,
so the group refuses further calls.

Large sums: every pair swaps its parts of the sum (reduce-scatter) and the finished parts
(all-gather) on one stream, each block as soon as it is finished: 2T(p-1)/p bytes into every rank
and no wait between the phases. A ring moves as much, but it adds up part i in the order i+1, i+2,
..., i, not in rank order, so from three ranks on its float sums differ from those of other
backends. Nor would it gain much: a ring of the same streams and blocks took 0.86 to 1.51 of the
time with two ranks, 0.90 to 1.13 with three, 0.86 to 0.97 with four (4 and 16 MiB, two network
namespaces, medians of paired turns in three runs on two busy cores). Sending finished blocks
between the addends of later blocks was tried too, and is no faster.
"""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.boxing.boxes import balanced_part
from oneflow.boxing.collectives.base import REDUCTIONS, CallInfo, Collectives
from oneflow.boxing.collectives.exchange import Exchange, Slices, need_source, view_of
from oneflow.boxing.collectives.streams import (
    BLOCK_NBYTES,
    Incoming,
    Outgoing,
    PeerStreams,
    block_numel,
    incoming_part,
    local_copies,
    outgoing_parts,
    raw,
)
from oneflow.boxing.collectives.sums import SLOTS, Sums
from oneflow.boxing.collectives.tcp_call import EAGER_NBYTES, HEADER, Call, Waiting
from oneflow.boxing.collectives.wire import wire_of
from oneflow.boxing.transport.mesh import Mesh
from oneflow.boxing.transport.rendezvous import (
    SLICE_S,
    Check,
    KeyValueStore,
    peer_gone,
    wait_for_news,
)
from oneflow.core.errors import HangError, PeerLostError, TransportError
from oneflow.core.job_tls import JobTls
from oneflow.kernels.array import Array

ASK_S = 1.5
"""Time for the scheduler to say whose fault a broken connection was. It gives a
rank that it lost one second to come back."""

_BROKEN = select.POLLHUP | select.POLLERR | select.POLLNVAL


class TcpCollectives(Collectives):
    """Collectives over TCP.

    group_name: never used before in this job; host: the address under which peers reach this rank;
    tls: None: in the clear.
    """

    def __init__(
        self,
        group_name: str,
        rank: int,
        ranks: Sequence[int],
        kv: KeyValueStore,
        check: Check | None = None,
        timeout_s: float = 300.0,
        host: str = "127.0.0.1",
        tls: JobTls | None = None,
    ) -> None:
        super().__init__(rank, ranks, check, timeout_s)
        self._number = 0
        self._broken = ""
        self._scratch: dict[tuple[str, int], Array] = {}
        mesh = Mesh(group_name, rank, ranks, self.peers, kv, check, timeout_s, host, tls)
        try:
            sockets = mesh.open()
        except TransportError:
            wait_for_news(check, self.peers, ASK_S)
            raise
        self.links = {peer: PeerStreams(peer, sockets[peer]) for peer in self.peers}

    # ---- calls -----------------------------------------------------------------------------------

    def _exchange(
        self,
        info: CallInfo,
        source: Array | None,
        target: Array,
        exchange: Exchange,
        reduce: np.ufunc,
    ) -> None:
        self.run(info, [Leg(source, target, exchange, reduce)])

    def run(self, info: CallInfo, legs: Sequence[Leg], salt: int = 0) -> None:
        """Several exchanges as one call, with one header for each peer; no legs: only agrees.

        salt: a further number that must agree.
        """
        sums = Sums(self._slots)
        bound = [_Bound(self, leg, sums) for leg in legs]
        signature = info.signature ^ salt
        for leg in legs:
            signature ^= leg.exchange.signature
        call = Call(self, info, signature, lambda: _begin(bound))
        for peer in self.peers:
            sent = sum(b.outgoing_nbytes(peer) for b in bound)
            ready = sum(b.outgoing_nbytes(peer) for b in bound if not b.waits)
            call.send[peer] = sent, min(ready, EAGER_NBYTES), _chained(bound, "outgoing", peer)
            received = sum(b.incoming_nbytes(peer) for b in bound)
            call.receive[peer] = received, _chained(bound, "incoming", peer)
        call.local = itertools.chain.from_iterable(b.local() for b in bound)
        self._perform(call)
        for b in bound:
            b.finish()

    def _all_reduce_large(self, info: CallInfo, flat: Array, out: Array, op: str) -> None:
        parts = [slice(*balanced_part(flat.size, self.size, i)) for i in range(self.size)]
        mine = parts[self.index]
        operands = [flat[mine] if r == self.rank else r for r in self.ranks]
        sums = Sums(self._slots)
        blocks = sums.add(out[mine], operands, REDUCTIONS[op])
        call = Call(self, info, info.signature, lambda: None)
        step, size = block_numel(flat.itemsize), flat.itemsize
        own_numel = mine.stop - mine.start
        for peer, part in zip(self.ranks, parts, strict=True):
            if peer != self.rank:
                addends, numel = flat[part], part.stop - part.start
                sent = (numel + own_numel) * size
                eager = min(numel * size, EAGER_NBYTES)
                stream = _sent_sums(addends, _cut(out[mine], step), sums)
                call.send[peer] = sent, eager, stream
                taken = _received_sums(sums, peer, blocks, _cut(out[part], step))
                call.receive[peer] = sent, taken
        self._perform(call)

    def _perform(self, call: Call) -> None:
        if self._broken:
            raise TransportError(f"this set of ranks is cut off since {self._broken}")
        self._number += 1
        call.start(self._number)
        before = sum(link.received_nbytes for link in self.links.values())
        try:
            self._move(call)
        except BaseException as error:
            self.cut_off(call.info, error)
            raise
        if call.is_off:
            self._raise_desync({**call.texts, self.rank: call.info.text})
        after = sum(link.received_nbytes for link in self.links.values())
        self.received_nbytes += after - before - HEADER.size * len(self.peers)

    def cut_off(self, info: CallInfo, error: BaseException) -> None:
        """A call ended in its middle: there will be no other."""
        self._broken = f"{info.text} ended with {type(error).__name__}: {error}"
        for link in self.links.values():
            link.stop()

    def _move(self, call: Call) -> None:
        """Send and receive as far as data can move, until all streams are at their end."""
        busy = {link.socket.fileno(): link for link in self.links.values()}
        for link in busy.values():
            self._do(call, link, link.send)
        waiting = Waiting(busy)
        local: Iterator[None] | None = call.local
        idle_s = 0.0
        while True:
            waiting.update()
            if call.is_off:
                local = None
            if not busy and local is None:
                return
            ready = waiting.poll(0.0 if local is not None and call.is_agreed else SLICE_S)
            for fd, events in ready:
                self._serve(call, busy[fd], events)
            if ready:
                idle_s = 0.0
                for link in busy.values():
                    link.resume()
            elif local is not None and call.is_agreed:
                if next(local, self) is self:
                    local = None
            elif busy:
                idle_s += SLICE_S
                self._check(call, busy, idle_s)

    def _serve(self, call: Call, link: PeerStreams, events: int) -> None:
        if events & (select.POLLIN | _BROKEN):
            if link.wants_to_receive:
                self._do(call, link, link.receive)
            elif events & _BROKEN:
                self._lost(call, link.rank, ConnectionError("it was reset"))
        if events & select.POLLOUT and link.wants_to_send:
            self._do(call, link, link.send)

    def _do(self, call: Call, link: PeerStreams, act: Callable[[], None]) -> None:
        try:
            act()
        except OSError as error:
            self._lost(call, link.rank, error)

    def _lost(self, call: Call, peer: int, error: OSError) -> None:
        """That peer may only have left because of another; the scheduler soon knows whose fault it
        was, so it is asked first."""
        try:
            wait_for_news(self._peer_check, [peer], ASK_S)
        except PeerLostError as lost:
            self._raise_lost(call.info, [peer], lost)
        self._raise_lost(call.info, [peer], peer_gone(self.rank, peer, error))

    def _check(self, call: Call, busy: dict[int, PeerStreams], idle_s: float) -> None:
        try:
            self._still_waiting(
                call.info, lambda: sorted(link.rank for link in busy.values()), idle_s
            )
        except HangError:
            if call.differs:
                late = dict.fromkeys(self.peers, "has not come") | call.texts
                self._raise_desync({**late, self.rank: call.info.text})
            raise

    # ---- memory that is kept ---------------------------------------------------------------------

    def block(self, kind: str, rank: int, count: int = 1) -> Array:
        """Memory for `count` blocks of one stream, made once."""
        found = self._scratch.get((kind, rank))
        if found is None:
            found = self._scratch[kind, rank] = np.empty(count * BLOCK_NBYTES, np.uint8)
        return found

    def _slots(self, rank: int) -> Array:
        return self.block("sum", rank, SLOTS)

    def close(self) -> None:
        for link in self.links.values():
            link.socket.close()
        self._scratch.clear()


@dataclass(frozen=True)
class Leg:
    """One exchange of a call: `target` is filled from the sources of all ranks.

    waits: the source is the target of the legs before it; it is sent when their sums are done.
    """

    source: Array | None
    target: Array
    exchange: Exchange
    reduce: np.ufunc = np.add
    waits: bool = False


class _Bound:
    """One leg with its arrays: the streams to and from every peer."""

    def __init__(self, group: TcpCollectives, leg: Leg, sums: Sums) -> None:
        self._group, self._leg, self._sums = group, leg, sums
        self.waits = leg.waits
        self._wire = wire_of(leg.exchange, group.rank)
        self._blocks = [
            sums.add(
                view_of(leg.target, s.target),
                [*self._before(s.onto, s.target), *map(self._operand, s.operands)],
                leg.reduce,
            )
            for s in self._wire.sums
        ]

    def _before(self, onto: bool, target: Slices) -> list[Array]:
        return [view_of(self._leg.target, target)] if onto else []

    def _operand(self, operand: tuple[int, Slices]) -> Array | int:
        rank, slices = operand
        return self._own(slices) if rank == self._group.rank else rank

    def _own(self, slices: Slices) -> Array:
        return view_of(need_source(self._group.rank, self._leg.source), slices)

    def outgoing_nbytes(self, peer: int) -> int:
        numel = wire_of(self._leg.exchange, peer).incoming_numel.get(self._group.rank, 0)
        return numel * self._leg.target.itemsize

    def incoming_nbytes(self, peer: int) -> int:
        return self._wire.incoming_numel.get(peer, 0) * self._leg.target.itemsize

    def outgoing(self, peer: int) -> Outgoing:
        parts = [self._own(slices) for slices in self._wire.outgoing.get(peer, ())]
        while self.waits and not self._sums.is_done:
            yield None
        yield from outgoing_parts(parts, self._group.block("pack", peer))

    def incoming(self, peer: int) -> Incoming:
        for slices, number in self._wire.incoming.get(peer, ()):
            if number is not None:
                yield from self._sums.receive(peer, self._blocks[number])
            else:
                into = view_of(self._leg.target, slices)
                yield from incoming_part(into, self._group.block("unpack", peer))

    def begin(self) -> None:
        """All ranks mean the same call: from here on the target is written."""
        if self._wire.fills_zero:
            self._leg.target[...] = 0
        self._sums.advance()

    def local(self) -> Iterator[None]:
        return local_copies(
            [(view_of(self._leg.target, to), self._own(at)) for at, to in self._wire.local]
        )

    def finish(self) -> None:
        target = self._leg.target
        for at, to in self._wire.repeated:
            np.copyto(view_of(target, to), view_of(target, at))


def _begin(bound: Sequence[_Bound]) -> None:
    for leg in bound:
        leg.begin()


def _chained(bound: Sequence[_Bound], direction: str, peer: int) -> Any:
    return itertools.chain.from_iterable(getattr(b, direction)(peer) for b in bound)


def _cut(flat: Array, step: int) -> list[Array]:
    return [flat[a : a + step] for a in range(0, flat.size, step)]


def _sent_sums(addends: Array, finished: list[Array], sums: Sums) -> Outgoing:
    """A peer's part, and then the own part of the sum, each block as soon as it is finished."""
    yield [raw(addends)]
    for k, block in enumerate(finished):
        while sums.done <= k:
            yield None
        yield [raw(block)]


def _received_sums(sums: Sums, peer: int, blocks: range, finished: list[Array]) -> Incoming:
    """The other end of `_sent_sums` of a peer. Blocks may be parts of data that are being sent: a
    peer finishes none before it has all addends."""
    yield from sums.receive(peer, blocks)
    for block in finished:
        yield raw(block)
