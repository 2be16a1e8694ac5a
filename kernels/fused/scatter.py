"""Additions of rows at indices, as in the gradient of an embedding."""

from __future__ import annotations

from numba import prange

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import vectorized


@vectorized
def add_rows(target: Array, source: Array, index: Array, offset: Array, threads: int) -> None:
    """target[a, index[k] - offset] += source[a, k] for every k, in order; indices outside are left
    out.

    target: (before, size, after), source: (before, len(index), after); contiguous. Threads share
    the columns of `after`, not the rows, so that equal indices never meet and sums have one order.
    """
    before, size, after = target.shape
    threads = min(threads, max(1, after // 16))
    for t in prange(threads):
        first, last = after * t // threads, after * (t + 1) // threads
        for a in range(before):
            for k in range(index.size):
                row = index[k] - offset
                if 0 <= row < size:
                    for j in range(first, last):
                        target[a, row, j] += source[a, k, j]
