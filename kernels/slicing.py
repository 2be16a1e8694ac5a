"""Kernels and the view of oneflow/ops/slicing.py. Slices clip at the end, which makes them right on
shards too."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel, view

Array = Any
Dims = tuple[int, ...]


def _index(starts: Dims, stops: Dims, steps: Dims) -> tuple[slice, ...]:
    return tuple(map(slice, starts, stops, steps))


@kernel("slice")
def slice_kernel(xp: Any, out: Array, x: Array, *, starts: Dims, stops: Dims, steps: Dims) -> None:
    out[...] = x[_index(starts, stops, steps)]


@view("slice")
def slice_view(x: Array, *, starts: Dims, stops: Dims, steps: Dims) -> Array:
    # The dots make a view of a tensor without dims, too.
    index = (*_index(starts, stops, steps), Ellipsis)
    return x[index]


@kernel("slice_scatter")
def slice_scatter(
    xp: Any, out: Array, x: Array, *, shape: Dims, starts: Dims, stops: Dims, steps: Dims
) -> None:
    out.fill(0)
    out[_index(starts, stops, steps)] = x


@kernel("slice_update")
def slice_update(
    xp: Any, out: Array, ref: Array, value: Array, *, starts: Dims, stops: Dims, steps: Dims
) -> None:
    out[...] = ref
    out[_index(starts, stops, steps)] = value
