"""Kernel of `full_like`. The other unary ops have formulas."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


@kernel("full_like")
def full_like(xp: ArrayModule, out: Array, x: Array, *, value: float) -> None:
    out.fill(value)
