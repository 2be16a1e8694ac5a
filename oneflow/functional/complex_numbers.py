"""Complex numbers: made of their parts, and taken apart."""

from __future__ import annotations

import math

from oneflow.core import dtype as dtypes
from oneflow.core.errors import CallError, DTypeError
from oneflow.functional.arithmetic import div, mul
from oneflow.functional.elementwise import masked_fill, pick
from oneflow.functional.promotion import as_float, as_type
from oneflow.ops import compare, unary
from oneflow.ops import complex_numbers as ops
from oneflow.tensor.formats import memory_format
from oneflow.tensor.tensor import Tensor


def is_complex(input: Tensor) -> bool:
    """Are the elements complex numbers?"""
    return input.meta.dtype.is_complex


def make(real: Tensor, imag: Tensor) -> Tensor:
    """real + i imag."""
    _require_tensors("complex", real, imag)
    return ops.make_complex(real, imag)


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """abs * (cos(angle) + i sin(angle))."""
    _require_tensors("polar", abs, angle)
    return ops.make_complex(mul(abs, unary.cos(angle)), mul(abs, unary.sin(angle)))


def _require_tensors(who: str, *parts: Tensor) -> None:
    if not all(isinstance(p, Tensor) for p in parts):
        raise CallError(f"{who}() needs two tensors")


def real(input: Tensor) -> Tensor:
    """The real parts, as a view; real numbers are their own."""
    return ops.real(input) if input.meta.dtype.is_complex else input


def imag(input: Tensor) -> Tensor:
    """The imaginary parts, as a view. Raises DTypeError for real numbers."""
    if not input.meta.dtype.is_complex:
        raise DTypeError(
            f"imag is not implemented for tensors with non-complex dtypes: {input.meta}"
        )
    return ops.imag(input)


def conj(input: Tensor) -> Tensor:
    """The complex conjugates; real numbers are their own."""
    return ops.conj(input) if input.meta.dtype.is_complex else input


def resolve(input: Tensor) -> Tensor:
    """The tensor itself: conjugates and negatives are computed at once here."""
    return input


def is_conj(input: Tensor) -> bool:
    """False: conjugates are computed at once here."""
    return False


def conj_physical(input: Tensor) -> Tensor:
    """The complex conjugates, in memory of their own; real numbers are their own."""
    return conj(input)


def abs(input: Tensor) -> Tensor:
    """The size of each element."""
    return ops.complex_abs(input) if input.meta.dtype.is_complex else unary.abs(input)


def angle(input: Tensor) -> Tensor:
    """The angle of each element, in radians: 0 or pi for real numbers."""
    if input.meta.dtype.is_complex:
        return ops.complex_angle(input)
    x = as_float(input)
    is_below = compare.scalar_compare(x, value=0, kind="lt")
    return pick(unary.isnan(x), x.detach(), masked_fill(_zeros(x), is_below, math.pi))


def _zeros(x: Tensor) -> Tensor:
    zero: Tensor = unary.sign(x)
    return mul(zero, 0)


def sgn(input: Tensor) -> Tensor:
    """The sign of each element; of a complex one, the number of size 1 with its angle."""
    if not input.meta.dtype.is_complex:
        return unary.sign(input)
    size = ops.complex_abs(input)
    safe = masked_fill(size, compare.scalar_compare(size, value=0, kind="eq"), 1.0)
    return div(input, as_type(safe, input.meta.dtype))


def isreal(input: Tensor) -> Tensor:
    """Tell, as bools, whether the imaginary part is 0."""
    if input.meta.dtype.is_complex:
        return compare.scalar_compare(ops.imag(input), value=0, kind="eq")
    return unary.full_like(as_type(input.detach(), dtypes.bool_), value=True)


def view_as_real(input: Tensor) -> Tensor:
    """(real, imag) in a new last dim, as a view."""
    return ops.view_as_real(input)


def view_as_complex(input: Tensor) -> Tensor:
    """The last dim (real, imag) as one complex number, as a view if the memory allows."""
    return ops.view_as_complex(input)


def cfloat(input: Tensor, memory_format: memory_format | None = None) -> Tensor:
    """The elements as complex64."""
    return as_type(input, dtypes.complex64)


def cdouble(input: Tensor, memory_format: memory_format | None = None) -> Tensor:
    """The elements as complex128."""
    return as_type(input, dtypes.complex128)
