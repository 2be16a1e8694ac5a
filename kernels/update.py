"""The sum of squares of gradient clipping. Updates themselves are made from their formulas."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel


@kernel("square_sum")
def square_sum(xp: Any, out: Any, x: Any) -> None:
    flat = xp.ascontiguousarray(x, dtype=out.dtype).reshape(-1)
    out[...] = xp.dot(flat, flat)
