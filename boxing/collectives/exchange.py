"""Exchanges: the parts that each rank packs for others in one collective, and its reads.

All ranks compute the same `Exchange`, so a reader knows where in the sender's packed data its part
begins, and no lengths or offsets are ever sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np

from oneflow.boxing.boxes import Pull, balanced_part, copies_of
from oneflow.boxing.transitions import RouteStep, leaves_gaps, phases
from oneflow.core.errors import DesyncError
from oneflow.kernels.array import Array

Slices = tuple[slice, ...]
_Key = tuple[tuple[int, int], ...]


def combine(reduce: np.ufunc, a: Array, b: Array, out: Array) -> None:
    """out = reduce(a, b), a ufunc, by IEEE 754 regardless of the caller's `np.seterr`: as in every
    op an overflow is an infinity, neither an error in the middle of a call nor a warning.
    """
    with np.errstate(all="ignore"):
        reduce(a, b, out=out)


def combine_all(reduce: np.ufunc, pieces: Sequence[Array], into: Array) -> None:
    """into = the reduction of all pieces, first to last; it may be the first of them.

    16-bit floats of three or more ranks are added in float32 and rounded once, as in every kernel:
    with a rounding a rank, the later ranks hardly count. They travel as 16 bits, so a sum of sums
    (of several hosts, of several axes of a hierarchy, of NCCL's rings) is rounded once a hop.
    """
    if len(pieces) == 1:
        if pieces[0] is not into:
            np.copyto(into, pieces[0])
    elif len(pieces) > 2 and is_half(into.dtype):
        with np.errstate(all="ignore"):
            total = pieces[0].astype(np.float32)
            for piece in pieces[1:]:
                reduce(total, piece, out=total)
            into[...] = total
    else:
        combine(reduce, pieces[0], pieces[1], into)
        for piece in pieces[2:]:
            combine(reduce, into, piece, into)


def is_half(dtype: np.dtype[Any]) -> bool:
    """Is it float16 or bfloat16?"""
    return dtype.itemsize == 2 and dtype.kind in "fV"


def view_of(array: Array, slices: Slices) -> Array:
    """The Ellipsis makes it a view of a 0-d array too, where indexing alone would copy."""
    index: Any = (..., *slices)
    view: Array = array[index]
    return view


def need_source(rank: int, source: Array | None) -> Array:
    """The source of a rank that others read. Raises DesyncError if it has none."""
    if source is None:
        raise DesyncError(f"rank {rank} has no shard of a tensor that it should hold")
    return source


@dataclass(frozen=True)
class Packed:
    """Elements [offset, offset + numel) of a sender's packed data: `slices` of its source."""

    slices: tuple[slice, ...]
    offset: int
    numel: int


@dataclass(frozen=True)
class Read:
    """One read by a rank. offset: in the packed data of `source_rank`, if that is another."""

    source_rank: int
    source_slices: tuple[slice, ...]
    offset: int
    numel: int
    target_slices: tuple[slice, ...]
    add: bool


def chains(reads: Sequence[Read]) -> Iterator[list[Read]]:
    """The reads in order; a read that adds to the result of the one before it stays behind it."""
    chain: list[Read] = []
    for read in reads:
        if chain and read.add and read.target_slices == chain[0].target_slices:
            chain.append(read)
            continue
        if chain:
            yield chain
        chain = [read]
    if chain:
        yield chain


class Exchange:
    """The moves of one collective.

    ranks: those that take part. pulls_of: rank -> its reads (see `boxing.boxes.Pull`).

    Reads that add have the target slices of the read that they add to. copies: rank -> all ranks
    whose source is the same, for backends that may choose; none: nothing is known to be the same.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        pulls_of: Callable[[int], Sequence[Pull]],
        zero_filled: frozenset[int] = frozenset(),
        copies: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        self.ranks = tuple(ranks)
        self._copies = copies or {}
        self.zero_filled = zero_filled
        self._places: dict[int, dict[_Key, Packed]] = {rank: {} for rank in ranks}
        self._sizes = dict.fromkeys(ranks, 0)
        self._reads = {rank: tuple(map(self._read(rank), pulls_of(rank))) for rank in ranks}
        self.senders = {
            rank: tuple(
                dict.fromkeys(r.source_rank for r in self._reads[rank] if r.source_rank != rank)
            )
            for rank in ranks
        }

    def packed(self, rank: int) -> tuple[Packed, ...]:
        """Return the parts that `rank` packs for others, in order; a part that several read is
        packed once.
        """
        return tuple(self._places[rank].values())

    def packed_numel(self, rank: int) -> int:
        """Number of elements that `rank` packs."""
        return self._sizes[rank]

    def reads(self, rank: int) -> tuple[Read, ...]:
        """Return the reads of `rank`, in order."""
        return self._reads[rank]

    def holders(self, rank: int) -> tuple[int, ...]:
        """The ranks whose source is the same as that of `rank`."""
        return self._copies.get(rank, (rank,))

    def received_numel(self, rank: int) -> int:
        """Number of elements that `rank` reads from others."""
        return sum(read.numel for read in self._reads[rank] if read.source_rank != rank)

    @cached_property
    def signature(self) -> int:
        """A digest of all reads: equal on two ranks that mean the same exchange."""
        reads = [
            (rank, [(r.source_rank, r.source_slices, r.target_slices, r.add) for r in reads])
            for rank, reads in self._reads.items()
        ]
        digest = hashlib.blake2b(repr(reads).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def _read(self, rank: int) -> Callable[[Pull], Read]:
        def read(pull: Pull) -> Read:
            numel = pull.numel
            offset = 0 if pull.source_rank == rank else self._place(pull, numel)
            return Read(
                pull.source_rank, pull.source_slices, offset, numel, pull.target_slices, pull.add
            )

        return read

    def _place(self, pull: Pull, numel: int) -> int:
        places = self._places[pull.source_rank]
        key = tuple((s.start, s.stop) for s in pull.source_slices)
        found = places.get(key)
        if found is None:
            offset = self._sizes[pull.source_rank]
            found = places[key] = Packed(pull.source_slices, offset, numel)
            self._sizes[pull.source_rank] = offset + numel
        return found.offset


@lru_cache(maxsize=1024)
def step_exchanges(shape: tuple[int, ...], step: RouteStep) -> tuple[Exchange, ...]:
    """The dependent exchanges of one step of a route: the first from the shards of the source, a
    second between the new shards."""
    ranks = sorted({*step.src_placement.rank_ids, *step.dst_placement.rank_ids})
    zero = frozenset(r for r in ranks if leaves_gaps(shape, step, r))
    first, *more = phases(step)
    copies = copies_of(shape, step.src_sbp, step.src_placement)
    return (
        Exchange(ranks, lambda rank: first(shape, rank), zero, copies),
        *(Exchange(ranks, partial(pulls_of, shape)) for pulls_of in more),
    )


@lru_cache(maxsize=1024)
def gather_exchange(ranks: tuple[int, ...], counts: tuple[int, ...]) -> Exchange:
    """Everyone gets the flat parts of all, one after the other; counts: elements of each."""
    starts = np.concatenate(([0], np.cumsum(counts))).tolist()

    def pulls_of(rank: int) -> list[Pull]:
        return [
            Pull(source, (slice(0, counts[i]),), (slice(starts[i], starts[i + 1]),), False)
            for i, source in enumerate(ranks)
            if counts[i]
        ]

    return Exchange(ranks, pulls_of)


@lru_cache(maxsize=1024)
def scatter_exchange(ranks: tuple[int, ...], numel: int, block: int) -> Exchange:
    """Rank i gets its balanced part of the sum of flat arrays; `block` elements stay together."""
    num_blocks = numel // block

    def pulls_of(rank: int) -> list[Pull]:
        start, stop = balanced_part(num_blocks, len(ranks), ranks.index(rank))
        part, mine = slice(start * block, stop * block), slice(0, (stop - start) * block)
        if start == stop:
            return []
        return [Pull(source, (part,), (mine,), i > 0) for i, source in enumerate(ranks)]

    return Exchange(ranks, pulls_of)


@lru_cache(maxsize=1024)
def all_to_all_exchange(ranks: tuple[int, ...], count: int) -> Exchange:
    """Rank i gets part i of everyone's flat array of equal parts of `count` elements."""

    def pulls_of(rank: int) -> list[Pull]:
        own = ranks.index(rank)
        source = (slice(own * count, (own + 1) * count),)
        return [
            Pull(peer, source, (slice(i * count, (i + 1) * count),), False)
            for i, peer in enumerate(ranks)
            if count
        ]

    return Exchange(ranks, pulls_of)


@lru_cache(maxsize=1024)
def sum_exchange(ranks: tuple[int, ...], numel: int) -> Exchange:
    """Everyone reads all of everyone and adds up, in rank order: one hop, for small arrays."""

    def pulls_of(rank: int) -> list[Pull]:
        whole = (slice(0, numel),)
        return [Pull(source, whole, whole, i > 0) for i, source in enumerate(ranks) if numel]

    return Exchange(ranks, pulls_of)
