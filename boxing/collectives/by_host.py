"""An exchange between ranks of several hosts, some on one host, taken apart by where they are.

    far_copies   from sources straight into targets: each part once for all readers of a host
    addends      inside a host: its share of a sum, added up where it is, in a stage
    far_sums     from stages into targets: one addend from each host
    near         inside a host: the reads of its ranks from each other
    spread       inside a host: parts for several readers, from the one that took them in

Sums are made host by host, in an order that all ranks know, so all copies of a sum are equal to the
last bit. All ranks work this out alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from oneflow.boxing.boxes import Pull, balanced_part
from oneflow.boxing.collectives.exchange import Exchange, Read

SMALL_NUMEL = 4096
"""A part with fewer elements is taken in by one of its readers; a larger one they divide."""

Slices = tuple[slice, ...]
_Pulls = dict[int, list[Pull]]


@dataclass(frozen=True)
class Phases:
    """One exchange as `rank` sees it. None: no rank (inside a host: none of its) reads anything.

    stage_shapes: rank -> of the array that holds its host's addends.
    """

    far_copies: Exchange
    addends: Exchange | None
    far_sums: Exchange | None
    near: Exchange | None
    spread: Exchange | None
    stage_shapes: dict[int, tuple[int, ...]]


@lru_cache(maxsize=512)
def phases_of(exchange: Exchange, hosts: tuple[int, ...], rank: int) -> Phases:
    """hosts: number of the host of each of the exchange's ranks."""
    plan = _plan(exchange, hosts)
    host_of = dict(zip(exchange.ranks, hosts, strict=True))
    here = [r for r in exchange.ranks if host_of[r] == host_of[rank]]
    return Phases(
        Exchange(exchange.ranks, plan.far_copies.__getitem__, exchange.zero_filled),
        _inside(here, plan.addends),
        _inside(list(exchange.ranks), plan.far_sums),
        _inside(here, plan.near),
        _inside(here, plan.spread),
        {r: tuple(shape) for r, shape in plan.stages.items()},
    )


def _inside(ranks: list[int], pulls: _Pulls) -> Exchange | None:
    return Exchange(ranks, pulls.__getitem__) if any(pulls[r] for r in ranks) else None


@dataclass(frozen=True)
class _Cell:
    """A part that one or more ranks read: the sum of parts, each at any of its holders.

    readers: (rank, slices of its target).  onto: the sum is added to the reader's target.
    """

    parts: tuple[tuple[tuple[int, ...], Slices], ...]
    readers: list[tuple[int, Slices]]
    onto: bool

    @property
    def numel(self) -> int:
        return math.prod(s.stop - s.start for s in self.readers[0][1])


def _cells(exchange: Exchange) -> list[_Cell]:
    found: dict[object, _Cell] = {}
    for rank in exchange.ranks:
        chains: dict[object, list[Read]] = {}
        for read in exchange.reads(rank):
            if read.numel:
                chains.setdefault(_key(read.target_slices), []).append(read)
        for reads in chains.values():
            parts = tuple((exchange.holders(r.source_rank), _rows(r.source_slices)) for r in reads)
            key: object = tuple((holders, _key(slices)) for holders, slices in parts)
            if reads[0].add:
                key = key, rank
            cell = found.setdefault(key, _Cell(parts, [], reads[0].add))
            cell.readers.append((rank, _rows(reads[0].target_slices)))
    return list(found.values())


@lru_cache(maxsize=128)
def _plan(exchange: Exchange, hosts: tuple[int, ...]) -> _Plan:
    plan = _Plan(exchange.ranks, hosts)
    for cell in _cells(exchange):
        plan.add(cell)
    return plan


class _Plan:
    """The reads of each rank in each phase; filled cell by cell."""

    def __init__(self, ranks: tuple[int, ...], hosts: tuple[int, ...]) -> None:
        self.far_copies: _Pulls = {r: [] for r in ranks}
        self.addends: _Pulls = {r: [] for r in ranks}
        self.far_sums: _Pulls = {r: [] for r in ranks}
        self.near: _Pulls = {r: [] for r in ranks}
        self.spread: _Pulls = {r: [] for r in ranks}
        self.stages: dict[int, list[int]] = {}
        self._hosts = dict(zip(ranks, hosts, strict=True))
        self._load = dict.fromkeys(ranks, 0)  # elements taken in or staged

    def add(self, cell: _Cell) -> None:
        by_host: dict[int, list[tuple[int, Slices]]] = {}
        for rank, slices in cell.readers:
            by_host.setdefault(self._hosts[rank], []).append((rank, slices))
        far = {}
        for host, readers in by_host.items():
            if all(self._on(host, holders) for holders, _ in cell.parts):
                self._add_near(cell, host, readers)
            else:
                far[host] = readers
        if far and len(cell.parts) == 1 and not cell.onto:
            for readers in far.values():
                self._add_far_copy(cell, readers)
        elif far:
            self._add_far_sum(cell, far)

    def _on(self, host: int, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(r for r in ranks if self._hosts[r] == host)

    def _least(self, ranks: Sequence[int], numel: int) -> int:
        """The one that has least to do so far; it gets `numel` more."""
        found = min(ranks, key=self._load.__getitem__)
        self._load[found] += numel
        return found

    def _add_near(self, cell: _Cell, host: int, readers: list[tuple[int, Slices]]) -> None:
        for reader, into in readers:
            for i, (holders, slices) in enumerate(cell.parts):
                near = self._on(host, holders)
                source = reader if reader in near else near[reader % len(near)]
                self.near[reader].append(Pull(source, slices, into, cell.onto or i > 0))

    def _add_far_copy(self, cell: _Cell, readers: list[tuple[int, Slices]]) -> None:
        holders, source = cell.parts[0]
        count = len(readers) if cell.numel > SMALL_NUMEL else 1
        for a, b, dim in _pieces(source, count):
            numel = cell.numel * (b - a) // (source[dim].stop - source[dim].start)
            taker = self._least([r for r, _ in readers], numel)
            into = dict(readers)
            at = _piece(into[taker], dim, a, b)
            sender = holders[taker % len(holders)]
            self.far_copies[taker].append(Pull(sender, _piece(source, dim, a, b), at, False))
            for reader, slices in readers:
                if reader != taker:
                    self.spread[reader].append(Pull(taker, at, _piece(slices, dim, a, b), False))

    def _add_far_sum(self, cell: _Cell, far: dict[int, list[tuple[int, Slices]]]) -> None:
        takers = {h: self._least([r for r, _ in readers], 0) for h, readers in far.items()}
        items = [self._stage(cell, host, parts, takers) for host, parts in self._items(cell)]
        for host, readers in far.items():
            taker, into = takers[host], dict(readers)
            self._load[taker] += cell.numel
            for i, (owner, at) in enumerate(items):
                self.far_sums[taker].append(Pull(owner, at, into[taker], cell.onto or i > 0))
            for reader, slices in readers:
                if reader != taker:
                    self.spread[reader].append(Pull(taker, into[taker], slices, False))

    def _items(self, cell: _Cell) -> Iterator[tuple[int, list[int]]]:
        """(host, numbers of the parts that it adds up): one host if it has all parts, so that its
        sum is that of hosts that need nothing of others; else each part at one host."""
        numbers = range(len(cell.parts))
        found: dict[int, list[int]] = {}
        for host in sorted(set(self._hosts.values())):
            if all(self._on(host, holders) for holders, _ in cell.parts):
                yield host, list(numbers)
                return
        for i in numbers:
            found.setdefault(self._hosts[cell.parts[i][0][0]], []).append(i)
        yield from sorted(found.items())

    def _stage(
        self, cell: _Cell, host: int, parts: list[int], takers: dict[int, int]
    ) -> tuple[int, Slices]:
        """Adds up some parts on a host, at the rank that needs them or at one that has less to do.
        Returns it and where."""
        held = [r for i in parts for r in self._on(host, cell.parts[i][0])]
        owner = takers[host] if host in takers else self._least(sorted(set(held)), cell.numel)
        at = self._room(owner, cell.readers[0][1])
        for n, i in enumerate(parts):
            holders, slices = cell.parts[i]
            near = self._on(host, holders)
            source = owner if owner in near else near[owner % len(near)]
            self.addends[owner].append(Pull(source, slices, at, n > 0))
        return owner, at

    def _room(self, owner: int, like: Slices) -> Slices:
        """The next rows of the owner's stage, which is as wide as its widest cell."""
        sizes = [s.stop - s.start for s in like]
        stage = self.stages.setdefault(owner, [0] * len(sizes))
        start = stage[0]
        stage[0] += sizes[0]
        for dim, size in enumerate(sizes[1:], 1):
            stage[dim] = max(stage[dim], size)
        return (slice(start, stage[0]), *(slice(0, n) for n in sizes[1:]))


def _pieces(slices: Slices, count: int) -> list[tuple[int, int, int]]:
    """(start, stop, dim): about equal pieces along the first dim that is long enough."""
    sizes = [s.stop - s.start for s in slices]
    dim = next((d for d, n in enumerate(sizes) if n >= count), sizes.index(max(sizes)))
    cuts = [balanced_part(sizes[dim], count, i) for i in range(count)]
    return [(a, b, dim) for a, b in cuts if a < b]


def _piece(slices: Slices, dim: int, start: int, stop: int) -> Slices:
    cut = slice(slices[dim].start + start, slices[dim].start + stop)
    return (*slices[:dim], cut, *slices[dim + 1 :])


def _rows(slices: Slices) -> Slices:
    """A 0-d array is handled as one row."""
    return slices or (slice(0, 1),)


def _key(slices: Slices) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in slices)


# ---- large sums ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumPhases:
    """An all_reduce of flat arrays: `addends` (source -> stage) inside hosts, `sums` (stage ->
    result) and `gather` (result -> result) between hosts, `spread` (result -> result) inside."""

    addends: Exchange
    sums: Exchange
    gather: Exchange
    spread: Exchange
    stage_numel: int


@lru_cache(maxsize=64)
def sum_phases(ranks: tuple[int, ...], hosts: tuple[int, ...], numel: int, rank: int) -> SumPhases:
    """Every host owns a slice of the sum, and its ranks divide every slice between them.

    So all links carry an equal share, and 2T(h-1)/h bytes come into each of h hosts.
    """
    layout = _Slices(ranks, hosts, numel)
    here = layout.members[layout.host_of[rank]]
    return SumPhases(
        Exchange(here, layout.addends),
        Exchange(ranks, layout.sums),
        Exchange(ranks, layout.gather),
        Exchange(here, layout.spread),
        sum(b - a for a, b in layout.own(rank)),
    )


class _Slices:
    """The holders of a flat array: slices for hosts, each divided by each host's ranks."""

    def __init__(self, ranks: tuple[int, ...], hosts: tuple[int, ...], numel: int) -> None:
        self.host_of = dict(zip(ranks, hosts, strict=True))
        self.numbers = sorted(set(hosts))
        self.members = {h: [r for r in ranks if self.host_of[r] == h] for h in self.numbers}
        count = len(self.numbers)
        self.slices = [balanced_part(numel, count, i) for i in range(count)]

    def pieces(self, host: int, number: int) -> list[tuple[int, int]]:
        """Slice `number` as the ranks of `host` divide it."""
        start, stop = self.slices[number]
        count = len(self.members[host])
        parts = (balanced_part(stop - start, count, i) for i in range(count))
        return [(start + a, start + b) for a, b in parts]

    def own(self, rank: int) -> list[tuple[int, int]]:
        """The piece of each slice that `rank` works on for its host; its stage holds them."""
        host = self.host_of[rank]
        place = self.members[host].index(rank)
        return [self.pieces(host, n)[place] for n in range(len(self.slices))]

    def stage_start(self, rank: int, number: int) -> int:
        return sum(b - a for a, b in self.own(rank)[:number])

    def addends(self, rank: int) -> list[Pull]:
        peers = self.members[self.host_of[rank]]
        return [
            Pull(peer, (slice(a, b),), self._staged(rank, number, a, b), i > 0)
            for number, (a, b) in enumerate(self.own(rank))
            for i, peer in enumerate(peers)
            if a < b
        ]

    def sums(self, rank: int) -> list[Pull]:
        """The host's own slice: its addends of all hosts, in the order of the hosts."""
        number = self.numbers.index(self.host_of[rank])
        start, stop = self.own(rank)[number]
        pieces = [p for host in self.numbers for p in self.pieces(host, number)]
        edges = sorted({start, stop, *(e for p in pieces for e in p if start < e < stop)})
        return [
            Pull(owner, self._staged(owner, number, a, b), (slice(a, b),), i > 0)
            for a, b in itertools.pairwise(edges)
            for i, host in enumerate(self.numbers)
            for owner in [self._holder(host, number, a)]
        ]

    def gather(self, rank: int) -> list[Pull]:
        """A share of every other host's slice, from those who finished it."""
        found = []
        for number, (start, stop) in enumerate(self.own(rank)):
            host = self.numbers[number]
            if host == self.host_of[rank]:
                continue
            for owner, (a, b) in zip(self.members[host], self.pieces(host, number), strict=True):
                cut = slice(max(a, start), min(b, stop))
                if cut.start < cut.stop:
                    found.append(Pull(owner, (cut,), (cut,), False))
        return found

    def spread(self, rank: int) -> list[Pull]:
        return [
            Pull(peer, (slice(a, b),), (slice(a, b),), False)
            for peer in self.members[self.host_of[rank]]
            if peer != rank
            for a, b in self.own(peer)
            if a < b
        ]

    def _staged(self, rank: int, number: int, start: int, stop: int) -> Slices:
        first = self.own(rank)[number][0]
        at = self.stage_start(rank, number) - first
        return (slice(at + start, at + stop),)

    def _holder(self, host: int, number: int, element: int) -> int:
        pieces = self.pieces(host, number)
        place = next(i for i, (a, b) in enumerate(pieces) if a <= element < b)
        return self.members[host][place]
