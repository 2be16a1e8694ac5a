"""Statistics: moments, extremes with positions, histograms, running results, differences."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType, category, dtype_of
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.operand import DimLike
from oneflow.functional.arithmetic import add, div, lerp, mul, sub
from oneflow.functional.complex_numbers import conj
from oneflow.functional.concat_split import cat, narrow
from oneflow.functional.creation import full
from oneflow.functional.dims import many_dims, one_dim
from oneflow.functional.elementwise import clone, masked_fill
from oneflow.functional.from_data import beside
from oneflow.functional.linalg.products import matmul
from oneflow.functional.promotion import as_float, as_type
from oneflow.functional.reduction import amax, amin, mean, norm, std, var
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import reshape, unsqueeze
from oneflow.functional.sort_and_search import median, median_result, searchsorted, shared, sort
from oneflow.ops import scan, unary
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import KEEP_SHAPE, Tensor, needs_data

aminmax_result = namedtuple("aminmax_result", ("min", "max"))
cummax_result = namedtuple("cummax_result", ("values", "indices"))
cummin_result = namedtuple("cummin_result", ("values", "indices"))


class Histogram(NamedTuple):
    """Counts or densities, and the edges of the bins."""

    hist: Tensor
    bin_edges: Tensor


def nanmean(
    input: Tensor, dim: DimLike = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """The mean of all elements but NaN."""
    x = input if dtype is None else as_type(input, dtype_of(dtype))
    if category(x.meta.dtype) < 2:
        raise DTypeError(f"nanmean(): expected input to have floating point dtype, got {x.meta}")
    empty = unary.isnan(x)
    count = total(as_type(unary.logical_not(empty), x.meta.dtype), dim, keepdim)
    return div(total(masked_fill(x, empty, 0.0), dim, keepdim), count)


def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> object:
    """The lower median of elements that are not NaN: of all, or (values, indices) along `dim`."""
    if dim is None:
        flat = reshape(input, (-1,))
        if not flat.meta.numel:
            return median(input)
        return shared(flat, _nanmedian(flat, 0, False)[0])
    if not input.ndim:
        return median_result(*_nanmedian(reshape(input, (1,)), 0, False))
    at = one_dim(dim, input.ndim, "nanmedian")
    return median_result(*_nanmedian(input, at, keepdim))


def _nanmedian(x: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    ordered, places = sort(x, dim)
    count = total(as_type(unary.logical_not(unary.isnan(x)), dtypes.int64), dim, True)
    middle = unary.clamp(sub(count, 1).div(2, rounding_mode="floor"), min=0)
    found = ordered.gather(dim, middle), places.gather(dim, middle)
    if keepdim:
        return found
    return found[0].squeeze(dim), found[1].squeeze(dim)


def nanquantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """`quantile` of the elements that are not NaN; a row of NaN gives NaN."""
    x = as_float(input)
    flat = reshape(x, (-1,)) if dim is None or not x.ndim else x
    at = one_dim(-1 if dim is None else dim, flat.ndim, "nanquantile")
    if not flat.meta.shape[at]:
        raise ShapeError(f"nanquantile: {input.meta} has no elements along dim {dim}")
    ordered = sort(flat, at)[0]
    count = total(as_type(unary.logical_not(unary.isnan(flat)), x.meta.dtype), at, True)
    many = isinstance(q, Tensor) and q.ndim == 1
    q = q.detach() if isinstance(q, Tensor) and interpolation != "linear" else q
    shares = reshape(q, (-1,)) if isinstance(q, Tensor) else x.new_full((1,), float(q))
    shares = reshape(shares, (-1, *(1,) * flat.ndim))
    spots = mul(shares, unary.clamp(sub(unsqueeze(count, 0), 1), min=0.0))
    low, high = unary.floor(spots), unary.ceil(spots)
    share = sub(spots, low)
    if interpolation == "midpoint":
        share = mul(sub(high, low), 0.5)
    elif interpolation == "lower":
        share = mul(share, 0.0)
    elif interpolation == "higher":
        share = sub(high, low)
    elif interpolation == "nearest":
        share = sub(unary.round(spots), low)
    wide = unsqueeze(ordered, 0).expand(shares.meta.shape[0], *ordered.meta.shape)
    below = wide.gather(at + 1, as_type(low, dtypes.int64))
    above = wide.gather(at + 1, as_type(high, dtypes.int64))
    out = lerp(below, above, share)
    kept = tuple(1 if dim is None or i == at else n for i, n in enumerate(input.meta.shape))
    rest = tuple(n for i, n in enumerate(input.meta.shape) if dim is not None and i != at)
    left = kept if keepdim else rest
    return reshape(out, (out.meta.shape[0], *left) if many else left)


def var_mean(
    input: Tensor,
    dim: DimLike = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(variance, mean) over `dim`."""
    dims = None if isinstance(dim, bool) else dim
    return var(input, dim, unbiased, keepdim, correction=correction), mean(input, dims, keepdim)


def std_mean(
    input: Tensor,
    dim: DimLike = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(standard deviation, mean) over `dim`."""
    dims = None if isinstance(dim, bool) else dim
    return std(input, dim, unbiased, keepdim, correction=correction), mean(input, dims, keepdim)


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> aminmax_result:
    """(smallest, largest) over `dim`, or of all."""
    return aminmax_result(amin(input, dim, keepdim), amax(input, dim, keepdim))


def count_nonzero(input: Tensor, dim: DimLike = None) -> Tensor:
    """The number of elements over `dim` that are not zero."""
    return total(as_type(input, dtypes.bool_), dim)


def cummax(input: Tensor, dim: int) -> cummax_result:
    """(values, indices) of the largest so far along `dim`; of equal ones the last."""
    return cummax_result(*_extremes(input, dim, True))


def cummin(input: Tensor, dim: int) -> cummin_result:
    """(values, indices) of the smallest so far along `dim`; of equal ones the last."""
    return cummin_result(*_extremes(input, dim, False))


def _extremes(x: Tensor, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    at = one_dim(dim, x.ndim, "cummax" if largest else "cummin")
    if not x.ndim:
        return clone(x), as_type(mul(as_type(x.detach(), dtypes.int64), 0), dtypes.int64)
    return scan.cumextreme(x, dim=at, largest=largest)


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """log(cumsum(exp(input))) along `dim`, without overflow."""
    x, at = as_float(input), one_dim(dim, input.ndim, "logcumsumexp")
    return scan.logcumsumexp(x, dim=at) if x.ndim else clone(x)


def diff(
    input: Tensor,
    n: int = 1,
    dim: int = -1,
    prepend: Tensor | None = None,
    append: Tensor | None = None,
) -> Tensor:
    """The n-th differences of neighbours along `dim`."""
    if not input.ndim:
        raise ShapeError("diff expects input to be at least one-dimensional")
    at = one_dim(dim, input.ndim, "diff")
    if n < 0:
        raise ArgumentError(f"diff: order must be non-negative, got {n}")
    if n == 0:
        return clone(input)
    parts = [p for p in (prepend, input, append) if p is not None]
    x = cat(parts, at) if len(parts) > 1 else input
    for _ in range(min(n, x.meta.shape[at])):
        size = x.meta.shape[at]
        before, after = narrow(x, at, 0, size - 1), narrow(x, at, 1, size - 1)
        x = before != after if x.meta.dtype is dtypes.bool_ else sub(after, before)
    return x


def gradient(
    input: Tensor,
    *,
    spacing: float | Tensor | Sequence[float | Tensor] | None = None,
    dim: DimLike = None,
    edge_order: int = 1,
) -> tuple[Tensor, ...]:
    """Slopes by central differences along dims; spacing: a step, or the places of the samples."""
    dims = many_dims(dim, input.ndim, "gradient")
    if len(set(dims)) != len(dims):
        raise ShapeError(f"gradient: a dim appears multiple times in the list of dims {dim}")
    if isinstance(spacing, (tuple, list)):
        steps = list(spacing)
    else:
        steps = [1.0 if spacing is None else spacing] * len(dims)
    if len(steps) != len(dims):
        raise ShapeError(f"gradient: expected a spacing for each of {len(dims)} dims")
    x = as_float(input) if category(input.meta.dtype) < 2 else input
    return tuple(_slope(x, d, step, edge_order) for d, step in zip(dims, steps, strict=True))


def _slope(x: Tensor, dim: int, step: float | Tensor, edge_order: int) -> Tensor:
    size = x.meta.shape[dim]
    if size < edge_order + 1:
        raise ShapeError(f"gradient: each dim needs at least {edge_order + 1} elements: {x.meta}")

    def at(i: int, count: int) -> Tensor:
        return narrow(x, dim, i, count)

    if isinstance(step, Tensor) and step.ndim:
        shape = tuple(-1 if i == dim else 1 for i in range(x.ndim))
        gaps = reshape(sub(step[1:], step[:-1]), shape)
    else:
        ones = full((size - 1,), 1.0, dtype=x.meta.dtype, **layout_of(x, no_partial=True, ndim=1))
        gaps = reshape(ones * step, tuple(-1 if i == dim else 1 for i in range(x.ndim)))
    first = div(sub(at(1, size - 1), at(0, size - 1)), gaps)
    left, right = narrow(gaps, dim, 0, size - 2), narrow(gaps, dim, 1, size - 2)
    share = div(left, add(left, right))
    below, above = narrow(first, dim, 0, size - 2), narrow(first, dim, 1, size - 2)
    middle = add(mul(below, sub(1, share)), mul(above, share))
    start, end = narrow(first, dim, 0, 1), narrow(first, dim, size - 2, 1)
    if edge_order == 2:
        a, b = narrow(gaps, dim, 0, 1), narrow(gaps, dim, 1, 1)
        rise = div(sub(narrow(first, dim, 1, 1), start), add(a, b))
        start_edge = sub(start, mul(rise, a))
        a, b = narrow(gaps, dim, size - 3, 1), narrow(gaps, dim, size - 2, 1)
        rise = div(sub(end, narrow(first, dim, size - 3, 1)), add(a, b))
        return cat([start_edge, middle, add(end, mul(rise, b))], dim)
    return cat([start, middle, end], dim)


def trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1
) -> Tensor:
    """The integral of `y` along `dim` by the trapezoidal rule.  x: the places; or dx apart."""
    return total(
        _trapezoids(y, x, 1.0 if dx is None else dx, dim), one_dim(dim, y.ndim, "trapezoid")
    )


trapz = trapezoid


def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float | None = None, dim: int = -1
) -> Tensor:
    """The integral of `y` from the first place to each of the others."""
    at = one_dim(dim, y.ndim, "cumulative_trapezoid")
    return _trapezoids(y, x, 1.0 if dx is None else dx, dim).cumsum(at)


def _trapezoids(y: Tensor, x: Tensor | None, dx: float, dim: int) -> Tensor:
    at = one_dim(dim, y.ndim, "trapezoid")
    size = y.meta.shape[at]
    count = max(size - 1, 0)
    y = as_float(y)
    pairs = add(narrow(y, at, min(1, size), count), narrow(y, at, 0, count))
    if x is None:
        return mul(pairs, dx / 2)
    if x.ndim == 1:
        if x.meta.shape[0] != size:
            raise ShapeError(f"trapezoid: there must be one x value for each of {size} samples")
        gaps = reshape(diff(as_float(x)), tuple(-1 if i == at else 1 for i in range(y.ndim)))
    else:
        shaped = reshape(as_float(x), (1,) * (y.ndim - x.ndim) + x.meta.shape)
        gaps = diff(shaped, dim=at)
    return div(mul(pairs, gaps), 2)


def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """The covariance of variables (rows) over observations (columns)."""
    if input.ndim > 2:
        raise ShapeError(f"cov(): expected input to have two or fewer dimensions, got {input.meta}")
    x = input if category(input.meta.dtype) >= 2 else as_float(input)
    x = reshape(x, (1, -1)) if x.ndim < 2 else x
    weight: Tensor | None = None
    for given in (fweights, aweights):
        if given is not None and given.meta.shape != x.meta.shape[1:]:
            raise ShapeError(f"cov: weights {given.meta} do not fit the observations of {x.meta}")
        if given is not None and _is_at_hand(given) and (given < 0).any().item():
            name = "fweights" if given is fweights else "aweights"
            raise ArgumentError(f"cov(): {name} cannot be negative, got {given.meta}")
    if fweights is not None:
        if not fweights.meta.dtype.is_integer:
            raise DTypeError(f"cov: expected fweights to have integral dtype, got {fweights.meta}")
        weight = as_type(fweights, x.meta.dtype)
    if aweights is not None:
        heavy = as_type(aweights, x.meta.dtype)
        weight = heavy if weight is None else mul(weight, heavy)
    count: Tensor | float
    if weight is None:
        count, centre = float(x.meta.shape[1]), mean(x, 1, True)
        share = count - correction
        centred = sub(x, centre)
        scaled = centred
        factor: Tensor | float = max(share, 0.0)
    else:
        whole = total(weight)
        centre = unsqueeze(div(total(mul(x, weight), 1), whole), 1)
        centred = sub(x, centre)
        scaled = mul(centred, weight)
        if aweights is None:
            factor = sub(whole, correction)
        else:
            factor = sub(
                whole,
                div(mul(total(mul(weight, as_type(aweights, x.meta.dtype))), correction), whole),
            )
        factor = unary.clamp(factor, min=0.0)
    product = matmul(scaled, conj(centred.transpose(0, 1)))
    out = div(product, factor)
    return reshape(out, ()) if out.meta.shape == (1, 1) else out


def _is_at_hand(x: Tensor) -> bool:
    """Whether its values can be looked at here and now."""
    return x._array is not None and x._placement is None


def corrcoef(input: Tensor) -> Tensor:
    """The correlation of variables (rows) over observations (columns)."""
    if input.ndim > 2:
        raise ShapeError(f"corrcoef(): expected input to have two or fewer dims, got {input.meta}")
    matrix = cov(input)
    if not matrix.ndim:
        return div(matrix, matrix)
    spread = unary.sqrt(matrix.diagonal())
    return unary.clamp(
        div(div(matrix, unsqueeze(spread, 1)), unsqueeze(spread, 0)), min=-1.0, max=1.0
    )


# ---- histograms ----------------------------------------------------------------------------------


def histc(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts of the elements in `bins` equal parts of min .. max (of the elements' own range if
    both are equal).
    """
    if bins <= 0:
        raise ArgumentError(f"histc: bins must be > 0, got {bins}")
    needs_data(input, "histc()")
    values = input.numpy().reshape(-1).astype(np.float64)
    if min > max:
        raise ArgumentError(f"histc: max {max} must be at least min {min}")
    low, high = float(min), float(max)
    if low == high and values.size:
        low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 1, high + 1
    if not math.isfinite(low) or not math.isfinite(high):
        raise ArgumentError(f"histc: range of [{low}, {high}] is not finite")
    inside = values[(values >= low) & (values <= high)]
    place = np.minimum(((inside - low) * bins / (high - low)).astype(np.int64), bins - 1)
    counts = np.bincount(place, minlength=bins)
    return beside(input, counts.astype(input.meta.dtype.np))


def histogram(
    input: Tensor,
    bins: int | Tensor,
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """The weight of the elements in each bin, and the bins' edges.

    bins: how many, of equal width, over `range`; or their edges.
    """
    needs_data(input, "histogram()")
    values = input.numpy().reshape(-1)
    kind = input.meta.dtype.np
    if isinstance(bins, Tensor):
        edges = bins.numpy().astype(kind)
    else:
        low, high = map(float, range) if range is not None else (0.0, 0.0)
        if range is None and values.size:
            low, high = float(values.min()), float(values.max())
        elif range is None:
            high = 1.0
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges = np.linspace(low, high, int(bins) + 1).astype(kind)
    heavy = None if weight is None else weight.numpy().reshape(-1).astype(np.float64)
    counts, _ = np.histogram(values.astype(np.float64), edges.astype(np.float64), weights=heavy)
    found = counts.astype(np.float64)
    if density:
        found = found / found.sum() / np.diff(edges.astype(np.float64))
    return Histogram(beside(input, found.astype(kind)), beside(input, edges))


def bucketize(
    input: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """The bin of each element between sorted boundaries; right: a boundary belongs to the bin
    above it.
    """
    if boundaries.ndim != 1:
        raise ShapeError(f"bucketize: boundaries tensor must be 1 dimension, got {boundaries.meta}")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


def unique_consecutive(
    input: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> object:
    """Runs of equal elements (or slices along `dim`) made one; also, if asked, the run of each
    element and the runs' lengths.
    """
    needs_data(input, "unique_consecutive()", KEEP_SHAPE)
    values = input.numpy()
    at = None if dim is None else one_dim(dim, input.ndim, "unique_consecutive")
    rows = values.reshape(-1, 1) if at is None else np.moveaxis(values, at, 0)
    flat = rows.reshape(rows.shape[0], -1) if rows.size else rows.reshape(rows.shape[0], 0)
    starts = np.ones(len(flat), bool)
    starts[1:] = (flat[1:] != flat[:-1]).any(axis=1)
    runs = np.cumsum(starts) - 1
    kept = values.reshape(-1)[starts] if at is None else np.compress(starts, values, axis=at)
    result = [as_type(beside(input, kept), input.meta.dtype)]
    if return_inverse:
        shape = values.shape if at is None else (-1,)
        result.append(beside(input, runs.reshape(shape).astype(np.int64)))
    if return_counts:
        result.append(beside(input, np.bincount(runs, minlength=0).astype(np.int64)))
    return result[0] if len(result) == 1 else tuple(result)


# ---- distances -----------------------------------------------------------------------------------


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """The p-norm of the difference of every row of x1 and every row of x2."""
    if x1.ndim < 2 or x2.ndim < 2 or x1.meta.shape[-1] != x2.meta.shape[-1]:
        raise ShapeError(f"cdist: needs (..., P, M) and (..., R, M), got {x1.meta} and {x2.meta}")
    if p < 0:
        raise ArgumentError(f"cdist only supports non-negative p values, got {p}")
    gap = sub(unsqueeze(x1, -2), unsqueeze(x2, -3))
    if not gap.meta.shape[-1]:
        return total(gap, -1)
    return _length(gap, p)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """The p-norm of the difference of every two rows, in the order of the upper triangle."""
    if input.ndim != 2:
        raise ShapeError(f"pdist only supports 2D tensors, got {input.meta}")
    first, second = np.triu_indices(input.meta.shape[0], 1)
    gap = sub(input[beside(input, first)], input[beside(input, second)])
    if not gap.meta.shape[-1]:
        return total(gap, -1)
    return _length(gap, p)


def _length(gap: Tensor, p: float) -> Tensor:
    """The p-norm along the last dim; that of order 0 has a gradient here, of zeros."""
    if p == 0:
        return total(unary.abs(unary.sign(gap)), -1)
    return norm(gap, p, -1)


def renorm(input: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """The slices along `dim`, scaled down to a p-norm of at most maxnorm."""
    if input.ndim < 2:
        raise ShapeError(f"renorm: input needs at least 2 dimensions, got {input.meta}")
    at = one_dim(dim, input.ndim, "renorm")
    others = tuple(i for i in range(input.ndim) if i != at)
    size = norm(input, p, others, True)
    scale = div(maxnorm, add(size, 1e-7))
    factor = masked_fill(scale, unary.logical_not(size > maxnorm), 1.0)
    return mul(input, factor)
