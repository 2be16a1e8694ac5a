"""The sum of squares of gradient clipping. Updates themselves are made from their formulas."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


@kernel("square_sum")
def square_sum(xp: ArrayModule, out: Array, x: Array) -> None:
    flat = xp.ascontiguousarray(x, dtype=out.dtype).reshape(-1)
    out[...] = xp.dot(flat, flat)
