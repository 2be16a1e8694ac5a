"""Kernels of oneflow/ops/concat.py."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


@kernel("concat")
def concat(xp: ArrayModule, out: Array, *xs: Array, dim: int) -> None:
    start = 0
    for x in xs:
        stop = start + x.shape[dim]
        out[(slice(None),) * dim + (slice(start, stop),)] = x
        start = stop


@kernel("split")
def split(xp: ArrayModule, *arrays: Array, sizes: tuple[int, ...], dim: int) -> None:
    *outs, x = arrays
    start = 0
    for out in outs:
        stop = start + out.shape[dim]
        out[...] = x[(slice(None),) * dim + (slice(start, stop),)]
        start = stop
