"""Orders of elements, and positions of those with a property: sort, topk, nonzero, unique, ..."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DTypeLike, dtype_of
from oneflow.core.errors import (
    ArgumentError,
    CallError,
    DTypeError,
    OneFlowError,
    PositionError,
    ShapeError,
)
from oneflow.core.operand import Number, TensorLike
from oneflow.core.sbp import all_broadcast
from oneflow.functional.arithmetic import ge, gt, lerp
from oneflow.functional.creation import full_like, rand
from oneflow.functional.dims import one_dim
from oneflow.functional.elementwise import masked_fill, pick
from oneflow.functional.from_data import beside, place
from oneflow.functional.gather_scatter import as_index, gather, index_select
from oneflow.functional.promotion import as_type
from oneflow.functional.random_state import Generator
from oneflow.functional.reduction import cumsum
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import (
    broadcast_tensors,
    movedim,
    reshape,
)
from oneflow.kernels.array import Array
from oneflow.ops import compare, unary
from oneflow.ops import gather as ops
from oneflow.ops import sort as sort_ops
from oneflow.ops import where as where_ops
from oneflow.ops.binary import minimum
from oneflow.ops.reduce import argmax, reduce_max
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import KEEP_SHAPE, Tensor, needs_data

sort_result = namedtuple("sort_result", ("values", "indices"))
topk_result = namedtuple("topk_result", ("values", "indices"))
mode_result = namedtuple("mode_result", ("values", "indices"))
median_result = namedtuple("median_result", ("values", "indices"))


MOST_PLACES = 1 << 24
"""float32, in which the running sums of weights may be, counts no further."""

R = TypeVar("R")


def where(condition: Tensor, x: TensorLike | None = None, y: TensorLike | None = None) -> Any:
    """x where condition is true, else y. With the condition alone: as `nonzero(condition,
    as_tuple=True)`.
    """
    if x is None or y is None:
        if x is not y:
            raise CallError("where() needs a value for true and one for false, or neither")
        return nonzero(condition, as_tuple=True)
    return pick(condition, x, y)


def _at_least_vector(
    input: Tensor,
    order: Callable[[Tensor], tuple[Tensor, Tensor]],
    result: Callable[[Tensor, Tensor], R],
) -> R:
    """(values, indices) of `order`, which works along a dim; a 0-d tensor is sorted as a vector."""
    if input.ndim:
        return result(*order(input))
    values, indices = order(reshape(input, (1,)))
    return result(reshape(values, ()), reshape(indices, ()))


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """(values, indices) along `dim`; equal elements keep their order."""
    at = one_dim(dim, input.ndim, "sort")
    return _at_least_vector(
        input, lambda x: sort_ops.sort(x, dim=at, descending=bool(descending)), sort_result
    )


def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that `sort` gives."""
    indices: Tensor = sort(input, dim, descending)[1]
    return indices


def topk(
    input: Tensor, k: int, dim: int | None = None, largest: bool = True, sorted: bool = True
) -> Any:
    """(values, indices) of the k largest (or smallest) along `dim` (the last if None), best
    first.
    """
    at = one_dim(-1 if dim is None else dim, input.ndim, "topk")
    if not input.ndim and k == 0:
        return topk_result(reshape(input, (1,))[:0], _no_places(input))
    return _at_least_vector(
        input, lambda x: sort_ops.topk(x, k=int(k), dim=at, largest=bool(largest)), topk_result
    )


def _no_places(like: Tensor) -> Tensor:
    """int64 (0,), beside `like`."""
    return as_type(reshape(like, (1,))[:0].detach(), dtypes.int64)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """(value, index) of the k-th smallest along `dim`."""
    at = one_dim(dim, input.ndim, "kthvalue")
    size = input.meta.shape[at] if input.ndim else 1
    if not 1 <= k <= size:
        raise ShapeError(f"kthvalue: k must be in 1 .. {size}, the size of dim {dim}; got {k}")
    if not input.ndim:
        return sort(input)
    values, indices = sort(input, at)
    index = slice(k - 1, k) if keepdim else k - 1
    where = (*(slice(None),) * at, index)
    return sort_result(values[where].contiguous(), indices[where].contiguous())


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower median of all, or (values, indices) along `dim`. A row with a NaN gives NaN."""
    if dim is None:
        flat = reshape(input, (-1,))
        return _of_none(input) if not flat.meta.numel else shared(flat, median(flat, 0)[0])
    at = one_dim(dim, input.ndim, "median")
    size = input.meta.shape[at] if input.ndim else 1
    if not size:
        raise PositionError(f"median: dim {dim} of {input.meta} has no elements, of which none is")
    values, indices = kthvalue(input, (size + 1) // 2, dim, keepdim)
    if input.meta.dtype.is_floating_point and input.ndim:
        place = argmax(input.detach(), dim=at, keepdim=True)  # of the first NaN, if there is one
        largest = gather(input, at, place)
        if not keepdim:
            largest, place = largest.squeeze(at), place.squeeze(at)
        bad = unary.isnan(largest.detach())
        values = where_ops.where(bad, largest, values)
        indices = where_ops.where(bad, place, indices)
    return median_result(values, indices)


def shared(x: Tensor, value: Tensor) -> Tensor:
    """`value`, an element of the vector `x`, with a gradient that all elements equal to it share
    evenly, as NaNs do.
    """
    if not value.requires_grad:
        return value
    value = value.detach()
    is_equal = compare.logical_or(
        compare.eq(x, value), compare.logical_and(unary.isnan(x), unary.isnan(value))
    )
    return reduce_max(masked_fill(x, unary.logical_not(is_equal), -math.inf), dims=(0,))


def _of_none(input: Tensor) -> Tensor:
    """NaN, or the least integer, as the median of no elements."""
    dtype = input.meta.dtype
    least = math.nan if dtype.is_floating_point else int(np.iinfo(dtype.np).min)
    return total(full_like(reshape(input, (-1,)), 0)) * 0 + least


def one_hot(
    input: Tensor, num_classes: int = -1, on_value: Number = 1, off_value: Number = 0
) -> Tensor:
    """1 at the place that each integer names, in a new last dim of num_classes (-1: the largest
    plus one).
    """
    index = as_index(input)
    if num_classes == -1 and not input.meta.numel:
        raise ShapeError(
            f"one_hot: Can not infer total number of classes from empty tensor {input.meta}"
        )
    if num_classes == -1:
        needs_data(input, "one_hot() without num_classes", "give num_classes")
    depth = num_classes if num_classes != -1 else max(int(input.max().item()) + 1, 1)
    out = ops.one_hot(index, depth=int(depth), dtype=dtypes.int64)
    if (on_value, off_value) == (1, 0):
        return out
    return out * (on_value - off_value) + off_value


# ---- results whose shape depends on the values: they need data, so they do not work while a graph
# is traced ----------


def _from_values(values: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """A tensor of computed values beside `like`."""
    if like._placement is not None:
        return place(values, None, like._placement, all_broadcast(like._placement.ndim))
    return place(values, like._device, None, None)


def nonzero(input: Tensor, as_tuple: bool = False) -> Any:
    """int64 (n, ndim): the places of nonzero elements; as_tuple: one vector per dim."""
    needs_data(input, "nonzero()", KEEP_SHAPE)
    found = np.nonzero(np.atleast_1d(input.numpy()))
    if as_tuple:
        return tuple(_from_values(f.astype(np.int64), input) for f in found)
    table = (
        np.stack(found, axis=1).astype(np.int64)
        if input.ndim
        else np.zeros((len(found[0]), 0), np.int64)
    )
    return _from_values(table, input)


def argwhere(input: Tensor, dtype: DTypeLike | None = None) -> Tensor:
    """The places of nonzero elements: integers (n, ndim), int64 unless dtype says otherwise."""
    found: Tensor = nonzero(input)
    return found if dtype is None else as_type(found, dtype_of(dtype))


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where mask is true, as a vector."""
    x, m = broadcast_tensors(input, mask)
    places = nonzero(reshape(m, (-1,)), as_tuple=True)[0]
    return ops.gather(reshape(x, (-1,)), places, dim=0)


def unique(
    input: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dtype: DTypeLike | None = None,
    dim: int | None = None,
) -> Any:
    """The different elements, or slices along `dim`, in ascending order; also, if asked, the place
    of each element (or slice) among them and their counts.
    """
    needs_data(input, "unique()", KEEP_SHAPE)
    at = None if dim is None else one_dim(dim, input.ndim, "unique")
    values, inverse, counts = (
        _unique(input)
        if at is None
        else np.unique(
            input.numpy(), return_inverse=True, return_counts=True, axis=at, equal_nan=False
        )
    )
    kind = np.int64 if dtype is None else dtype_of(dtype).np
    result = [as_type(_from_values(values, input), input.meta.dtype)]
    if return_inverse:
        shape = input.meta.shape if at is None else (-1,)
        result.append(_from_values(inverse.reshape(shape).astype(kind), input))
    if return_counts:
        result.append(_from_values(counts.astype(kind), input))
    return result[0] if len(result) == 1 else tuple(result)


def _unique(input: Tensor) -> tuple[Array, Array, Array]:
    """The different elements in ascending order, the place of each element among them, and their
    counts."""
    ordered, places = sort_ops.sort(reshape(input.detach(), (-1,)), dim=0)
    values = ordered.numpy()
    is_new = np.ones(values.shape, bool)
    np.not_equal(values[1:], values[:-1], out=is_new[1:])
    begins = np.flatnonzero(is_new)
    inverse = np.empty(values.shape, np.int64)
    inverse[places.numpy()] = np.cumsum(is_new) - 1
    return values[begins], inverse, np.diff(begins, append=values.size)


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int | None = None) -> Tensor:
    """Count how often each of 0, 1, ... occurs in a vector of integers: int64, or the sums of its
    weights: float32 of float32, float64 of others.
    """
    needs_data(input, "bincount()", "one_hot(x, n).sum(0) counts n values")
    if input.ndim != 1 or not input.meta.dtype.is_integer:
        raise ShapeError(
            f"bincount only support 1-d non-negative integral inputs, got {input.meta}"
        )
    values = input.numpy()
    if values.size and values.min() < 0:
        raise OneFlowError(
            "bincount only support 1-d non-negative integral inputs, got a negative one"
        )
    heavy = None if weights is None else weights.numpy()
    counts = np.bincount(values, heavy, minlength or 0)
    if weights is not None and weights.meta.dtype.name == "float32":
        counts = counts.astype(np.float32)
    return _from_values(counts, input)


def searchsorted(
    sorted_sequence: Tensor,
    values: Tensor | Number,
    out_int32: bool = False,
    right: bool = False,
    *,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Find where values would be put into the sorted last dim; right, or side "right": after equal
    ones.

    sorter: int64, of the shape of a sequence that is not sorted: the order that would sort it.
    """
    if side not in (None, "left", "right") or (side == "left" and right):
        raise ArgumentError(f"searchsorted: side is 'left' or 'right' as `right` is, got {side!r}")
    right = right or side == "right"
    if sorter is not None:
        sorted_sequence = gather(sorted_sequence, -1, sorter)

    is_before = ge if right else gt
    if not isinstance(values, Tensor):
        before = is_before(values, sorted_sequence)
        if values != values:  # NaN is put last
            before = unary.full_like(before, value=True)
        found = total(before, -1)
    else:
        found = _bisected(sorted_sequence.detach(), values.detach(), is_before)
    return as_type(found, dtypes.int32 if out_int32 else dtypes.int64)


def _bisected(
    sequence: Tensor, values: Tensor, is_before: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Count the elements of the last dim before each value; all, for NaN. A place of all values
    is halved at once, so that nothing of the size of sequence times values is made.
    """
    lead, size = sequence.meta.shape[:-1], sequence.meta.shape[-1]
    if lead and lead != values.meta.shape[:-1]:
        raise ShapeError(
            "searchsorted: the sequence should be 1-dimensional or the first N-1 dimensions of it "
            f"and of the values must match, but it is {sequence.meta} and they {values.meta}"
        )
    low = as_type(unary.full_like(values, value=0), dtypes.int64)
    high = low + size
    for _ in range(size.bit_length()):
        middle = (low + high) // 2
        place = minimum(middle, unary.full_like(middle, value=size - 1))
        if sequence.ndim == 1:
            place = reshape(place, (-1,))
        before = is_before(values, reshape(gather(sequence, -1, place), values.meta.shape))
        if values.meta.dtype.is_floating_point:
            before = compare.logical_or(before, unary.isnan(values))
        low = pick(compare.logical_and(before, low < high), middle + 1, low)
        high = pick(before, high, middle)
    return low


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, generator: Generator | None = None
) -> Tensor:
    """int64: `num_samples` places per row, drawn with the weights of the row."""
    if input.ndim not in (1, 2):
        raise ShapeError(f"multinomial: the weights must have 1 or 2 dims, got {input.meta}")
    if not input.meta.dtype.is_floating_point:
        raise DTypeError(
            f"multinomial only supports floating-point dtypes for input, got {input.meta}"
        )
    if input.meta.shape[-1] >= MOST_PLACES:
        raise ShapeError(
            f"multinomial: the number of categories cannot exceed 2^24, got {input.meta}"
        )
    if num_samples <= 0:
        raise ShapeError(f"multinomial: cannot sample {num_samples} <= 0 samples")
    if not replacement and num_samples > input.meta.shape[-1]:
        raise ShapeError(
            f"multinomial: cannot sample {num_samples} of {input.meta.shape[-1]} places without "
            "replacement"
        )
    weights = input.detach()
    where = layout_of(weights, no_partial=True)
    if weights._array is not None and weights._placement is None:
        _check_weights(weights)
    if replacement:
        running = cumsum(weights, -1)
        shape = (*input.meta.shape[:-1], num_samples)
        spots = rand(shape, generator=generator, **where) * running[..., -1:]
        return searchsorted(running, spots, right=True)
    # The largest of log(w) + Gumbel noise is a draw with weights w; the k largest are k without
    # replacement.
    noise = rand(input.meta.shape, generator=generator, dtype=weights.meta.dtype, **where)
    keys = weights.log() - (-(noise.clamp(min=1e-30).log())).log()
    drawn: Tensor = topk(keys, num_samples)[1]
    return drawn


def _check_weights(weights: Tensor) -> None:
    """Raises ArgumentError for weights from which nothing can be drawn."""
    least, most = weights.amin(), weights.sum(-1)
    if not (least >= 0).item() or not unary.isfinite(most).all().item():
        raise ArgumentError(
            f"multinomial: the probability tensor {weights.meta} contains either `inf`, `nan` or "
            "an element < 0"
        )
    if not (most > 0).all().item():
        raise ArgumentError(
            f"multinomial: invalid multinomial distribution: the weights {weights.meta} of a row "
            "have the sum 0"
        )


def in_top_k(targets: Tensor, predictions: Tensor, k: int) -> Tensor:
    """bool (rows,): is the target among the k best predictions of its row?"""
    if targets.ndim != 1 or predictions.ndim != 2 or len(targets) != predictions.meta.shape[0]:
        raise ShapeError(
            "in_top_k: targets must be a vector with one element for each row of predictions, got "
            f"{targets.meta} for {predictions.meta}"
        )
    rivals = predictions > predictions.gather(1, targets.reshape(-1, 1))
    return rivals.sum(1) < k


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """(values, indices) of the most frequent element along `dim`; the smallest of equally
    frequent ones.
    """
    at = one_dim(dim, input.ndim, "mode")
    if not input.ndim:
        return mode_result(*sort(input))
    moved = input.transpose(at, -1)
    ordered, places = sort(moved, -1)
    # A NaN equals nothing, itself neither, and is there once.
    counts = (ordered.unsqueeze(-1) == ordered.unsqueeze(-2)).sum(-1).clamp(min=1)
    # The first of the largest counts is the smallest value; its run's last place is what is asked
    # for.
    first = counts.argmax(-1, True)
    last = first + gather(counts, -1, first) - 1
    values, indices = gather(ordered, -1, last), gather(places, -1, last)
    values = values.transpose(at, -1).contiguous()
    indices = indices.transpose(at, -1).contiguous()
    if not keepdim:
        values, indices = values.squeeze(at), indices.squeeze(at)
    return mode_result(values, indices)


def quantile(
    input: Tensor,
    q: float | Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Tensor:
    """The number below which a share `q` (0 to 1) of the elements along `dim` lies.

    q: a number, or a tensor of 0 or 1 dims; with one dim, the result has it in front. It has a
    gradient where the interpolation is linear.
    dim: None for all elements.  interpolation: how to choose between two neighbours: linear, lower,
    higher, midpoint or nearest. A row with a NaN gives NaN.
    """
    if not input.meta.dtype.is_floating_point:
        raise DTypeError(
            f"quantile() input tensor must be either float or double dtype, got {input.meta}; cast "
            "it first"
        )
    x = input
    shares = _shares(q, x)
    shares = shares if interpolation == "linear" else shares.detach()
    flat = reshape(x, (-1,)) if dim is None else x
    at = one_dim(-1 if dim is None else dim, flat.ndim, "quantile")
    flat = reshape(flat, (1,)) if not flat.ndim else flat
    if not flat.meta.shape[at]:
        raise ShapeError(f"quantile: {input.meta} has no elements along dim {dim}")
    ordered = sort(flat, at)[0]
    out = _between(ordered, at, shares * (flat.meta.shape[at] - 1), interpolation)
    last = ordered.narrow(at, flat.meta.shape[at] - 1, 1)  # a NaN is the largest
    out = pick(unary.isnan(last), last, out)
    out = movedim(out, at, 0)
    kept = tuple(1 if dim is None or i == at else n for i, n in enumerate(input.meta.shape))
    left = kept if keepdim else tuple(out.meta.shape[1:])
    many = isinstance(q, Tensor) and q.ndim == 1
    return reshape(out, (out.meta.shape[0], *left) if many else left)


def _shares(q: float | Tensor, like: Tensor) -> Tensor:
    """`q` as a vector in the dtype, and beside the values, of `like`."""
    if isinstance(q, Tensor):
        if q.ndim > 1:
            raise ShapeError(f"quantile: q must be a number or a vector, got {q.meta}")
        if q.meta.dtype is not like.meta.dtype:
            raise DTypeError(f"quantile: q {q.meta} must have the dtype of the input {like.meta}")
        if q._array is not None and q._placement is None and not ((q >= 0) & (q <= 1)).all():
            raise ArgumentError("quantile: q values must be in the range [0, 1]")
        return reshape(q, (-1,))
    if not isinstance(q, (int, float)) or not 0 <= q <= 1:
        raise ArgumentError(f"quantile: q must be a number in [0, 1], or a tensor, got {q!r}")
    return beside(like, np.full(1, q, like.meta.dtype.np))


def _between(ordered: Tensor, dim: int, spots: Tensor, interpolation: str) -> Tensor:
    """Interpolate at the fractional positions `spots` of a dim."""
    if interpolation == "nearest":
        spots = unary.round(spots)
    elif interpolation == "lower":
        spots = unary.floor(spots)
    elif interpolation == "higher":
        spots = unary.ceil(spots)
    elif interpolation not in ("linear", "midpoint"):
        raise ArgumentError(
            "quantile: interpolation must be linear, lower, higher, midpoint or nearest, got "
            f"{interpolation!r}"
        )
    low, high = unary.floor(spots), unary.ceil(spots)
    share = (spots - low) if interpolation != "midpoint" else (high - low) * 0.5
    share = reshape(share, tuple(-1 if i == dim else 1 for i in range(ordered.ndim)))
    below, above = (index_select(ordered, dim, as_type(s, dtypes.int64)) for s in (low, high))
    return lerp(below, above, share)
