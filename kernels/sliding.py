"""Kernels and views of oneflow/ops/sliding.py."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule, at
from oneflow.kernels.hardware import strided
from oneflow.kernels.registry import compute_in_float32, kernel, view

compute_in_float32("unfold_grad", "as_strided_grad")

Dims = tuple[int, ...]


@view("unfold")
def unfold_view(x: Array, *, dim: int, size: int, step: int) -> Array:
    count = (x.shape[dim] - size) // step + 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :], size)
    strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :], x.strides[dim])
    return strided(x, shape, strides)


@kernel("unfold")
def unfold(xp: ArrayModule, out: Array, x: Array, *, dim: int, size: int, step: int) -> None:
    out[...] = unfold_view(x, dim=dim, size=size, step=step)


@kernel("unfold_grad")
def unfold_grad(xp: ArrayModule, out: Array, d: Array, *, dim: int, step: int, length: int) -> None:
    out.fill(0)
    before, count = (slice(None),) * dim, d.shape[dim]
    for k in range(d.shape[-1]):
        stop = k + step * (count - 1) + 1 if count else k
        target = out[at(*before, slice(k, stop, step))]
        target += d[..., k]


@view("as_strided")
def as_strided_view(x: Array, *, size: Dims, stride: Dims, offset: int) -> Array | None:
    """None for elements that do not lie in memory one after the other."""
    if not x.flags.c_contiguous:
        return None
    flat = x.reshape(-1)[offset:]
    return strided(flat, size, tuple(s * x.itemsize for s in stride))


@kernel("as_strided")
def as_strided(
    xp: ArrayModule, out: Array, x: Array, *, size: Dims, stride: Dims, offset: int
) -> None:
    whole = xp.ascontiguousarray(x)
    out[...] = as_strided_view(whole, size=size, stride=stride, offset=offset)


def _places(xp: ArrayModule, shape: Dims, stride: Dims, offset: int) -> Array:
    """The row-major position of each element of a view by strides."""
    places: Array = xp.asarray(offset)
    for n, s in zip(shape, stride, strict=True):
        places = places[..., None] + xp.arange(n) * s
    return places


@kernel("as_strided_grad")
def as_strided_grad(
    xp: ArrayModule, out: Array, d: Array, *, shape: Dims, stride: Dims, offset: int
) -> None:
    out.fill(0)
    places = _places(xp, d.shape, stride, offset).reshape(-1)
    xp.add.at(out.reshape(-1), places, d.reshape(-1))


@kernel("as_strided_update")
def as_strided_update(
    xp: ArrayModule, out: Array, x: Array, part: Array, *, stride: Dims, offset: int
) -> None:
    out[...] = x
    out.reshape(-1)[_places(xp, part.shape, stride, offset).reshape(-1)] = part.reshape(-1)
