"""Kernels and the view of oneflow/ops/slicing.py."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule, at
from oneflow.kernels.registry import kernel, view

Dims = tuple[int, ...]
Place = tuple[Dims, Dims]


def _index(starts: Dims, stops: Dims, steps: Dims) -> tuple[slice, ...]:
    return tuple(map(slice, starts, stops, steps))


def _part(x: Array, place: Place | None) -> Array:
    if place is None:
        return x
    return x[at(*map(slice, *place), ...)]  # with dots also of a tensor without dims a view


@kernel("slice")
def slice_kernel(
    xp: ArrayModule,
    out: Array,
    x: Array,
    *,
    starts: Dims,
    stops: Dims,
    steps: Dims,
    place: Place | None = None,
) -> None:
    if place is not None:
        out.fill(0)
    _part(out, place)[...] = x[_index(starts, stops, steps)]


@view("slice")
def slice_view(
    x: Array, *, starts: Dims, stops: Dims, steps: Dims, place: Place | None = None
) -> Array | None:
    if place is not None:
        return None
    # The dots make a view of a tensor without dims, too.
    return x[at(*_index(starts, stops, steps), ...)]


@kernel("slice_scatter")
def slice_scatter(
    xp: ArrayModule,
    out: Array,
    x: Array,
    *,
    shape: Dims,
    starts: Dims,
    stops: Dims,
    steps: Dims,
    taken: Place | None = None,
) -> None:
    out.fill(0)
    out[_index(starts, stops, steps)] = _part(x, taken)


@kernel("slice_update")
def slice_update(
    xp: ArrayModule,
    out: Array,
    ref: Array,
    value: Array,
    *,
    starts: Dims,
    stops: Dims,
    steps: Dims,
    taken: Place | None = None,
) -> None:
    out[...] = ref
    out[_index(starts, stops, steps)] = _part(value, taken)
