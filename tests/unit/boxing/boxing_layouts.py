"""Global tensors cut into shards and put together again, written anew for tests."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from oneflow.core.placement import Placement, coordinates
from oneflow.core.sbp import BROADCAST, PARTIAL, NdSbp, Sbp, Split

Array = np.ndarray[Any, Any]
LETTERS: tuple[Sbp, ...] = (Split(0), Split(1), BROADCAST, PARTIAL)


def all_sbp(num_axes: int) -> list[NdSbp]:
    return list(itertools.product(LETTERS, repeat=num_axes))


def _cut(whole: Array, nd_sbp: NdSbp, hierarchy: tuple[int, ...], at: tuple[int, ...]) -> Array:
    part = whole
    for sbp, parts, index in zip(nd_sbp, hierarchy, at, strict=True):
        if sbp.is_split:
            part = np.array_split(part, parts, axis=sbp.dim)[index]
    return part


def scatter(whole: Array, nd_sbp: NdSbp, placement: Placement, seed: int = 0) -> dict[int, Array]:
    """Shards of `whole`; partial sums are small random integers that add up to it exactly."""
    axes = [i for i, s in enumerate(nd_sbp) if s.is_partial]
    counts = [placement.hierarchy[i] for i in axes]
    rng = np.random.default_rng(seed)
    addends = rng.integers(-8, 8, (*counts, *whole.shape)).astype(whole.dtype)
    lead = tuple(range(len(axes)))
    last = (-1,) * len(axes)
    addends[last] += whole - addends.sum(axis=lead) if axes else whole - addends
    result = {}
    for rank, at in zip(placement.rank_ids, coordinates(placement.hierarchy), strict=True):
        addend = addends[tuple(at[i] for i in axes)]
        result[rank] = _cut(addend, nd_sbp, placement.hierarchy, at).copy(order="C")
    return result


def gathered(
    shards: dict[int, Array], shape: tuple[int, ...], nd_sbp: NdSbp, placement: Placement
) -> Array:
    """The whole of its shards; fails if copies along a broadcast axis differ."""
    dtype = next(iter(shards.values())).dtype
    copies: dict[tuple[int, ...], Array] = {}
    index = np.arange(int(np.prod(shape))).reshape(shape)
    for rank, at in zip(placement.rank_ids, coordinates(placement.hierarchy), strict=True):
        key = tuple(i for s, i in zip(nd_sbp, at, strict=True) if s.is_broadcast)
        where = _cut(index, nd_sbp, placement.hierarchy, at)
        whole = copies.setdefault(key, np.zeros(shape, dtype))
        assert shards[rank].shape == where.shape
        whole.reshape(-1)[where.reshape(-1)] += shards[rank].reshape(-1)
    first, *others = copies.values()
    for other in others:
        np.testing.assert_array_equal(other, first)
    return first
