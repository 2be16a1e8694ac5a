"""Kernel and view of oneflow/ops/depend.py."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel, view


@kernel("depend")
def depend(xp: ArrayModule, out: Array, x: Array, after: Array) -> None:
    out[...] = x


@view("depend")
def depend_view(x: Array) -> Array:
    return x
