"""Cross entropy of float32 logits in one visit of each row."""

from __future__ import annotations

import numpy as np
from numba import prange

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import F, exp_down, vectorized
from oneflow.kernels.fused.softmax import row_max, rows_per_block


@vectorized
def cross_entropy(
    loss: Array, lse: Array, logits: Array, labels: Array, ignore_index: int, smoothing: float
) -> None:
    """loss, lse: (rows,); logits: (rows, classes); labels outside the classes count as ignored."""
    rows, classes = logits.shape
    size = rows_per_block(classes)
    for block in prange((rows + size - 1) // size):
        start = np.int64(block) * size
        stop = min(rows, start + size)
        for i in range(start, stop):
            lse[i] = row_max(logits, i, classes)
        for i in range(start, stop):
            best, total = lse[i], F(0)
            for j in range(classes):
                total += exp_down(logits[i, j] - best)
            lse[i] = best + np.log(total)
        for i in range(start, stop):
            label = labels[i]
            if label == ignore_index or label < 0 or label >= classes:
                loss[i] = F(0)
                continue
            wanted = logits[i, label]
            if smoothing > F(0):
                total = F(0)
                for j in range(classes):
                    total += logits[i, j]
                wanted = wanted * (F(1) - smoothing) + total * (smoothing / F(classes))
            loss[i] = lse[i] - wanted


@vectorized
def cross_entropy_grad(
    d_logits: Array,
    d_loss: Array,
    logits: Array,
    labels: Array,
    lse: Array,
    ignore_index: int,
    smoothing: float,
) -> None:
    """d_logits <- d_loss * (softmax(logits) - target) of each row."""
    rows, classes = logits.shape
    size = rows_per_block(classes)
    spread = smoothing / F(classes)
    for block in prange((rows + size - 1) // size):
        start = np.int64(block) * size
        for i in range(start, min(rows, start + size)):
            label, shift = labels[i], lse[i]
            if label == ignore_index or label < 0 or label >= classes:
                for j in range(classes):
                    d_logits[i, j] = F(0)
                continue
            d = d_loss[i]
            for j in range(classes):
                d_logits[i, j] = d * (exp_down(logits[i, j] - shift) - spread)
            d_logits[i, label] -= d * (F(1) - smoothing)
