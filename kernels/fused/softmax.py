"""Softmax of float32 rows in one visit of each row, while it is in the first-level cache.

Every function here takes contiguous (rows, columns) arrays with at least one column and runs on all numba threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from oneflow.kernels.fused.math import F, exp, inlined, maximum, vectorized

BLOCK_ELEMENTS = 2048


@inlined
def row_max(x: Any, i: Any, columns: Any) -> Any:
    """Largest of the first `columns` elements of row i."""
    best = x[i, 0]
    for j in range(columns):
        best = maximum(best, x[i, j])
    return best


@inlined
def exp_row(out: Any, x: Any, i: Any, columns: Any, best: Any, scale: Any) -> Any:
    """out[i] <- exp(scale * (x[i] - best)) in the first `columns`; returns their sum."""
    total = F(0)
    for j in range(columns):
        e = exp((x[i, j] - best) * scale)
        out[i, j] = e
        total += e
    return total


@inlined
def rows_per_block(columns: Any) -> Any:
    """Rows that are visited together: the steps of one short row wait for each other, those of several do not."""
    return max(1, BLOCK_ELEMENTS // columns)


@vectorized
def softmax(out: Any, stat: Any, x: Any) -> None:
    """out <- softmax of each row of x.   stat: (rows,), overwritten."""
    rows, columns = x.shape
    size = rows_per_block(columns)
    for block in prange((rows + size - 1) // size):
        start = np.int64(block) * size
        stop = min(rows, start + size)
        for i in range(start, stop):
            stat[i] = row_max(x, i, columns)
        for i in range(start, stop):
            stat[i] = F(1) / exp_row(out, x, i, columns, stat[i], F(1))
        for i in range(start, stop):
            inverse = stat[i]
            for j in range(columns):
                out[i, j] *= inverse


@vectorized
def causal_softmax(out: Any, stat: Any, x: Any, scale: Any, period: Any) -> None:
    """out <- softmax of scale * x, where row i sees its first columns - period + 1 + i % period columns; scale > 0."""
    rows, columns = x.shape
    size = rows_per_block(columns)
    for block in prange((rows + size - 1) // size):
        start = np.int64(block) * size
        stop = min(rows, start + size)
        for i in range(start, stop):
            stat[i] = row_max(x, i, columns - period + 1 + i % period)
        for i in range(start, stop):
            seen = columns - period + 1 + i % period
            stat[i] = F(1) / exp_row(out, x, i, seen, stat[i], scale)
        for i in range(start, stop):
            seen = columns - period + 1 + i % period
            inverse = stat[i]
            for j in range(seen):
                out[i, j] *= inverse
            for j in range(seen, columns):
                out[i, j] = F(0)


@vectorized
def softmax_grad(d_x: Any, d_out: Any, out: Any, scale: Any) -> None:
    """d_x <- scale * out * (d_out - <d_out, out>) of each row."""
    for i in prange(out.shape[0]):
        along = F(0)
        for j in range(out.shape[1]):
            along += d_out[i, j] * out[i, j]
        for j in range(out.shape[1]):
            d_x[i, j] = scale * out[i, j] * (d_out[i, j] - along)


@vectorized
def log_softmax(out: Any, stat: Any, x: Any) -> None:
    """out <- x - log of the sum of exp(x) of each row.   stat: (rows,), overwritten."""
    rows, columns = x.shape
    size = rows_per_block(columns)
    for block in prange((rows + size - 1) // size):
        start = np.int64(block) * size
        stop = min(rows, start + size)
        for i in range(start, stop):
            stat[i] = row_max(x, i, columns)
        for i in range(start, stop):
            stat[i] += np.log(exp_row(out, x, i, columns, stat[i], F(1)))
        for i in range(start, stop):
            shift = stat[i]
            for j in range(columns):
                out[i, j] = x[i, j] - shift


@vectorized
def log_softmax_grad(d_x: Any, d_out: Any, out: Any) -> None:
    """d_x <- d_out - exp(out) * sum of d_out of each row."""
    for i in prange(out.shape[0]):
        total = F(0)
        for j in range(out.shape[1]):
            total += d_out[i, j]
        for j in range(out.shape[1]):
            d_x[i, j] = d_out[i, j] - exp(out[i, j]) * total
