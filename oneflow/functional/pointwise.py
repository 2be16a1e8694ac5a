"""More functions element by element: signs, powers, bits, and two operands that meet."""

from __future__ import annotations

import math
from collections import namedtuple

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import category
from oneflow.core.errors import DTypeError
from oneflow.core.operand import Number, TensorLike
from oneflow.functional.arithmetic import (
    add,
    eq,
    gt,
    mul,
    pow,
    sub,
)
from oneflow.functional.elementwise import masked_fill, pick
from oneflow.functional.promotion import (
    as_float,
    as_type,
    need_tensors,
    operands,
    rounded_once,
    same_type,
    two_floats,
)
from oneflow.functional.reduction import any as some
from oneflow.functional.shaping import reshape, unsqueeze
from oneflow.ops import binary, compare, unary
from oneflow.ops.bits import frexp as frexp_op
from oneflow.ops.cast import cast
from oneflow.tensor.tensor import Tensor

frexp_result = namedtuple("frexp_result", ("mantissa", "exponent"))


def positive(input: Tensor) -> Tensor:
    """The tensor itself. Raises DTypeError for bools."""
    if input.meta.dtype is dtypes.bool_:
        raise DTypeError("positive: the + operator, on a bool tensor is not supported")
    return input


def _only_floats(name: str, input: TensorLike, other: TensorLike) -> tuple[Tensor, Tensor]:
    """Two operands in one dtype. Raises DTypeError for integers, as PyTorch does."""
    a, b = same_type(name, input, other)
    if category(a.meta.dtype) < 2:
        raise DTypeError(f"{name}: needs floating-point tensors, got {a.meta}; cast them first")
    return a, b


def copysign(input: Tensor, other: TensorLike) -> Tensor:
    """The size of input with the sign of other; -0.0 has one."""
    need_tensors("copysign", input=input)
    return binary.copysign(*two_floats("copysign", input, other))


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next number that the dtype can hold, from input towards other."""
    need_tensors("nextafter", input=input, other=other)
    return binary.nextafter(*_only_floats("nextafter", input, other))


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """sqrt(input ** 2 + other ** 2) without overflow."""
    need_tensors("hypot", input=input, other=other)
    a, b = _only_floats("hypot", input, other)
    return binary.hypot(a, b)


def heaviside(input: Tensor, values: Tensor) -> Tensor:
    """0 below 0, 1 above, and `values` at 0."""
    need_tensors("heaviside", input=input, values=values)
    if input.meta.dtype is not values.meta.dtype:
        raise DTypeError(
            f"heaviside: input and values must have one dtype, got {input.meta}, {values.meta}"
        )
    step = as_type(gt(input, 0), input.meta.dtype)
    return pick(eq(input, 0), values, step)


def fmax(input: Tensor, other: Tensor) -> Tensor:
    """The larger; where one is NaN, the other. Of equal ones the first gets the gradient."""
    need_tensors("fmax", input=input, other=other)
    return _ignoring_nan(compare.ge, *same_type("fmax", input, other))


def fmin(input: Tensor, other: Tensor) -> Tensor:
    """The smaller; where one is NaN, the other. Of equal ones the first gets the gradient."""
    need_tensors("fmin", input=input, other=other)
    return _ignoring_nan(compare.le, *same_type("fmin", input, other))


def _ignoring_nan(is_first: binary.BinaryFunction, a: Tensor, b: Tensor) -> Tensor:
    first = is_first(a, b)
    if a.meta.dtype.is_floating_point:
        first = compare.logical_or(first, unary.isnan(b))
    return pick(first, a, b)


def ldexp(input: Tensor, other: TensorLike) -> Tensor:
    """input * 2 ** other."""
    need_tensors("ldexp", input=input)
    a, b = operands("ldexp", input, other)
    exponent = as_float(b) if isinstance(b, Tensor) else b
    return mul(a, pow(2.0, exponent))


def frexp(input: Tensor) -> frexp_result:
    """(mantissa, exponent): input = mantissa * 2 ** exponent, the mantissa from 1/2 to 1."""
    if not input.meta.dtype.is_floating_point:
        raise DTypeError(f"frexp() only supports floating-point dtypes, got {input.meta}")
    return frexp_result(*frexp_op(input))


def gcd(input: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisor of integers."""
    need_tensors("gcd", input=input, other=other)
    return binary.gcd(*same_type("gcd", input, other))


def lcm(input: Tensor, other: Tensor) -> Tensor:
    """The least common multiple of integers."""
    need_tensors("lcm", input=input, other=other)
    return binary.lcm(*same_type("lcm", input, other))


def bitwise_left_shift(input: TensorLike, other: TensorLike) -> Tensor:
    """The bits of integers moved up by `other` places."""
    return binary.bitwise_left_shift(*same_type("bitwise_left_shift", input, other))


def bitwise_right_shift(input: TensorLike, other: TensorLike) -> Tensor:
    """The bits of integers moved down by `other` places; the sign stays."""
    return binary.bitwise_right_shift(*same_type("bitwise_right_shift", input, other))


@rounded_once
def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """log2(2 ** input + 2 ** other), without overflow."""
    a, b = _only_floats("logaddexp2", input, other)
    top = binary.maximum(a, b)
    gap = masked_fill(unary.neg(unary.abs(sub(a, b))), eq(a.detach(), b.detach()), 0.0)
    return add(top, mul(unary.log1p(unary.exp2(gap)), 1 / math.log(2.0)))


def float_power(input: TensorLike, exponent: TensorLike) -> Tensor:
    """input ** exponent, computed in float64 (complex128 for complex operands)."""
    a, b = operands("float_power", input, exponent)
    is_complex = any(
        isinstance(v, complex) or (isinstance(v, Tensor) and v.meta.dtype.is_complex)
        for v in (a, b)
    )
    wide = dtypes.complex128 if is_complex else dtypes.float64
    a, b = (as_type(v, wide) if isinstance(v, Tensor) else v for v in (a, b))
    return pow(a, b)


@rounded_once
def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    return mul(as_float(input), math.pi / 180)


@rounded_once
def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    return mul(as_float(input), 180 / math.pi)


def isposinf(input: Tensor) -> Tensor:
    """Tell, as bools, which elements are infinite and positive."""
    return eq(as_float(input), math.inf)


def isneginf(input: Tensor) -> Tensor:
    """Tell, as bools, which elements are infinite and negative."""
    return eq(as_float(input), -math.inf)


def isin(
    elements: TensorLike,
    test_elements: TensorLike,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Tensor:
    """Tell, as bools, which elements are among `test_elements`."""
    a, b = operands("isin", elements, test_elements)
    if not isinstance(b, Tensor):  # compared as it is: it may be no number of the dtype
        found = eq(a, b)
    else:
        known = reshape(b, (-1,))
        found = some(eq(known, unsqueeze(a, -1) if isinstance(a, Tensor) else a), -1)
    return unary.logical_not(found) if invert else found


def fill(input: Tensor, value: Tensor | Number) -> Tensor:
    """`value` (a number or a 0-d tensor) in the shape and dtype of input."""
    mask = unary.full_like(cast(input.detach(), dtype=dtypes.bool_), value=True)
    if isinstance(value, Tensor):
        if value.ndim:
            raise DTypeError(f"fill: supports only 0-dimension value tensors, got {value.meta}")
        return pick(mask, as_type(value, input.meta.dtype), input)
    return masked_fill(input, mask, value)


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Have both the same shape?"""
    return input.meta.shape == other.meta.shape
