"""Kernels of oneflow/ops/sort.py."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


def _order(xp: ArrayModule, x: Array, dim: int, descending: bool) -> Array:
    """Positions along `dim` in a stable order. CuPy does not sort bfloat16, and NumPy leaves its
    NaNs anywhere; float32 is exact."""
    if x.dtype.name == "bfloat16":
        x = x.astype(xp.float32)
    if not descending:
        ascending: Array = xp.argsort(x, axis=dim, kind="stable")
        return ascending
    # Backwards through the reversed elements, so that equals keep their order.
    backwards = xp.argsort(xp.flip(x, dim), axis=dim, kind="stable")
    order: Array = x.shape[dim] - 1 - xp.flip(backwards, dim)
    return order


@kernel("sort")
def sort(
    xp: ArrayModule, values: Array, index: Array, x: Array, *, dim: int, descending: bool
) -> None:
    index[...] = _order(xp, x, dim, descending)
    values[...] = xp.take_along_axis(x, index, dim)


@kernel("topk")
def topk(
    xp: ArrayModule, values: Array, index: Array, x: Array, *, k: int, dim: int, largest: bool
) -> None:
    order = _order(xp, x, dim, largest)
    index[...] = order[(slice(None),) * dim + (slice(0, k),)]
    values[...] = xp.take_along_axis(x, index, dim)
