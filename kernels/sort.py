"""Kernels of oneflow/ops/sort.py."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel

Array = Any


def _order(xp: Any, x: Array, dim: int, descending: bool) -> Array:
    """Positions along `dim` in a stable order. CuPy does not sort bfloat16; float32 is exact."""
    if x.dtype.name == "bfloat16" and xp.__name__ == "cupy":
        x = x.astype(xp.float32)
    if not descending:
        return xp.argsort(x, axis=dim, kind="stable")
    # Backwards through the reversed elements, so that equals keep their order.
    order = xp.argsort(xp.flip(x, dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - xp.flip(order, dim)


@kernel("sort")
def sort(
    xp: Any, values: Array, index: Array, x: Array, *, dim: int, descending: bool = False
) -> None:
    index[...] = _order(xp, x, dim, descending)
    values[...] = xp.take_along_axis(x, index, dim)


@kernel("topk")
def topk(
    xp: Any, values: Array, index: Array, x: Array, *, k: int, dim: int, largest: bool = True
) -> None:
    order = _order(xp, x, dim, largest)
    index[...] = order[(slice(None),) * dim + (slice(0, k),)]
    values[...] = xp.take_along_axis(x, index, dim)
