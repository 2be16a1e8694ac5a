"""Functions of one tensor, element by element, and choice by a mask."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from oneflow.core import dtype as dtypes
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.promotion import as_float, as_type, operands, together, with_number
from oneflow.ops import compare, unary
from oneflow.ops import where as where_ops
from oneflow.tensor.tensor import Tensor


def _float_function(name: str) -> Callable[[Tensor], Tensor]:
    op = getattr(unary, name)

    def apply(input: Tensor) -> Tensor:
        return op(as_float(input))  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = f"{name}(input), element by element; integers give floats."
    return apply


def _function(name: str, doc: str = "") -> Callable[[Tensor], Tensor]:
    op = getattr(unary, name)

    def apply(input: Tensor) -> Tensor:
        return op(input)  # type: ignore[no-any-return]

    apply.__name__ = apply.__qualname__ = name
    apply.__doc__ = doc or f"{name}(input), element by element."
    return apply


exp = _float_function("exp")
exp2 = _float_function("exp2")
expm1 = _float_function("expm1")
log = _float_function("log")
log1p = _float_function("log1p")
log2 = _float_function("log2")
log10 = _float_function("log10")
sqrt = _float_function("sqrt")
rsqrt = _float_function("rsqrt")
reciprocal = _float_function("reciprocal")
sin = _float_function("sin")
cos = _float_function("cos")
tan = _float_function("tan")
asin = _float_function("asin")
acos = _float_function("acos")
atan = _float_function("atan")
sinh = _float_function("sinh")
cosh = _float_function("cosh")
tanh = _float_function("tanh")
asinh = _float_function("asinh")
acosh = _float_function("acosh")
atanh = _float_function("atanh")
erf = _float_function("erf")
sigmoid = _float_function("sigmoid")
neg = _function("neg")
abs = _function("abs")
sign = _function("sign")
square = _function("square")
floor = _function("floor")
ceil = _function("ceil")
round = _function("round", "The nearest integer; halves go to the even neighbour.")
trunc = _function("trunc")
bitwise_not = _function("bitwise_not")
logical_not = _function("logical_not")
isnan = _function("isnan")
isinf = _function("isinf")
isfinite = _function("isfinite")


def erfc(input: Tensor) -> Tensor:
    """1 - erf(input)."""
    return sub(1, erf(input))


def frac(input: Tensor) -> Tensor:
    """What is left after `trunc`."""
    return sub(input, trunc(input))


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """log(exp(input) + exp(other)), without overflow."""
    from oneflow.functional.arithmetic import maximum

    top = maximum(input, other)
    gap = neg(abs(sub(input, other)))
    return add(top, log1p(exp(gap)))


def cast(input: Tensor, dtype: Any, pin_memory: bool = False) -> Tensor:
    """The elements as `dtype`; the tensor itself if it has that dtype."""
    return as_type(input, dtypes.dtype_of(dtype))


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """min(max(input, min), max); a bound may be a number, a tensor or None."""
    from oneflow.functional.arithmetic import maximum, minimum

    if isinstance(min, Tensor) or isinstance(max, Tensor):
        x = input if min is None else maximum(input, min)
        return x if max is None else minimum(x, max)
    dtype = input.type.dtype
    for bound in (min, max):
        if bound is not None:
            dtype = with_number(dtype, bound)
    return unary.clamp(as_type(input, dtype), min=min, max=max)  # type: ignore[no-any-return]


clip = clamp


def clamp_min(input: Tensor, min: Any) -> Tensor:
    """max(input, min)."""
    return clamp(input, min=min)


def clamp_max(input: Tensor, max: Any) -> Tensor:
    """min(input, max)."""
    return clamp(input, max=max)


def where(condition: Tensor, x: Any = None, y: Any = None) -> Any:
    """x where condition is true, else y. With the condition alone: as `nonzero(condition,
    as_tuple=True)`.
    """
    if x is None and y is None:
        from oneflow.functional.searching import nonzero

        return nonzero(condition, as_tuple=True)
    mask = as_type(condition, dtypes.bool_)
    if not isinstance(x, Tensor) and not isinstance(y, Tensor):
        dtype = with_number(with_number(dtypes.bool_, x), y)
        x = unary.full_like(as_type(mask, dtype), value=_kind(x, dtype))
    a, b = operands("where", x, y)
    if not isinstance(a, Tensor):
        return _where_number(b, logical_not(mask), mask, a)
    if not isinstance(b, Tensor):
        return _where_number(a, mask, logical_not(mask), b)
    return where_ops.where(mask, *together(a, b))


def _where_number(x: Tensor, keep: Tensor, fill: Tensor, value: Any) -> Tensor:
    """x where `keep`, the number where `fill`."""
    return where_ops.masked_fill(as_type(x, with_number(x.type.dtype, value)), fill, value=value)  # type: ignore[no-any-return]


def _kind(value: Any, dtype: dtypes.DType) -> Any:
    return float(value) if dtype.is_floating_point else value


def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Tensor:
    """`value` (a number or a 0-d tensor) where mask is true, else input."""
    mask = as_type(mask, dtypes.bool_)
    if isinstance(value, Tensor):
        return where_ops.where(mask, as_type(value, input.type.dtype), input)  # type: ignore[no-any-return]
    if not input.type.dtype.is_floating_point and isinstance(value, float):
        value = int(value)
    return where_ops.masked_fill(input, mask, value=value)  # type: ignore[no-any-return]


def clone(input: Tensor, memory_format: Any = None) -> Tensor:
    """A copy in new memory, with history."""
    return unary.copy(input)  # type: ignore[no-any-return]


def nan_to_num(
    input: Tensor, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """NaN and the infinities replaced by numbers (by default 0 and the largest finite ones)."""
    import numpy as np

    info: Any = np.finfo(np.float32 if input.type.dtype.name == "bfloat16" else input.type.dtype.np)
    high = float(info.max) if posinf is None else posinf
    low = float(info.min) if neginf is None else neginf
    x = where_ops.masked_fill(input, unary.isnan(input), value=nan)
    x = where_ops.masked_fill(x, compare.scalar_compare(x, value=math.inf, kind="eq"), value=high)
    return where_ops.masked_fill(  # type: ignore[no-any-return]
        x, compare.scalar_compare(x, value=-math.inf, kind="eq"), value=low
    )


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """log(input / (1 - input)); eps: clamps the input to [eps, 1 - eps]."""
    x = input if eps is None else clamp(input, eps, 1 - eps)
    return log(div(x, sub(1, x)))


def square_relu(input: Tensor) -> Tensor:
    """relu(input) squared."""
    x = unary.relu(input)
    return mul(x, x)


def signbit(input: Tensor) -> Tensor:
    """bool: input < 0."""
    return compare.scalar_compare(input, value=0, kind="lt")  # type: ignore[no-any-return]


def rsub(input: Any, other: Any, *, alpha: Any = 1) -> Tensor:
    """other - alpha * input."""
    return sub(other, input, alpha=alpha)
