"""Dropout of float32 arrays: Philox2x32-10 per element, bit for bit that of oneflow/core/rng.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from oneflow.kernels.fused.math import F, inlined, vectorized

_MULTIPLIER = np.uint64(0xD256D193)
_WEYL = np.uint32(0x9E3779B9)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


@inlined
def first_word(index: Any, key: Any, fold: Any) -> Any:
    """The first uint32 word of counter `index`; key, fold: the halves of the seed."""
    left = np.uint32(index & _LOW)
    right = np.uint32(index >> _SHIFT) ^ fold
    for _ in range(10):
        made = np.uint64(left) * _MULTIPLIER
        left = np.uint32(made >> _SHIFT) ^ key ^ right
        right = np.uint32(made & _LOW)
        key = np.uint32(key + _WEYL)
    return left


@vectorized
def dropout(
    out: Any,
    x: Any,
    shape: Any,
    starts: Any,
    whole: Any,
    threshold: Any,
    scale: Any,
    key: Any,
    fold: Any,
) -> None:
    """out, x: flat. The array is a box of `shape` at `starts` in one of shape `whole` (int64
    arrays).

    An element is kept if its word is at least threshold (uint64). Rows of the box may end before
    their last column.
    """
    columns = shape[-1]
    for row in prange((x.size + columns - 1) // columns):
        rest, index, stride = np.int64(row), starts[-1], whole[-1]
        for dim in range(shape.size - 2, -1, -1):
            index += (rest % shape[dim] + starts[dim]) * stride
            rest //= shape[dim]
            stride *= whole[dim]
        begin = np.int64(row) * columns
        first = np.uint64(index)
        source, target = x[begin : begin + columns], out[begin : begin + columns]
        for j in range(source.size):
            word = first_word(first + np.uint64(j), key, fold)
            kept = np.uint64(word) >= threshold
            target[j] = source[j] * scale if kept else F(0)
