"""The meaning of an exchange over connections for one rank: the parts it sends to each peer, and
where to put those it receives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from oneflow.boxing.collectives.exchange import Exchange, Slices


@dataclass(frozen=True)
class Sum:
    """target = operands, added up in order. operands: (rank, slices of its source).

    onto: the target itself comes first.
    """

    target: Slices
    operands: tuple[tuple[int, Slices], ...]
    onto: bool


@dataclass(frozen=True)
class Wire:
    """One rank's part in an exchange, sorted by peer.

    outgoing: reader -> parts of the own source.  incoming: sender -> (target slices, index of the
    sum that it is an operand of, or None to fill the target).  local: from the own source.
    repeated: parts that this rank wants twice: from where in the target to where.
    """

    outgoing: dict[int, list[Slices]] = field(default_factory=dict)
    incoming: dict[int, list[tuple[Slices, int | None]]] = field(default_factory=dict)
    incoming_numel: dict[int, int] = field(default_factory=dict)
    sums: list[Sum] = field(default_factory=list)
    local: list[tuple[Slices, Slices]] = field(default_factory=list)
    repeated: list[tuple[Slices, Slices]] = field(default_factory=list)
    fills_zero: bool = False


@lru_cache(maxsize=256)
def wire_of(exchange: Exchange, rank: int) -> Wire:
    """Return the sends, receives and copies of `rank`, each part once for a reader."""
    wire = Wire(fills_zero=rank in exchange.zero_filled)
    for reader in exchange.ranks:
        if reader != rank and rank in exchange.senders[reader]:
            wire.outgoing[reader] = [s for r, s, _, _ in _parts(exchange, reader) if r == rank]
    for source, slices, target, number in _parts(exchange, rank):
        if source != rank:
            numel = math.prod(s.stop - s.start for s in target)
            wire.incoming.setdefault(source, []).append((target, number))
            wire.incoming_numel[source] = wire.incoming_numel.get(source, 0) + numel
        elif number is None:
            wire.local.append((slices, target))
    wire.sums.extend(_sums(exchange, rank))
    wire.repeated.extend(_repeated(exchange, rank))
    return wire


@lru_cache(maxsize=256)
def _sums(exchange: Exchange, rank: int) -> tuple[Sum, ...]:
    chains: dict[Any, list[Any]] = {}
    for read in exchange.reads(rank):
        if read.numel:
            chains.setdefault(_key(read.target_slices), []).append(read)
    return tuple(
        Sum(
            reads[0].target_slices,
            tuple((r.source_rank, r.source_slices) for r in reads),
            reads[0].add,
        )
        for reads in chains.values()
        if len(reads) > 1 or reads[0].add
    )


@lru_cache(maxsize=256)
def _parts(exchange: Exchange, rank: int) -> tuple[tuple[int, Slices, Slices, int | None], ...]:
    """(source rank, its slices, target slices, number of the sum) of all that `rank` takes in, in
    order; a part that only fills memory comes once."""
    numbers = {_key(s.target): i for i, s in enumerate(_sums(exchange, rank))}
    seen: set[Any] = set()
    found = []
    for read in exchange.reads(rank):
        number = numbers.get(_key(read.target_slices))
        part = read.source_rank, _key(read.source_slices)
        if read.numel == 0 or (number is None and part in seen and read.source_rank != rank):
            continue
        if number is None:
            seen.add(part)
        found.append((read.source_rank, read.source_slices, read.target_slices, number))
    return tuple(found)


def _repeated(exchange: Exchange, rank: int) -> Iterator[tuple[Slices, Slices]]:
    numbers = {_key(s.target) for s in _sums(exchange, rank)}
    first: dict[Any, Slices] = {}
    for read in exchange.reads(rank):
        if read.numel == 0 or read.source_rank == rank or _key(read.target_slices) in numbers:
            continue
        part = read.source_rank, _key(read.source_slices)
        if part in first:
            yield first[part], read.target_slices
        first.setdefault(part, read.target_slices)


def _key(slices: Slices) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in slices)
