"""Exchanges between all ranks and one of them: `gather`, `scatter`, `reduce` and `send`."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from oneflow.boxing.boxes import Pull
from oneflow.boxing.collectives.exchange import Exchange


@lru_cache(maxsize=256)
def to_one(ranks: tuple[int, ...], counts: tuple[int, ...], dst: int) -> Exchange:
    """`dst` gets the flat parts of all, one after the other; counts: elements of each."""
    pulls = [
        Pull(r, (slice(0, n),), (part,), False)
        for r, n, part in zip(ranks, counts, _parts(counts), strict=True)
        if n
    ]
    return Exchange(ranks, lambda rank: pulls if rank == dst else [])


@lru_cache(maxsize=256)
def from_one(ranks: tuple[int, ...], counts: tuple[int, ...], src: int) -> Exchange:
    """Everyone gets its part of the flat array of `src`; counts: elements of each part."""
    parts = _parts(counts)

    def pulls_of(rank: int) -> list[Pull]:
        n, part = counts[ranks.index(rank)], parts[ranks.index(rank)]
        return [Pull(src, (part,), (slice(0, n),), False)] if n else []

    return Exchange(ranks, pulls_of)


@lru_cache(maxsize=256)
def sum_to_one(ranks: tuple[int, ...], numel: int, dst: int) -> Exchange:
    """`dst` gets the reduction of the flat arrays of all, in rank order."""
    whole = (slice(0, numel),)
    pulls = [Pull(r, whole, whole, i > 0) for i, r in enumerate(ranks) if numel]
    return Exchange(ranks, lambda rank: pulls if rank == dst else [])


def _parts(counts: tuple[int, ...]) -> list[slice]:
    ends = np.cumsum(counts).tolist()
    return [slice(end - n, end) for end, n in zip(ends, counts, strict=True)]
