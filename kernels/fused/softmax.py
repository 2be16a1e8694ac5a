"""Softmax of float32 rows in one visit of each row, while it is in the first-level cache.

Every function here takes contiguous (rows, columns) arrays with at least one column and runs on all
numba threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import F, exp_down, inlined, maximum, vectorized

BLOCK_ELEMENTS = 2048


@inlined
def row_max(x: Array, i: int, columns: int) -> Any:
    """Largest of the first `columns` elements of row i."""
    best = x[i, 0]
    for j in range(columns):
        best = maximum(best, x[i, j])
    return best


@inlined
def exp_row(out: Array, x: Array, i: int, columns: int, best: float, scale: float) -> Any:
    """out[i] <- exp(scale * (x[i] - best)) in the first `columns`; returns their sum."""
    total = F(0)
    for j in range(columns):
        e = exp_down((x[i, j] - best) * scale)
        out[i, j] = e
        total += e
    return total


@inlined
def rows_per_block(columns: int) -> Any:
    """Rows that are visited together: the steps of one short row wait for each other, those of
    several do not.
    """
    return max(1, BLOCK_ELEMENTS // columns)


@vectorized
def softmax(out: Array, stat: Array, x: Array) -> None:
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


@inlined
def masked_row(out: Array, x: Array, i: int, columns: int, seen: int, scale: float) -> Any:
    """out[i] <- exp(scale * (x[i] - max)) in the first `seen` columns, 0 in the next; returns the
    sum.

    Works on `columns` whole vectors and selects, which beats a loop that ends in the middle of one.
    """
    best = x[i, 0]
    for j in range(columns):
        best = maximum(best, x[i, j] if j < seen else best)
    total = F(0)
    for j in range(columns):
        e = exp_down((x[i, j] - best) * scale)
        e = e if j < seen else F(0)
        out[i, j] = e
        total += e
    return total


@vectorized
def causal_softmax(out: Array, stat: Array, x: Array, scale: float, period: int) -> None:
    """out <- softmax of scale * x; row i sees its first columns - period + 1 + i % period columns.

    scale > 0.  stat: (rows,), overwritten.
    """
    rows, columns = x.shape
    size = rows_per_block(columns)
    for block in prange((rows + size - 1) // size):
        start = np.int64(block) * size
        stop = min(rows, start + size)
        for i in range(start, stop):
            seen = columns - period + 1 + i % period
            touched = min(columns, (seen + 63) // 64 * 64)
            stat[i] = F(1) / masked_row(out, x, i, touched, seen, scale)
        for i in range(start, stop):
            seen = columns - period + 1 + i % period
            touched = min(columns, (seen + 63) // 64 * 64)
            inverse = stat[i]
            for j in range(touched):
                out[i, j] *= inverse
            for j in range(touched, columns):
                out[i, j] = F(0)


@vectorized
def softmax_grad(d_x: Array, d_out: Array, out: Array, scale: float) -> None:
    """d_x <- scale * out * (d_out - <d_out, out>) of each row."""
    for i in prange(out.shape[0]):
        along = F(0)
        for j in range(out.shape[1]):
            along += d_out[i, j] * out[i, j]
        for j in range(out.shape[1]):
            d_x[i, j] = scale * out[i, j] * (d_out[i, j] - along)


@vectorized
def log_softmax(out: Array, stat: Array, x: Array) -> None:
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
def log_softmax_grad(d_x: Array, d_out: Array, out: Array) -> None:
    """d_x <- d_out - exp(out) * sum of d_out of each row."""
    for i in prange(out.shape[0]):
        total = F(0)
        for j in range(out.shape[1]):
            total += d_out[i, j]
        for j in range(out.shape[1]):
            d_x[i, j] = d_out[i, j] - exp_down(out[i, j]) * total
