"""Kernels and views of oneflow/ops/complex_numbers.py."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import strided
from oneflow.kernels.registry import kernel, view


@kernel("conj")
def conj(xp: ArrayModule, out: Array, x: Array) -> None:
    xp.conjugate(x, out=out)


@view("real")
def real_view(x: Array) -> Array:
    return x.real


@kernel("real")
def real(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = x.real


@view("imag")
def imag_view(x: Array) -> Array:
    return x.imag


@kernel("imag")
def imag(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = x.imag


@kernel("complex")
def make_complex(xp: ArrayModule, out: Array, real: Array, imag: Array) -> None:
    out.real[...] = real
    out.imag[...] = imag


@kernel("complex_abs")
def complex_abs(xp: ArrayModule, out: Array, x: Array) -> None:
    xp.absolute(x, out=out)


@kernel("complex_angle")
def complex_angle(xp: ArrayModule, out: Array, x: Array) -> None:
    xp.arctan2(x.imag, x.real, out=out)


@view("view_as_real")
def pairs(x: Array) -> Array:
    parts = x.real
    return strided(parts, (*x.shape, 2), (*parts.strides, parts.itemsize))


@kernel("view_as_real")
def view_as_real(xp: ArrayModule, out: Array, x: Array) -> None:
    out[..., 0], out[..., 1] = x.real, x.imag


@view("view_as_complex")
def numbers_view(x: Array) -> Array | None:
    """None where the two parts do not lie side by side."""
    if x.strides[-1] != x.itemsize or x.size == 0:
        return None
    kind = "complex64" if x.itemsize == 4 else "complex128"
    if any(s % (2 * x.itemsize) for s in x.strides[:-1]):
        return None
    found: Array = x.view(kind)[..., 0]
    return found


@kernel("view_as_complex")
def view_as_complex(xp: ArrayModule, out: Array, x: Array) -> None:
    out.real[...] = x[..., 0]
    out.imag[...] = x[..., 1]
