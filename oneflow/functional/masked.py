"""Reductions and normalizations of the elements that a mask selects (`flow.masked`).

An element counts where the mask is true. Each function fills the other ones with a number that
leaves its result as it is, and calls the function of the same name without a mask. So gradients,
SBP and tracing are those of the functions called, and elements that do not count get gradient 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType, DTypeLike, category, dtype_of
from oneflow.core.errors import ArgumentError, DTypeError, PositionError
from oneflow.core.operand import DimLike, Number
from oneflow.functional import elementwise, reduction, statistics
from oneflow.functional.arithmetic import div, mul, sub
from oneflow.functional.complex_numbers import conj
from oneflow.functional.creation import ones_like
from oneflow.functional.linalg import norms as linalg
from oneflow.functional.nn import activation as nn_activation
from oneflow.functional.promotion import as_type
from oneflow.ops import unary
from oneflow.tensor.tensor import Tensor


def sum(
    input: Tensor,
    dim: DimLike = None,
    *,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The sum of the elements that `mask` selects; 0 where it selects none."""
    return reduction.sum(_filled(input, mask, 0), dim, bool(keepdim), dtype=dtype)


def prod(
    input: Tensor,
    dim: DimLike = None,
    *,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The product of the elements that `mask` selects; 1 where it selects none."""
    return reduction.prod(_filled(input, mask, 1), dim, bool(keepdim), dtype=dtype)


def amax(
    input: Tensor,
    dim: DimLike = None,
    *,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The largest element that `mask` selects; the dtype's least number where it selects none."""
    found = reduction.amax(_filled(input, mask, _least(input)), dim, bool(keepdim))
    return _as(found, dtype, input)


def amin(
    input: Tensor,
    dim: DimLike = None,
    *,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The smallest element that `mask` selects; the dtype's largest number where it selects
    none.
    """
    found = reduction.amin(_filled(input, mask, _largest(input)), dim, bool(keepdim))
    return _as(found, dtype, input)


def argmax(
    input: Tensor,
    dim: int | None = None,
    *,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The position of `amax`, in the dtype of `input` unless `dtype` names another."""
    found = reduction.argmax(_filled(input, mask, _least(input)), dim, bool(keepdim))
    return _as(found, dtype, input)


def argmin(
    input: Tensor,
    dim: int | None = None,
    *,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The position of `amin`, in the dtype of `input` unless `dtype` names another."""
    found = reduction.argmin(_filled(input, mask, _largest(input)), dim, bool(keepdim))
    return _as(found, dtype, input)


def mean(
    input: Tensor,
    dim: DimLike = None,
    *,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The mean of the elements that `mask` selects; NaN where it selects none.

    Raises DTypeError for integers and bools, unless `dtype` is one of floating-point or complex
    numbers.
    """
    wanted = _dtype(dtype, input)
    if category(wanted) < 2:
        raise DTypeError(
            f"masked.mean: needs floating-point or complex numbers, got {input.meta}; "
            "pass dtype=oneflow.float32"
        )
    total = sum(input, dim, keepdim=keepdim, dtype=wanted, mask=mask)
    return div(total, _count(input, mask, dim, keepdim))


def median(
    input: Tensor,
    dim: int = -1,
    *,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The lower median of the elements that `mask` selects; NaN where it selects none.

    Raises ArgumentError where integers have no median because `mask` selects none of a row.
    """
    is_float = input.meta.dtype.is_floating_point
    x = input if is_float else as_type(input, dtypes.float32)
    result: Any = statistics.nanmedian(_filled(x, mask, math.nan), dim, bool(keepdim))
    found: Tensor = result.values
    if is_float:
        return found
    if found.value is None and reduction.any(unary.isnan(found)).item():
        raise ArgumentError(
            f"masked.median: the mask selects no element of a row of {input.meta}, and integers "
            "have no NaN to say so; cast the input with .float()"
        )
    return _as(found, dtype, input)


def logsumexp(
    input: Tensor,
    dim: DimLike = None,
    *,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """log(sum(exp(x))) of the elements that `mask` selects; -inf where it selects none."""
    found = reduction.logsumexp(_filled(input, mask, _least(input)), dim, bool(keepdim))
    return _as(found, dtype, input)


def logaddexp(
    input: Tensor,
    other: Tensor,
    *,
    dtype: DTypeLike | None = None,
    input_mask: Tensor | None = None,
    other_mask: Tensor | None = None,
) -> Tensor:
    """log(exp(input) + exp(other)), of which each counts where its mask is true."""
    a = _filled(input, input_mask, _least(input))
    b = _filled(other, other_mask, _least(other))
    return _as(elementwise.logaddexp(a, b), dtype, input)


def norm(
    input: Tensor,
    ord: float | None = 2.0,
    dim: DimLike = None,
    *,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The vector norm of order `ord` of the elements that `mask` selects.

    Where it selects none the norm is 0, that of order -inf is inf.
    """
    order = 2.0 if ord is None else ord
    x = _filled(input, mask, math.inf if order == -math.inf else 0)
    return linalg.vector_norm(x, order, dim, bool(keepdim), dtype=_dtype(dtype, input))


def var(
    input: Tensor,
    dim: DimLike = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The variance of the elements that `mask` selects; NaN where it selects none.

    The sum of squares is divided by their number less `correction` (1; 0 if not `unbiased`).
    """
    if unbiased is not None and correction is not None:
        raise ArgumentError("masked.var and masked.std take unbiased or correction, not both")
    less = (0 if unbiased is False else 1) if correction is None else correction
    wanted = dtype_of(dtype) if dtype is not None else input.meta.dtype
    wanted = wanted if category(wanted) >= 2 else dtypes.float32
    x = as_type(input, wanted)
    middle = div(sum(x, dim, keepdim=True, mask=mask), _count(input, mask, dim, True))
    gap = sub(x, middle)
    total = sum(mul(gap, conj(gap)), dim, keepdim=keepdim, mask=mask)
    count = _count(input, mask, dim, keepdim)
    if less:
        count = unary.clamp(sub(as_type(count, dtypes.float64), less), min=0.0)
    return _as(div(total, count), dtype or wanted, input)


def std(
    input: Tensor,
    dim: DimLike = None,
    unbiased: bool | None = None,
    *,
    correction: float | None = None,
    keepdim: bool | None = False,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The standard deviation of the elements that `mask` selects: the root of `var`."""
    found = var(
        input, dim, unbiased, correction=correction, keepdim=keepdim, dtype=dtype, mask=mask
    )
    return unary.sqrt(found)


def cumsum(
    input: Tensor, dim: int, *, dtype: DTypeLike | None = None, mask: Tensor | None = None
) -> Tensor:
    """Running sums of the elements that `mask` selects; others count as 0."""
    wanted = _dtype(dtype, input)
    return as_type(reduction.cumsum(_filled(input, mask, 0), dim, dtype=wanted), wanted)


def cumprod(
    input: Tensor, dim: int, *, dtype: DTypeLike | None = None, mask: Tensor | None = None
) -> Tensor:
    """Running products of the elements that `mask` selects; others count as 1."""
    wanted = _dtype(dtype, input)
    return as_type(reduction.cumprod(_filled(input, mask, 1), dim, dtype=wanted), wanted)


def softmax(
    input: Tensor, dim: int, *, dtype: DTypeLike | None = None, mask: Tensor | None = None
) -> Tensor:
    """Softmax over the elements that `mask` selects; others get 0.

    A row of which it selects none is NaN.
    """
    return nn_activation.softmax(_filled(input, mask, _least(input)), dim, dtype)


def log_softmax(
    input: Tensor, dim: int, *, dtype: DTypeLike | None = None, mask: Tensor | None = None
) -> Tensor:
    """The logarithm of `softmax`: -inf for elements that `mask` does not select."""
    return nn_activation.log_softmax(_filled(input, mask, _least(input)), dim, dtype)


def softmin(
    input: Tensor, dim: int, *, dtype: DTypeLike | None = None, mask: Tensor | None = None
) -> Tensor:
    """`softmax` of -input."""
    return nn_activation.softmin(_filled(input, mask, _largest(input)), dim, dtype)


def normalize(
    input: Tensor,
    ord: float,
    dim: int,
    *,
    eps: float = 1e-12,
    dtype: DTypeLike | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """The elements that `mask` selects, divided by their norm along `dim` (at least eps)."""
    length = norm(input, ord, dim, keepdim=True, dtype=dtype, mask=mask)
    return div(_filled(input, mask, 0), unary.clamp(length, min=eps))


def _filled(x: Tensor, mask: Tensor | None, value: Number) -> Tensor:
    """`x` with `value` where the mask is false. The mask is broadcast to `x`."""
    if mask is None:
        return x
    if mask.ndim > x.ndim:
        raise PositionError(
            f"masked: a mask {mask.meta} has more dims than its tensor {x.meta}; "
            "it has to be broadcast to the tensor"
        )
    is_left_out = unary.logical_not(as_type(mask, dtypes.bool_))
    return elementwise.masked_fill(x, is_left_out, value)


def _count(x: Tensor, mask: Tensor | None, dim: DimLike, keepdim: bool | None) -> Tensor:
    """The number of elements that count, as int64."""
    return sum(ones_like(x, dtype=dtypes.int64), dim, keepdim=keepdim, mask=mask)


def _dtype(dtype: DTypeLike | None, x: Tensor) -> DType:
    return x.meta.dtype if dtype is None else dtype_of(dtype)


def _as(found: Tensor, dtype: DTypeLike | None, x: Tensor) -> Tensor:
    """The result in the wanted dtype, that of the input by default."""
    return as_type(found, _dtype(dtype, x))


def _least(x: Tensor) -> Number:
    """The number that no element is below."""
    dtype = x.meta.dtype
    return -math.inf if category(dtype) >= 2 else _bounds(dtype)[0]


def _largest(x: Tensor) -> Number:
    dtype = x.meta.dtype
    return math.inf if category(dtype) >= 2 else _bounds(dtype)[1]


def _bounds(dtype: DType) -> tuple[int, int]:
    """The least and the largest number of an integer dtype."""
    if dtype is dtypes.bool_:
        return False, True
    info = np.iinfo(dtype.np)
    return int(info.min), int(info.max)
