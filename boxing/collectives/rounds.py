"""An exchange cut into rounds, so that large data pass through a small shared area.

Every part that a rank packs for others is cut into as many pieces as there are rounds, and round k
moves piece k of every part: so all readers are busy in all rounds, and a sum adds up its pieces in
rank order in each round. All ranks know all parts, so they agree on the rounds without a word.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from oneflow.boxing.collectives.exchange import (
    Exchange,
    Packed,
    Slices,
    chains,
    combine_all,
    view_of,
)
from oneflow.core.errors import DesyncError, InternalError
from oneflow.kernels.array import Array

MAX_ROUNDS_KEPT = 16384
"""Rounds kept of all exchanges together, the newest; a round takes one or two KB."""

_FINE = 16
"""A cut may move by a piece divided by this to come to the end of a row, which is simpler."""

_SPARE = 1.1
"""So much larger than the mean a piece can then be: by 1/16 + 1/32."""


@dataclass(frozen=True, slots=True)
class Put:
    """`slices` of the source, of `shape`, go to elements [start, stop) of the own slot."""

    slices: Slices
    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Addend:
    """One operand: of the slot of `rank`, or (rank None) `slices` of the own source."""

    rank: int | None
    slices: Slices
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Take:
    """`slices` of the target, of `shape`, become the sum of `addends`, first to last.

    onto: add to the target instead.
    """

    slices: Slices
    shape: tuple[int, ...]
    addends: tuple[Addend, ...]
    onto: bool


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a rank.

    own: takes that need no peer. takes: those that read from peers, in order.
    """

    puts: tuple[Put, ...]
    own: tuple[Take, ...]
    takes: tuple[Take, ...]


_plans: dict[tuple[Exchange, int, int], tuple[Round, ...]] = {}
_plans_lock = threading.Lock()


@lru_cache(maxsize=1024)
def num_rounds(exchange: Exchange, slot_numel: int) -> int:
    """Return the number of rounds that all ranks need if a slot holds `slot_numel` elements; at
    least 1.
    """
    most = 1
    for rank in exchange.ranks:
        parts, numel = len(exchange.packed(rank)), exchange.packed_numel(rank)
        if numel > slot_numel:
            room = slot_numel - parts
            if room <= 0:
                raise InternalError(f"{parts} parts in a slot of {slot_numel} elements")
            most = max(most, math.ceil(numel * _SPARE / room))
    return most


def rounds_of(exchange: Exchange, rank: int, slot_numel: int) -> tuple[Round, ...]:
    """Return the work of `rank` in each round. Working it out takes as long as moving the data, so
    it is kept.
    """
    key = exchange, rank, slot_numel
    found = _plans.get(key)
    if found is None:
        count = num_rounds(exchange, slot_numel)
        found = tuple(_round(exchange, rank, k, count) for k in range(count))
        with _plans_lock:
            _plans[key] = found
            while len(_plans) > 1 and sum(map(len, _plans.values())) > MAX_ROUNDS_KEPT:
                del _plans[next(iter(_plans))]
    return found


def _round(exchange: Exchange, rank: int, k: int, count: int) -> Round:
    starts = {r: _starts(exchange.packed(r), k, count) for r in (rank, *exchange.senders[rank])}
    puts = []
    for part in exchange.packed(rank):
        at = starts[rank][part.offset]
        for box, n in _piece(_extent(part.slices), k, count):
            puts.append(Put(_within(part.slices, box), at, at + n, _shape(box)))
            at += n
    own: list[Take] = []
    takes: list[Take] = []
    for chain in chains(exchange.reads(rank)):
        local = len(chain) == 1 and chain[0].source_rank == rank and not chain[0].add
        done = 0
        for box, n in _piece(_extent(chain[0].target_slices), k, count):
            addends = []
            for read in chain:
                if read.source_rank == rank:
                    addends.append(Addend(None, _within(read.source_slices, box), 0, n))
                else:
                    at = starts[read.source_rank][read.offset] + done
                    addends.append(Addend(read.source_rank, (), at, at + n))
            target = _within(chain[0].target_slices, box)
            take = Take(target, _shape(box), tuple(addends), chain[0].add)
            (own if local else takes).append(take)
            done += n
    return Round(tuple(puts), tuple(own), tuple(takes))


def _starts(parts: Sequence[Packed], k: int, count: int) -> dict[int, int]:
    """Offset of a part in the whole packed data -> offset of its piece k in the slot."""
    starts, at = {}, 0
    for part in parts:
        starts[part.offset] = at
        low, high = _cut(_extent(part.slices), k, count)
        at += high - low
    return starts


def _extent(slices: Slices) -> tuple[int, ...]:
    return tuple(s.stop - s.start for s in slices)


_shape = _extent


def _piece(shape: tuple[int, ...], k: int, count: int) -> Iterator[tuple[Slices, int]]:
    low, high = _cut(shape, k, count)
    for box in boxes(shape, low, high):
        yield box, math.prod(_extent(box))


@lru_cache(maxsize=4096)
def _cut(shape: tuple[int, ...], k: int, count: int) -> tuple[int, int]:
    """Elements [low, high) of a part in row-major order; every part is cut by its shape alone."""
    numel = math.prod(shape)
    if count == 1:
        return 0, numel
    step = _cut_step(shape, numel // (count * _FINE))
    steps = -(-numel // step)
    return min(steps * k // count * step, numel), min(steps * (k + 1) // count * step, numel)


def _cut_step(shape: tuple[int, ...], most: int) -> int:
    """The largest run of whole rows with at most `most` elements; whole cache lines if rows are
    long."""
    step = 1
    for size in reversed(shape):
        if step * size > most:
            break
        step *= size
    lines = 64
    return lines if step == 1 and lines <= most else step


def boxes(shape: tuple[int, ...], low: int, high: int) -> Iterator[Slices]:
    """The boxes that elements [low, high) of an array of `shape`, in row-major order, consist of.

    In order; at most two for each dim, and one for the elements between.
    """
    if low >= high:
        return
    if not shape:
        yield ()
        return
    row, inner = math.prod(shape[1:]), shape[1:]
    first, last = -(-low // row), high // row
    if first > last:  # all inside one row
        for box in boxes(inner, low - last * row, high - last * row):
            yield slice(last, last + 1), *box
        return
    for box in boxes(inner, low - (first - 1) * row, row) if low < first * row else ():
        yield slice(first - 1, first), *box
    if first < last:
        yield slice(first, last), *(slice(0, n) for n in inner)
    for box in boxes(inner, 0, high - last * row):
        yield slice(last, last + 1), *box


def _within(slices: Slices, box: Slices) -> Slices:
    return tuple(
        slice(s.start + b.start, s.start + b.stop) for s, b in zip(slices, box, strict=True)
    )


def put(source: Array, puts: Sequence[Put], slot: Array) -> None:
    """Copies a round's pieces into the own slot."""
    for p in puts:
        piece = view_of(source, p.slices)
        np.copyto(slot[p.start : p.stop].reshape(p.shape), piece)


def take(
    source: Array | None,
    target: Array,
    takes: Sequence[Take],
    slots: dict[int, Array],
    reduce: np.ufunc,
) -> None:
    """Fills the target's pieces. slots: rank -> its slot.  reduce: a ufunc of two operands."""
    for t in takes:
        into = view_of(target, t.slices)
        pieces = [_operand(a, t.shape, source, slots) for a in t.addends]
        combine_all(reduce, [into, *pieces] if t.onto else pieces, into)


def _operand(
    addend: Addend, shape: tuple[int, ...], source: Array | None, slots: dict[int, Array]
) -> Any:
    if addend.rank is not None:
        return slots[addend.rank][addend.start : addend.stop].reshape(shape)
    if source is None:
        raise DesyncError("this rank has no shard of a tensor that it should hold")
    return view_of(source, addend.slices)
