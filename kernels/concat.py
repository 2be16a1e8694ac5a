"""Kernels of oneflow/ops/concat.py."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel

Array = Any


@kernel("concat")
def concat(xp: Any, out: Array, *xs: Array, dim: int) -> None:
    start = 0
    for x in xs:
        stop = start + x.shape[dim]
        out[(slice(None),) * dim + (slice(start, stop),)] = x
        start = stop


@kernel("split")
def split(xp: Any, *arrays: Array, sizes: tuple[int, ...], dim: int) -> None:
    *outs, x = arrays
    start = 0
    for out in outs:
        stop = start + out.shape[dim]
        out[...] = x[(slice(None),) * dim + (slice(start, stop),)]
        start = stop
