"""Sums of many float32 numbers over outer dims, which NumPy adds up one by one.

Along contiguous elements NumPy adds pairs of pairs. Over other dims each sum is one long chain: of
ten million terms the last hardly count (4 % are lost where all are equal). Here such a dim is cut
into blocks, whose sums are cut into blocks again.
"""

from __future__ import annotations

from math import prod

import numpy as np

from oneflow.kernels.array import Array, ArrayModule, at

_BLOCK = 256
LEAST = 4096
"""Terms from which blocks are worth their calls."""


def is_long_chain(xp: ArrayModule, x: Array, dims: tuple[int, ...]) -> bool:
    """Does NumPy add up a sum over `dims` of x in long chains? A GPU adds in trees."""
    if x.size < LEAST or xp.__name__ != "numpy" or len(dims) == x.ndim or x.dtype.kind not in "fcV":
        return False
    outer: int = prod(x.shape[d] for d in dims if d != x.ndim - 1)
    return outer >= LEAST


def sum_in_blocks(x: Array, dims: tuple[int, ...], dtype: type[np.generic]) -> Array:
    """The sum over `dims`, which stay as dims of 1."""
    dim = max(dims, key=lambda d: x.shape[d])
    size, before = x.shape[dim], (slice(None),) * dim
    if size <= _BLOCK:
        total: Array = x.sum(axis=dims, keepdims=True, dtype=dtype)
        return total
    count = size // _BLOCK
    whole = x[at(*before, slice(0, count * _BLOCK))]
    blocks = whole.reshape(*x.shape[:dim], count, _BLOCK, *x.shape[dim + 1 :])
    sums = blocks.sum(axis=dim + 1, dtype=dtype)
    if size % _BLOCK:
        rest = x[at(*before, slice(count * _BLOCK, None))].sum(axis=dim, keepdims=True, dtype=dtype)
        sums[at(*before, slice(0, 1))] += rest
    return sum_in_blocks(sums, dims, dtype)
