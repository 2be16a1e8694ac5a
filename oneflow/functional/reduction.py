"""Sums, means, extremes and other reductions over dims."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DTypeLike, category, dtype_of
from oneflow.core.errors import ArgumentError, DTypeError, PositionError, ShapeError
from oneflow.core.operand import DimLike, TensorLike
from oneflow.functional.arithmetic import add, div, eq, isclose, mul, pow, sub
from oneflow.functional.dims import many_dims, one_dim
from oneflow.functional.elementwise import clone, masked_fill
from oneflow.functional.promotion import NARROW, as_float, as_type, need_tensors, same_type
from oneflow.functional.shaping import diagonal
from oneflow.ops import binary, compare, reduce
from oneflow.ops.complex_numbers import complex_abs
from oneflow.ops.gather import dim_gather
from oneflow.ops.shape import reshape as reshape_op
from oneflow.ops.unary import abs, exp, isnan, log, nonzero_steps, sqrt, square
from oneflow.tensor.tensor import Tensor, device_type

max_result = namedtuple("max_result", ("values", "indices"))
min_result = namedtuple("min_result", ("values", "indices"))


def sum(
    input: Tensor, dim: DimLike = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The sum over `dim` (all dims if None). Integers and bools are summed as int64."""
    if dtype is not None:
        input = as_type(input, dtype_of(dtype))
    elif category(input.meta.dtype) < 2:
        input = as_type(input, dtypes.int64)
    return reduce.reduce_sum(input, dims=many_dims(dim, input.ndim, "sum"), keepdim=bool(keepdim))


def trace(input: Tensor) -> Tensor:
    """The sum of a matrix's diagonal."""
    if input.ndim != 2:
        raise ShapeError(f"trace: expected a matrix, got {input.meta}")
    return sum(diagonal(input))


def mean(
    input: Tensor, dim: DimLike = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The mean over `dim` (all dims if None). Raises DTypeError for integers and bools, unless
    `dtype` is a dtype of floating-point or complex numbers.
    """
    x = input if dtype is None else as_type(input, dtype_of(dtype))
    if category(x.meta.dtype) < 2:
        raise DTypeError(
            f"mean: needs floating-point or complex elements, but has {x.meta}; cast with .float()"
        )
    dims = many_dims(dim, x.ndim, "mean")
    count = math.prod(x.meta.shape[d] for d in dims)
    total = reduce.reduce_sum(widened(x), dims=dims, keepdim=bool(keepdim))
    return as_type(div(total, count if count else math.nan), x.meta.dtype)


def widened(x: Tensor) -> Tensor:
    """float32 for float16 and bfloat16, whose sums may be larger than the dtype holds."""
    return as_type(x, dtypes.float32) if x.meta.dtype in NARROW else x


def prod(
    input: Tensor, dim: DimLike = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The product over `dim` (all dims if None)."""
    if dtype is not None:
        input = as_type(input, dtype_of(dtype))
        if input.meta.dtype is dtypes.bool_:
            return all(input, dim, keepdim)
    elif category(input.meta.dtype) < 2:
        input = as_type(input, dtypes.int64)
    return reduce.reduce_prod(input, dims=many_dims(dim, input.ndim, "prod"), keepdim=bool(keepdim))


def nansum(
    input: Tensor, dim: DimLike = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor:
    """The sum of all elements but NaN."""
    return sum(masked_fill(input, isnan(input), 0), dim, keepdim, dtype=dtype)


def _require_elements(name: str, x: Tensor, dims: tuple[int, ...]) -> None:
    """Raises PositionError for a dim without elements, of which none is the extreme."""
    for dim in dims:
        if not x.meta.shape[dim]:
            raise PositionError(
                f"{name}: Expected reduction dim {dim} of {x.meta} to have elements"
            )


def amax(input: Tensor, dim: DimLike = None, keepdim: bool = False) -> Tensor:
    """The largest over `dim`; equal ones share the gradient."""
    dims = many_dims(dim, input.ndim, "amax")
    if dim is not None:
        _require_elements("amax", input, dims)
    return reduce.reduce_max(input, dims=dims, keepdim=bool(keepdim))


def amin(input: Tensor, dim: DimLike = None, keepdim: bool = False) -> Tensor:
    """The smallest over `dim`; equal ones share the gradient."""
    dims = many_dims(dim, input.ndim, "amin")
    if dim is not None:
        _require_elements("amin", input, dims)
    return reduce.reduce_min(input, dims=dims, keepdim=bool(keepdim))


def max(
    input: Tensor,
    dim: int | Tensor | None = None,
    keepdim: bool = False,
    *,
    other: TensorLike | None = None,
) -> Any:
    """`max(x)`: the largest element.  `max(x, other)`: elementwise.  `max(x, dim, keepdim)`:
    (values, indices).
    """
    return _extreme("max", input, dim, keepdim, other)


def min(
    input: Tensor,
    dim: int | Tensor | None = None,
    keepdim: bool = False,
    *,
    other: TensorLike | None = None,
) -> Any:
    """`min(x)`: the smallest element.  `min(x, other)`: elementwise.  `min(x, dim, keepdim)`:
    (values, indices).
    """
    return _extreme("min", input, dim, keepdim, other)


def _extreme(
    name: str,
    input: Tensor,
    dim: int | Tensor | None,
    keepdim: bool,
    other: TensorLike | None,
) -> Any:
    second = dim if isinstance(dim, Tensor) else other
    if second is not None or not isinstance(input, Tensor):
        need_tensors(name, input=input, other=second)
        op = binary.maximum if name == "max" else binary.minimum
        return op(*same_type(name, input, second))
    if dim is None:
        return (amax if name == "max" else amin)(input)
    at = one_dim(dim, input.ndim, name)
    index = (argmax if name == "max" else argmin)(input, at, True)
    values = _taken(input, index, at)
    kind = max_result if name == "max" else min_result
    if keepdim:
        return kind(values, index)
    shape = _without(input, at)
    return kind(reshape_op(values, shape=shape), reshape_op(index, shape=shape))


def _without(x: Tensor, dim: int) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(x.meta.shape) if i != dim)


def _taken(x: Tensor, index: Tensor, dim: int) -> Tensor:
    if not x.meta.shape:
        return clone(x)
    return dim_gather(x, index, dim=one_dim(dim, x.ndim, "gather"))


def argmax(
    input: Tensor, dim: int | None = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """int64 position of the largest along `dim` (in the flattened tensor if None)."""
    return _position(reduce.argmax, "argmax", input, dim, keepdim, dtype)


def argmin(
    input: Tensor, dim: int | None = None, keepdim: bool = False, dtype: DTypeLike | None = None
) -> Tensor:
    """int64 position of the smallest along `dim` (in the flattened tensor if None)."""
    return _position(reduce.argmin, "argmin", input, dim, keepdim, dtype)


def _position(
    op: Callable[..., Tensor],
    name: str,
    x: Tensor,
    dim: int | None,
    keepdim: bool,
    dtype: DTypeLike | None,
) -> Tensor:
    at = 0 if dim is None else one_dim(dim, x.ndim, name)
    if not x.meta.shape or dim is None:
        flat = reshape_op(x, shape=(x.meta.numel,))
        out = op(flat, dim=0, keepdim=False)
        if keepdim:
            out = reshape_op(out, shape=(1,) * x.ndim)
    else:
        out = op(x, dim=at, keepdim=bool(keepdim))
    return out if dtype is None else as_type(out, dtype_of(dtype))


def any(input: Tensor, dim: DimLike = None, keepdim: bool = False) -> Tensor:
    """Is any element true? The result is bool."""
    x = as_type(input, dtypes.bool_)
    return reduce.reduce_any(x, dims=many_dims(dim, x.ndim, "any"), keepdim=bool(keepdim))


def all(input: Tensor, dim: DimLike = None, keepdim: bool = False) -> Tensor:
    """Are all elements true? The result is bool."""
    x = as_type(input, dtypes.bool_)
    return reduce.reduce_all(x, dims=many_dims(dim, x.ndim, "all"), keepdim=bool(keepdim))


def var(
    input: Tensor,
    dim: DimLike = None,
    unbiased: bool | None = None,
    keepdim: bool | None = None,
    *,
    correction: int | None = None,
) -> Tensor:
    """The variance over `dim`; unbiased (the default): divided by n - 1."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    dims = many_dims(dim, input.ndim, "var")
    less = correction if correction is not None else (0 if unbiased is False else 1)
    count = math.prod(input.meta.shape[d] for d in dims)
    x = widened(input)
    gap = sub(x, mean(x, dims, True) if dims else x)
    gap = square(complex_abs(gap) if gap.meta.dtype.is_complex else gap)
    total = sum(gap, dims, bool(keepdim)) if dims else gap
    found = div(total, count - less if count > less else 0)
    return as_type(found, input.meta.dtype) if input.meta.dtype in NARROW else found


def std(
    input: Tensor,
    dim: DimLike = None,
    unbiased: bool | None = None,
    keepdim: bool | None = None,
    *,
    correction: int | None = None,
) -> Tensor:
    """The standard deviation: the root of `var`."""
    x = widened(input)
    if x.meta.dtype is dtypes.float32 and device_type(input) == "cpu":
        if x._array is not None and not x.is_global:
            found = root(var(x, dim, unbiased, keepdim, correction=correction))
            if _has_usual_squares(found):
                return as_type(found, input.meta.dtype)
        # Squares may be no numbers of the dtype, though their root is; a graph has to expect it.
        x = as_type(x, dtypes.float64)
    found = root(var(x, dim, unbiased, keepdim, correction=correction))
    return found if x is input else as_type(found, input.meta.dtype)


def _has_usual_squares(found: Tensor) -> bool:
    """Are all of these roots of float32 numbers far from its ends?"""
    return bool(np.all((found._array > _LEAST_ROOT) & (found._array < math.inf)))


_LEAST_ROOT = 1e-15


def root(x: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0, as norms and standard deviations have it."""
    if not x.requires_grad:
        return sqrt(x)
    is_zero = compare.scalar_compare(x, value=0, kind="eq")
    return masked_fill(sqrt(masked_fill(x, is_zero, 1.0)), is_zero, 0.0)


def logsumexp(input: Tensor, dim: DimLike, keepdim: bool = False) -> Tensor:
    """log(sum(exp(input))) without overflow."""
    dims = many_dims(dim, input.ndim, "logsumexp")
    input = as_float(input)
    if not math.prod(input.meta.shape[d] for d in dims):
        return log(sum(exp(input), dims, keepdim))
    top = amax(input.detach(), dims, True)
    top = masked_fill(top, compare.scalar_compare(abs(top), value=math.inf, kind="eq"), 0.0)
    total = log(sum(exp(sub(input, top)), dims, keepdim))
    return add(total, top if keepdim else sum(top, dims))


def norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: DimLike = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
    *,
    ord: float | str | None = None,
) -> Tensor:
    """(sum |x|^p)^(1/p) over `dim` (all dims if None); p: a number, inf, -inf or "fro" (2)."""
    order = p if ord is None else ord
    x = as_float(input) if dtype is None else as_type(input, dtype_of(dtype))
    if x.meta.dtype in NARROW:
        return as_type(norm(widened(x), order, dim, keepdim), x.meta.dtype)
    if x.meta.dtype.is_complex:
        x = complex_abs(x)
    if order in ("fro", None, 2):
        return root(sum(square(x), dim, keepdim))
    if isinstance(order, str):
        raise ArgumentError(f"norm: order must be a number or 'fro', got {order!r}")
    if order in (math.inf, -math.inf):
        return (amax if order > 0 else amin)(abs(x), dim, keepdim)
    if order == 0:
        return sum(nonzero_steps(x), dim, keepdim)
    if order == 1:
        return sum(abs(x), dim, keepdim)
    return _norm_of_order(abs(x), float(order), dim, keepdim)


def _norm_of_order(size: Tensor, order: float, dim: DimLike, keepdim: bool) -> Tensor:
    """The norm of any other order. Zeros, and a norm of zero, get gradient 0."""
    if not size.requires_grad:
        return pow(sum(pow(size, order), dim, keepdim), 1.0 / order)
    empty = compare.scalar_compare(size, value=0, kind="eq")
    power = masked_fill(
        pow(masked_fill(size, empty, 1.0), order), empty, 0.0 if order > 0 else math.inf
    )
    total = sum(power, dim, keepdim)
    is_zero = compare.scalar_compare(total, value=0, kind="eq")
    return masked_fill(pow(masked_fill(total, is_zero, 1.0), 1.0 / order), is_zero, 0.0)


def cumsum(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """Running sums along `dim`."""
    return _running(reduce.cumsum, "cumsum", input, dim, dtype)


def cumprod(input: Tensor, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
    """Running products along `dim`."""
    return _running(reduce.cumprod, "cumprod", input, dim, dtype)


def _running(
    op: Callable[..., Tensor], name: str, x: Tensor, dim: int, dtype: DTypeLike | None
) -> Tensor:
    if dtype is not None:
        x = as_type(x, dtype_of(dtype))
    elif category(x.meta.dtype) < 2:
        x = as_type(x, dtypes.int64)
    at = one_dim(dim, x.ndim, name)
    return clone(x) if not x.meta.shape else op(x, dim=at)


def equal(input: Tensor, other: Tensor) -> bool:
    """Have both the same shape and the same elements?"""
    return input.meta.shape == other.meta.shape and bool(all(eq(input, other)).item())


def allclose(
    input: Tensor, other: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Are all elements close (see `isclose`)?"""
    return bool(all(isclose(input, other, atol, rtol, equal_nan)).item())


def reduce_sum_like(input: Tensor, like: Tensor, axis: DimLike = ()) -> Tensor:
    """Sums over `axis`, in the shape of `like`; without an axis over the dims along which `like`
    would be broadcast to `input`.
    """
    if input.meta.dtype is not like.meta.dtype:
        raise DTypeError(f"reduce_sum_like: {input.meta} and {like.meta} must have one dtype")
    if axis is None or axis == ():
        return reduce.sum_to_shape(input, like.meta.shape)
    return reshape_op(sum(input, axis), shape=like.meta.shape)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of the difference."""
    return norm(mul(sub(input, other), 1), p)


Made = TypeVar("Made")


def with_old_reduction(function: Callable[..., Made]) -> Callable[..., Made]:
    """Let a loss, or the constructor of one, take PyTorch's old `size_average` and `reduce`, which
    name the reduction: as keywords, and by position where it has parameters for them.
    """
    names = list(inspect.signature(function).parameters)
    first = next((k for k, name in enumerate(names) if name in _OLD), len(names))

    @functools.wraps(function)
    def called(*args: object, **keywords: object) -> Made:
        if len(args) > first:
            keywords.update(zip(names[first:], args[first:], strict=False))
            args = args[:first]
        if keywords and not _OLD.isdisjoint(keywords):
            averages, reduces = (keywords.pop(name, None) for name in ("size_average", "reduce"))
            if averages is not None or reduces is not None:
                mean_or_sum = "sum" if averages is False else "mean"
                reduction = "none" if reduces is False else mean_or_sum
                keywords["reduction"] = reduction
                warnings.warn(
                    "size_average and reduce args will be deprecated, please use "
                    f"reduction='{reduction}' instead.",
                    stacklevel=2,
                )
        return function(*args, **keywords)

    return called


_OLD = frozenset(("size_average", "reduce"))


def check_reduction(reduction: str) -> None:
    """Raises ArgumentError for a reduction that `reduced` does not know."""
    if reduction not in ("none", "mean", "sum"):
        raise ArgumentError(
            f"{reduction} is not a valid value for reduction: it is 'none', 'mean' or 'sum'"
        )


def weighted(loss: Tensor, weight: Tensor | None, reduction: str) -> Tensor:
    """A loss per element times a weight of its shape, reduced: "mean" divides by the sum of the
    weights. Raises ShapeError for a weight of another shape.
    """
    if weight is None:
        return reduced(loss, reduction)
    if weight.meta.shape != loss.meta.shape:
        raise ShapeError(
            f"Weights and input must have the same size, got {weight.meta} for {loss.meta}"
        )
    check_reduction(reduction)
    scaled = mul(loss, weight)
    return div(sum(scaled), sum(weight)) if reduction == "mean" else reduced(scaled, reduction)


def reduced(loss: Tensor, reduction: str) -> Tensor:
    """A loss per element as users ask for it: "none", "mean" or "sum". Raises ArgumentError."""
    check_reduction(reduction)
    if reduction == "none":
        return loss
    return mean(loss) if reduction == "mean" else sum(loss)
