"""Arithmetic, comparison and logic of two operands: tensors, or a tensor and a Python number."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import category
from oneflow.core.errors import ArgumentError, CallError, DTypeError
from oneflow.core.operand import Number, TensorLike
from oneflow.functional.promotion import (
    all_together,
    as_float,
    as_type,
    floats_together,
    need_tensors,
    operand,
    operands,
    rounded_once,
    together,
    two_floats,
    with_number,
)
from oneflow.functional.results import into
from oneflow.ops import binary, compare, scalar, unary
from oneflow.ops import where as where_ops
from oneflow.tensor.creation_like import number_of
from oneflow.tensor.inplace import take_result
from oneflow.tensor.tensor import Tensor


def add(
    input: TensorLike,
    other: TensorLike,
    *,
    alpha: Number = 1,
    inplace: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """input + alpha * other."""
    if out is not None:
        return into(add(input, other, alpha=alpha), out, (input, other))
    if alpha.__class__ is not int:
        alpha = number_of(alpha, "alpha", "add")
    if alpha != 1:
        other = _scaled(other, alpha, input) if isinstance(other, Tensor) else other * alpha
    if inplace:
        return _in_place(input, _add(input, other))
    return _add(input, other)


def _scaled(x: Tensor, alpha: Number, beside: TensorLike) -> Tensor:
    """alpha * x. A bool alpha leaves bools, and so does an integer one beside other bools."""
    scaled = mul(x, alpha)
    is_between_bools = isinstance(beside, Tensor) and beside.meta.dtype is dtypes.bool_
    if isinstance(alpha, bool) or (isinstance(alpha, int) and is_between_bools):
        return as_type(scaled, x.meta.dtype)
    return scaled


def _add(a: TensorLike, b: TensorLike) -> Tensor:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.meta.dtype is not b.meta.dtype:
            a, b = together(a, b)
        return binary.add(a, b)
    left, right = operands("add", a, b)
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return _add(left, right)
    x, value = (left, right) if isinstance(left, Tensor) else (right, left)
    if isinstance(value, bool) and x.meta.dtype is dtypes.bool_:
        return binary.add(x, unary.full_like(x.detach(), value=value))
    return scalar.scalar_add(_numeric(x, value), value=value)


def _numeric(x: Tensor, value: Number) -> Tensor:
    """`x` in the dtype in which it meets a number; bool counts as int64."""
    dtype = with_number(x.meta.dtype, value)
    return as_type(x, dtypes.int64 if dtype is dtypes.bool_ else dtype)


def sub(
    input: TensorLike,
    other: TensorLike,
    *,
    alpha: Number = 1,
    inplace: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """input - alpha * other."""
    if out is not None:
        return into(sub(input, other, alpha=alpha), out, (input, other))
    if alpha.__class__ is not int:
        alpha = number_of(alpha, "alpha", "sub")
    if alpha != 1:
        other = mul(other, alpha) if isinstance(other, Tensor) else other * alpha
    result = _sub(input, other)
    return _in_place(input, result) if inplace else result


def _sub(input: TensorLike, other: TensorLike) -> Tensor:
    a, b = operands("sub", input, other)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = together(a, b)
        if a.meta.dtype is dtypes.bool_:
            raise DTypeError(
                "Subtraction, the `-` operator, with two bool tensors is not supported; "
                "use logical_xor(), or cast them first"
            )
        return binary.sub(a, b)
    if isinstance(a, Tensor):
        return scalar.scalar_add(_numeric(a, b), value=-b)
    return scalar.scalar_add(unary.neg(_numeric(b, a)), value=a)


def mul(
    input: TensorLike, other: TensorLike, *, inplace: bool = False, out: Tensor | None = None
) -> Tensor:
    """input * other."""
    if out is not None:
        return into(mul(input, other), out, (input, other))
    result = _mul(input, other)
    return _in_place(input, result) if inplace else result


def _mul(a: TensorLike, b: TensorLike) -> Tensor:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.meta.dtype is not b.meta.dtype:
            a, b = together(a, b)
        return binary.mul(a, b)
    left, right = operands("mul", a, b)
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return _mul(left, right)
    x, value = (left, right) if isinstance(left, Tensor) else (right, left)
    if isinstance(value, bool) and x.meta.dtype is dtypes.bool_:
        return binary.mul(x, unary.full_like(x.detach(), value=value))
    return scalar.scalar_mul(_numeric(x, value), value=value)


def div(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = None) -> Tensor:
    """input / other; integers give floats.  rounding_mode: None, "floor" or "trunc" (then integers
    stay).
    """
    if rounding_mode == "floor":
        return floor_divide(input, other)
    if rounding_mode == "trunc":
        a, b = operands("div", input, other)
        dtype = together(_tensor_like(a, b), _tensor_like(b, a))[0].meta.dtype
        if dtype.is_integer:  # exact, and of a zero divisor an error
            return as_type(floor_divide(_sub(a, fmod(a, b)), b), dtype)
        return as_type(unary.trunc(div(a, b)), dtype)
    if rounding_mode is not None:
        raise ArgumentError(
            f"div: rounding_mode must be None, 'floor' or 'trunc', got {rounding_mode!r}"
        )
    a, b = operands("div", input, other)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return binary.div(*floats_together(a, b))
    if isinstance(a, Tensor):
        return _div_number(as_float(a), b)
    return scalar.scalar_rdiv(as_float(b), value=a)


def _div_number(x: Tensor, value: Number) -> Tensor:
    return scalar.scalar_div(x, value=value)


def _tensor_like(value: Tensor | Number, other: Tensor | Number) -> Tensor:
    """A number as a tensor that stands for it in promotion."""
    if isinstance(value, Tensor):
        return value
    tensor = cast(Tensor, other)
    return as_type(tensor, with_number(tensor.meta.dtype, value))


def floor_divide(input: TensorLike, other: TensorLike) -> Tensor:
    """The quotient rounded down."""
    a, b = operands("floor_divide", input, other)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return binary.floor_divide(*together(a, b))
    if isinstance(a, Tensor):
        return scalar.scalar_floor_divide(_numeric(a, b), value=b)
    return binary.floor_divide(_filled_like(b, a), _numeric(b, a))


def _filled_like(x: Tensor, value: Number) -> Tensor:
    return unary.full_like(_numeric(x, value).detach(), value=value)


def remainder(input: TensorLike, other: TensorLike) -> Tensor:
    """The rest of the division rounded down: it has the sign of `other`."""
    a, b = operands("remainder", input, other)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = together(a, b)
        return binary.remainder(a, b) if a.meta.dtype.is_floating_point else _rest(a, b)
    if isinstance(a, Tensor):
        a = _numeric(a, b)
        is_exact = a.meta.dtype.is_floating_point
        return scalar.scalar_remainder(a, value=b) if is_exact else _rest(a, b)
    return remainder(_filled_like(b, a), _numeric(b, a))


def _rest(a: Tensor, b: TensorLike) -> Tensor:
    """The remainder of integers."""
    return _sub(a, _mul(floor_divide(a, b), b))


def fmod(input: TensorLike, other: TensorLike, *, inplace: bool = False) -> Tensor:
    """The rest of the division rounded toward zero: it has the sign of `input`."""
    a, b = operands("fmod", input, other)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        result = binary.fmod(*together(a, b))
    elif isinstance(a, Tensor):
        result = scalar.scalar_fmod(_numeric(a, b), value=b)
    else:
        result = binary.fmod(_filled_like(b, a), _numeric(b, a))
    return _in_place(input, result) if inplace else result


def pow(input: TensorLike, exponent: TensorLike, *, inplace: bool = False) -> Tensor:
    """input ** exponent."""
    a, b = operands("pow", input, exponent)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        a, b = together(a, b)
        result = _whole_power(a, b) if a.meta.dtype.is_integer else binary.pow(a, b)
    elif isinstance(a, Tensor):
        result = _power(_numeric(a, b), b)
    else:
        result = _power_of(a, _numeric(b, a))
    return _in_place(input, result) if inplace else result


def _whole_power(base: Tensor, exponent: Tensor) -> Tensor:
    """Integers to powers of integers, rounded toward zero where those are negative."""
    if not exponent.meta.dtype.is_signed:
        return binary.pow(base, exponent)
    is_below = compare.scalar_compare(exponent, value=0, kind="lt")
    is_one = compare.scalar_compare(unary.abs(base), value=1, kind="eq")
    power = binary.pow(base, _without_sign(exponent))
    is_none = compare.logical_and(is_below, unary.logical_not(is_one))
    return where_ops.masked_fill(power, is_none, value=0)


def _without_sign(exponent: Tensor) -> Tensor:
    """|exponent|; 0, which is as even, for the least number of a dtype, which has no opposite."""
    return unary.clamp(unary.abs(exponent), min=0, max=None)


def _power_of(base: Number, exponent: Tensor) -> Tensor:
    """A number to the power of a tensor. Integers to a negative power are rounded toward zero: they
    are 0 but for the bases 1 and -1.
    """
    if not exponent.meta.dtype.is_integer:
        return scalar.scalar_rpow(exponent, value=base)
    if base in (1, -1):
        return scalar.scalar_rpow(_without_sign(exponent), value=base)
    is_below = compare.scalar_compare(exponent, value=0, kind="lt")
    above = unary.clamp(exponent, min=0, max=None)
    return where_ops.masked_fill(scalar.scalar_rpow(above, value=base), is_below, value=0)


def _power(x: Tensor, exponent: Number) -> Tensor:
    if exponent == 2:
        return unary.square(x)
    if exponent == 0.5 and x.meta.dtype.is_floating_point:
        return unary.sqrt(x)
    return scalar.scalar_pow(x, value=exponent)


def atan2(input: TensorLike, other: TensorLike) -> Tensor:
    """The angle of the point (other, input), in radians."""
    need_tensors("atan2", input=input, other=other)
    return binary.atan2(*two_floats("atan2", input, other))


def _compare(kind: str) -> Callable[[TensorLike, TensorLike], Tensor]:
    mirrored = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}[kind]
    op = getattr(compare, kind)

    def apply(input: TensorLike, other: TensorLike) -> Tensor:
        a, b = operands(kind, input, other)
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return op(*together(a, b))  # type: ignore[no-any-return]
        if isinstance(a, Tensor):
            return compare.scalar_compare(a, value=b, kind=kind)
        return compare.scalar_compare(b, value=a, kind=mirrored)

    apply.__name__ = apply.__qualname__ = kind
    apply.__doc__ = f"bool: {kind}(input, other), element by element, with broadcasting."
    return apply


eq = _compare("eq")
ne = _compare("ne")
lt = _compare("lt")
le = _compare("le")
gt = _compare("gt")
ge = _compare("ge")


@rounded_once
def lerp(start: Tensor, end: Tensor, weight: TensorLike) -> Tensor:
    """start + weight * (end - start), from the nearer end."""
    if isinstance(weight, Tensor):
        start, end, weight = all_together(start, end, weight)
    gap = _sub(end, start)
    if not isinstance(weight, Tensor):
        if abs(weight) < 0.5:
            return _add(start, _mul(weight, gap))
        return _sub(end, _mul(1 - weight, gap))
    is_near = compare.scalar_compare(unary.abs(weight), value=0.5, kind="lt")
    return where_ops.where(
        is_near, _add(start, _mul(weight, gap)), _sub(end, _mul(_sub(1, weight), gap))
    )


@rounded_once
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """input + value * tensor1 * tensor2."""
    a, b, c = all_together(input, tensor1, tensor2)
    return add(a, _mul(b, c), alpha=value)


@rounded_once
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1) -> Tensor:
    """input + value * tensor1 / tensor2."""
    a, b, c = all_together(input, tensor1, tensor2)
    return add(a, div(b, c), alpha=value)


def isclose(
    input: Tensor, other: Tensor, atol: float = 1e-8, rtol: float = 1e-5, equal_nan: bool = False
) -> Tensor:
    """bool: |input - other| <= atol + rtol * |other|."""
    if not isinstance(input, Tensor) or not isinstance(other, Tensor):
        raise CallError("isclose() needs two tensors")
    if atol < 0 or rtol < 0:
        raise ArgumentError(f"isclose: atol and rtol must be at least 0, got {atol} and {rtol}")
    a, b = together(input, other)
    if category(a.meta.dtype) < 2:
        a, b = as_type(a, dtypes.float64), as_type(b, dtypes.float64)
    bound = scalar.scalar_add(scalar.scalar_mul(unary.abs(b), value=rtol), value=atol)
    near = compare.logical_or(compare.eq(a, b), _finite_and_le(unary.abs(binary.sub(a, b)), bound))
    if equal_nan:
        near = compare.logical_or(near, compare.logical_and(unary.isnan(a), unary.isnan(b)))
    return near


def _finite_and_le(gap: Tensor, bound: Tensor) -> Tensor:
    return compare.logical_and(unary.isfinite(gap), compare.le(gap, bound))


def _in_place(x: TensorLike, result: Tensor) -> Tensor:
    return take_result(cast(Tensor, x), result)


# ---- operators: NotImplemented for what is no operand, so that Python asks the other side --------


def operator(
    function: Callable[[Tensor, Tensor], Tensor], *, swap: bool = False
) -> Callable[[Tensor, Tensor], Tensor]:
    """The method `x.__op__` of a function of two operands."""

    def method(self: Tensor, other: Tensor) -> Tensor:
        if not isinstance(other, (Tensor, int, float)) and operand(other) is NotImplemented:
            return NotImplemented
        return function(other, self) if swap else function(self, other)

    return method
