"""Kernels of oneflow/ops/scan.py: a pass over the dim, of which each step takes all other dims."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


@kernel("cumextreme")
def cumextreme(
    xp: ArrayModule, values: Array, indices: Array, x: Array, *, dim: int, largest: bool
) -> None:
    best, place = xp.moveaxis(values, dim, 0), xp.moveaxis(indices, dim, 0)
    source = xp.moveaxis(x, dim, 0)
    for i in range(source.shape[0]):
        if i == 0:
            best[0], place[0] = source[0], 0
            continue
        new, old = source[i], best[i - 1]
        is_better = (new >= old if largest else new <= old) | (new != new)
        best[i] = xp.where(is_better, new, old)
        place[i] = xp.where(is_better, i, place[i - 1])


@kernel("logcumsumexp")
def logcumsumexp(xp: ArrayModule, out: Array, x: Array, *, dim: int) -> None:
    into, source = xp.moveaxis(out, dim, 0), xp.moveaxis(x, dim, 0)
    running = None
    for i in range(source.shape[0]):
        row = source[i].astype(xp.float64)
        running = row if running is None else xp.logaddexp(running, row)
        into[i] = running
