"""Patterns of exchanges that are a plain all_gather or reduce_scatter of equal parts, for backends
that have those as single calls. It follows from the exchange alone, so all ranks find the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from oneflow.boxing.collectives.exchange import Exchange, Read

Slices = tuple[slice, ...]


@lru_cache(maxsize=1024)
def pattern(exchange: Exchange) -> str:
    """ "all_gather", "reduce_scatter", or "" for anything else.

    all_gather: every rank reads the beginning of everyone's source, of one size, into consecutive
    rows of its target.  reduce_scatter: rank i sums up the i-th block of rows of everyone's source.
    """
    if len(exchange.ranks) < 2 or exchange.zero_filled:
        return ""
    reads = [exchange.reads(rank) for rank in exchange.ranks]
    if not all(_is_of_all(mine, exchange.ranks) for mine in reads):
        return ""
    if all(_is_gather(mine) for mine in reads):
        return "all_gather"
    if all(_is_sum_of_block(mine, i) for i, mine in enumerate(reads)):
        return "reduce_scatter"
    return ""


def _is_of_all(reads: Sequence[Read], ranks: Sequence[int]) -> bool:
    """One read of each rank, all of one size and with rows."""
    return (
        sorted(read.source_rank for read in reads) == list(ranks)
        and len({read.numel for read in reads}) == 1
        and reads[0].numel > 0
        and len(reads[0].target_slices) > 0
    )


def _is_gather(reads: Sequence[Read]) -> bool:
    in_order = sorted(reads, key=lambda read: read.source_rank)
    return all(
        not read.add
        and _begins(read.source_slices)
        and _is_block(read.target_slices, i)
        and read.target_slices[1:] == reads[0].target_slices[1:]
        for i, read in enumerate(in_order)
    )


def _is_sum_of_block(reads: Sequence[Read], index: int) -> bool:
    return all(
        read.add == (k > 0)
        and _begins(read.target_slices)
        and _is_block(read.source_slices, index)
        and read.source_slices == reads[0].source_slices
        for k, read in enumerate(reads)
    )


def _begins(slices: Slices) -> bool:
    return all(s.start == 0 for s in slices)


def _is_block(slices: Slices, index: int) -> bool:
    """Block `index` of blocks of rows of equal size."""
    rows = slices[0].stop - slices[0].start
    return slices[0].start == index * rows and _begins(slices[1:])


def blocks_of(slices: Slices, count: int) -> Slices:
    """All `count` blocks of which `slices` are one."""
    rows = slices[0].stop - slices[0].start
    return (slice(0, count * rows), *slices[1:])
