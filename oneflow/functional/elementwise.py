"""Functions of one tensor, element by element, and choice by a mask."""

from __future__ import annotations

import math

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.operand import Number, TensorLike
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.promotion import (
    all_together,
    as_type,
    need_tensors,
    operands,
    rounded_once,
    same_type,
    together,
    with_number,
)
from oneflow.ops import binary, compare, unary
from oneflow.ops import where as where_ops
from oneflow.tensor.creation_like import of_kind
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor


def frac(input: Tensor) -> Tensor:
    """The fraction that `trunc` takes off."""
    return sub(input, unary.trunc(input))


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integer, or multiple of 10 ** -decimals; halves go to the even neighbour."""
    if not decimals:
        return unary.round(input)
    if not input.meta.dtype.is_floating_point:
        raise DTypeError(f"round: decimals are for floating-point tensors, got {input.meta}")
    if decimals > 0:
        return div(unary.round(mul(input, 10.0**decimals)), 10.0**decimals)
    return mul(unary.round(div(input, 10.0**-decimals)), 10.0**-decimals)


@rounded_once
def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """log(exp(input) + exp(other)), without overflow."""
    a, b = same_type("logaddexp", input, other)
    top = binary.maximum(a, b)
    # Equal infinities have no difference: 0 stands for it, and adds log(2) to what stays infinite.
    equal = compare.eq(a.detach(), b.detach())
    gap = where_ops.masked_fill(unary.neg(unary.abs(sub(a, b))), equal, value=0.0)
    return add(top, unary.log1p(unary.exp(gap)))


def cast(input: Tensor, dtype: DTypeLike, pin_memory: bool = False) -> Tensor:
    """The elements as `dtype`; the tensor itself if it has that dtype."""
    return as_type(input, dtypes.dtype_of(dtype))


def clamp(
    input: Tensor, min: Number | Tensor | None = None, max: Number | Tensor | None = None
) -> Tensor:
    """min(max(input, min), max); a bound may be a number, a tensor or None."""
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        return _clamp_by_tensors(input, min, max)
    dtype = input.meta.dtype
    for bound in (min, max):
        if bound is not None:
            dtype = with_number(dtype, bound)
    low, high = (None if b is None else of_kind(b, dtype) for b in (min, max))
    return unary.clamp(as_type(input, dtype), min=low, max=high)


def _clamp_by_tensors(
    input: Tensor, low: Number | Tensor | None, high: Number | Tensor | None
) -> Tensor:
    """The gradient goes to the bound that was taken, at a bound to the input, and to nothing where
    one of them is NaN.
    """
    x = all_together(input, *[b for b in (low, high) if isinstance(b, Tensor)])[0]
    for bound in (low, high):
        if bound is not None and not isinstance(bound, Tensor):
            x = same_type("clamp", x, bound)[0]
    least, most = _bound(low, x), _bound(high, x)
    value = x if least is None else binary.maximum(x, least)
    value = value if most is None else binary.minimum(value, most)
    if not value.requires_grad:
        return value
    value = value.detach()
    is_number = inside = compare.eq(value, value)
    if most is not None:
        is_over = compare.gt(x, most)
        if least is not None:
            is_over = compare.logical_or(is_over, compare.gt(least, most))
        value = where_ops.where(compare.logical_and(is_over, is_number), most, value)
        inside = compare.logical_and(inside, compare.le(x, most))
    if least is not None:
        is_under = compare.lt(x, least)
        if most is not None:
            is_under = compare.logical_and(is_under, compare.lt(least, most))
        value = where_ops.where(compare.logical_and(is_under, is_number), least, value)
        inside = compare.logical_and(inside, compare.ge(x, least))
    return where_ops.where(inside, x, value)


clip = clamp


def _bound(bound: Number | Tensor | None, x: Tensor) -> Tensor | None:
    if bound is None or isinstance(bound, Tensor):
        return bound if bound is None else as_type(bound, x.meta.dtype)
    return same_type("clamp", x, bound)[1]


def clamp_min(input: Tensor, min: Number | Tensor) -> Tensor:
    """max(input, min)."""
    need_tensors("clamp_min", input=input)
    return clamp(input, min=min)


def clamp_max(input: Tensor, max: Number | Tensor) -> Tensor:
    """min(input, max)."""
    need_tensors("clamp_max", input=input)
    return clamp(input, max=max)


def pick(condition: Tensor, x: TensorLike, y: TensorLike) -> Tensor:
    """x where condition is true, else y."""
    mask = as_type(condition, dtypes.bool_)
    _, a, b = operands("where", mask, x, y)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        dtype = with_number(with_number(dtypes.bool_, a), b)
        a = unary.full_like(as_type(mask, dtype), value=_kind(a, dtype))
    if not isinstance(a, Tensor):
        return _where_number(b, unary.logical_not(mask), mask, a)
    if not isinstance(b, Tensor):
        return _where_number(a, mask, unary.logical_not(mask), b)
    return where_ops.where(mask, *together(a, b))


def _where_number(x: Tensor, keep: Tensor, fill: Tensor, value: Number) -> Tensor:
    """x where `keep`, the number where `fill`."""
    dtype = with_number(x.meta.dtype, value)
    return _filled(as_type(x, dtype), fill, value)


def _kind(value: Number, dtype: dtypes.DType) -> Number:
    return float(value) if dtype.is_floating_point else value


def masked_fill(input: Tensor, mask: Tensor, value: Number | Tensor) -> Tensor:
    """`value` (a number or a 0-d tensor) where mask is true, else input."""
    mask = as_type(mask, dtypes.bool_)
    is_complex = value.meta.dtype.is_complex if isinstance(value, Tensor) else value.imag
    if is_complex and not input.meta.dtype.is_complex:
        raise DTypeError(
            f"masked_fill: the value {value} cannot be converted to {input.meta.dtype.name} "
            "without overflow"
        )
    if isinstance(value, Tensor):
        if value.ndim:
            raise ShapeError(
                "masked_fill only supports a 0-dimensional value tensor, but got tensor "
                f"{value.meta}"
            )
        return where_ops.where(mask, as_type(value, input.meta.dtype), input)
    return _filled(input, mask, value)


def _filled(x: Tensor, mask: Tensor, value: Number) -> Tensor:
    """x with the number where mask is true. Fused loops know no complex numbers."""
    number = of_kind(value, x.meta.dtype)
    if isinstance(number, complex):
        return where_ops.where(mask, unary.full_like(x.detach(), value=number), x)
    return where_ops.masked_fill(x, mask, value=number)


def clone(input: Tensor, memory_format: str | None = None) -> Tensor:
    """A copy in new memory, with history."""
    return unary.copy(input)


def nan_to_num(
    input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and the infinities replaced by numbers (by default 0 and the largest finite ones)."""
    if not input.meta.dtype.is_floating_point:
        return clone(input)

    limits = finfo(input.meta.dtype)
    high = limits.max if posinf is None else posinf
    low = limits.min if neginf is None else neginf
    x = where_ops.masked_fill(input, unary.isnan(input), value=0.0 if nan is None else nan)
    for end, value in ((math.inf, high), (-math.inf, low)):
        is_end = compare.scalar_compare(input, value=end, kind="eq")
        x = where_ops.masked_fill(x, is_end, value=value)
    return x


def signbit(input: Tensor) -> Tensor:
    """bool: is the sign negative? That of -0.0 is."""
    if input.meta.dtype.is_floating_point:
        input = binary.copysign(unary.full_like(input, value=1.0), input)
    return compare.scalar_compare(input, value=0, kind="lt")


def rsub(input: Tensor, other: TensorLike, *, alpha: Number = 1) -> Tensor:
    """other - alpha * input."""
    need_tensors("rsub", input=input)
    return sub(other, input, alpha=alpha)
