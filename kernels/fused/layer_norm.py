"""Gradients of layer norm of float32 rows. A few rows are visited together, so that their
reductions overlap in the processor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import F, inlined, vectorized

BLOCK_ELEMENTS = 2048


@inlined
def rows_per_block(columns: int) -> Any:
    """Rows that are visited together: the steps of one short row wait for each other, those of
    several do not.
    """
    return max(1, BLOCK_ELEMENTS // columns)


@vectorized
def layer_norm_grad(
    d_x: Array,
    d_y: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    gamma: Array,
    sums: Array,
    partial: Array,
) -> None:
    """d_x of layer_norm; the sums for d_gamma and d_beta of each part of the rows go to partial.

    sums: (rows, 2), overwritten.  partial: (parts, 2, columns): [:, 0] of d_y * hat, [:, 1] of d_y.
    """
    rows, columns = x.shape
    size = rows_per_block(columns)
    scale = F(1) / F(columns)
    parts = partial.shape[0]
    per_part = (rows + parts - 1) // parts
    for part in prange(parts):
        weighted, plain = partial[part, 0], partial[part, 1]
        for j in range(columns):
            weighted[j] = F(0)
            plain[j] = F(0)
        begin = np.int64(part) * per_part
        end = min(rows, begin + per_part)
        for start in range(begin, end, size):
            stop = min(end, start + size)
            for i in range(start, stop):
                centre, inverse = mean[i], inv_std[i]
                along, total = F(0), F(0)
                for j in range(columns):
                    g = d_y[i, j] * gamma[j]
                    total += g
                    along += g * (x[i, j] - centre)
                sums[i, 0] = along * inverse * scale
                sums[i, 1] = total * scale
            for i in range(start, stop):
                centre, inverse = mean[i], inv_std[i]
                along, total = sums[i, 0], sums[i, 1]
                for j in range(columns):
                    hat = (x[i, j] - centre) * inverse
                    d_x[i, j] = inverse * (d_y[i, j] * gamma[j] - total - hat * along)
            # Apart from the loop above: with fewer arrays in a loop LLVM can prove them apart and
            # use vector code.
            for i in range(start, stop):
                centre, inverse = mean[i], inv_std[i]
                for j in range(columns):
                    weighted[j] += d_y[i, j] * ((x[i, j] - centre) * inverse)
                    plain[j] += d_y[i, j]
