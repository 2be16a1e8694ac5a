"""Copies of tensors with other values at some positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.operand import Number
from oneflow.functional.arithmetic import div, eq, sub
from oneflow.functional.concat_split import cat
from oneflow.functional.creation import arange, zeros
from oneflow.functional.dims import one_dim
from oneflow.functional.elementwise import clone, masked_fill, pick
from oneflow.functional.gather_scatter import (
    as_index,
    positive,
    scatter,
    scatter_add,
    tuple_index,
    within,
)
from oneflow.functional.indexing import setitem
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import amax, amin, cumsum, prod
from oneflow.functional.shaping import (
    broadcast_tensors,
    diagonal,
    expand,
    movedim,
    reshape,
    stretched,
    unsqueeze,
)
from oneflow.functional.sort_and_search import nonzero
from oneflow.ops import gather as gather_ops
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import Tensor

Dims = tuple[int, ...]


def _spread(index: Tensor, dim: int, shape: Dims) -> Tensor:
    """A vector of positions of `dim` for every element of a tensor of that shape."""
    wide = reshape(index, tuple(-1 if i == dim else 1 for i in range(len(shape))))
    return stretched(wide, shape)


def _vector(who: str, x: Tensor, dim: int, index: Tensor) -> tuple[int, Tensor]:
    if index.ndim > 1:
        raise ShapeError(f"{who}: the index must be a vector, got {index.meta}")
    return one_dim(dim, x.ndim, who), reshape(as_index(index), (-1,))


def index_fill(input: Tensor, dim: int, index: Tensor, value: Tensor | Number) -> Tensor:
    """A copy of `input` with `value` (a number or a 0-d tensor) in the slices of `dim` at the
    index.
    """
    if isinstance(value, Tensor) and value.ndim:
        raise ShapeError(
            f"index_fill: supports only a 0-dimensional value tensor, got {value.meta}"
        )
    if not input.ndim:
        return reshape(index_fill(reshape(input, (1,)), 0, index, value), ())
    at, places = _vector("index_fill", input, dim, index)
    places = positive(places, input.meta.shape[at], at)
    shape = (*input.meta.shape[:at], places.meta.numel, *input.meta.shape[at + 1 :])
    is_chosen = (
        scatter(_blank(as_type(input, dtypes.int32)), at, _spread(places, at, shape), 1) == 1
    )
    if isinstance(value, Tensor):
        return pick(is_chosen, as_type(value, input.meta.dtype), input)
    return masked_fill(input, is_chosen, value)


def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """A copy of `input` with the slices of `source` at the positions `index` of `dim`."""
    if source.meta.dtype is not input.meta.dtype:
        raise DTypeError(f"index_copy: {input.meta} and {source.meta} must have one dtype")
    if not input.ndim:
        return reshape(index_copy(reshape(input, (1,)), 0, index, reshape(source, (-1,))), ())
    at, places = _vector("index_copy", input, dim, index)
    source = reshape(source, (-1,)) if not source.ndim else source
    shape = (*input.meta.shape[:at], places.meta.numel, *input.meta.shape[at + 1 :])
    if source.meta.shape != shape:
        raise ShapeError(
            f"index_copy: the source {source.meta} has to have shape {list(shape)}: that of "
            f"{input.meta} with a slice for each index"
        )
    return scatter(input, at, _spread(places, at, shape), source)


def index_put(
    input: Tensor,
    indices: Sequence[Tensor | None],
    values: Tensor,
    accumulate: bool = False,
) -> Tensor:
    """A copy of `input` with `values` at input[indices]; accumulate: added to those there."""
    parts = tuple(slice(None) if i is None else i for i in indices)
    if not accumulate:
        out = clone(input)
        setitem(out, parts, values)
        return out
    flat = row_major_places(input)
    places = reshape(flat[parts], (-1,))
    added = expand(as_type(values, input.meta.dtype), flat[parts].meta.shape)
    whole = scatter_add(reshape(input, (-1,)), 0, places, reshape(added, (-1,)))
    return reshape(whole, input.meta.shape)


def row_major_places(x: Tensor) -> Tensor:
    """The row-major position of each element of `x`."""
    places = arange(0, x.meta.numel, 1, **layout_of(x, no_partial=True, ndim=1))
    return reshape(places, x.meta.shape)


def _into(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    """A copy of `input` into which `source` is reduced at the index along `dim`."""
    if reduce in ("sum", "add", "mean"):
        ones = as_type(eq(index, index), input.meta.dtype)
        start = input
        if not include_self:
            hit = scatter(_blank(input), dim, index, ones)
            start = masked_fill(input, hit != 0, 0)
        total = scatter_add(start, dim, index, source)
        if reduce != "mean":
            return total
        count = scatter_add(_blank(input) + (1 if include_self else 0), dim, index, ones)
        count = pick(count == 0, _blank(count) + 1, count)
        if input.meta.dtype.is_floating_point:
            return div(total, count)
        return div(total, count, rounding_mode="floor")
    if reduce not in ("prod", "multiply", "amax", "amin"):
        raise ArgumentError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}"
        )
    return _by_rank(input, dim, index, source, reduce, include_self)


def _blank(x: Tensor) -> Tensor:
    return zeros(x.meta.shape, dtype=x.meta.dtype, **layout_of(x, no_partial=True))


def _by_rank(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool
) -> Tensor:
    """Products and extremes: every position of the index against every position of `dim`."""
    size = input.meta.shape[dim]
    index = within(index, size, dim)
    cut = tuple(slice(0, n) if i != dim else slice(None) for i, n in enumerate(index.meta.shape))
    part = input[cut]
    moved = unsqueeze(movedim(index, dim, -1), -2)
    values = unsqueeze(movedim(source[tuple(slice(0, n) for n in index.meta.shape)], dim, -1), -2)
    own = unsqueeze(movedim(part, dim, -1), -1)
    rows = reshape(arange(0, size, 1, **layout_of(index, no_partial=True, ndim=1)), (-1, 1))
    mask = eq(moved, rows)
    neutral = _neutral(input.meta.dtype, reduce)
    spread = expand(values, mask.meta.shape)
    chosen = masked_fill(spread, mask == 0, neutral)

    if include_self:
        chosen = cat([own, chosen], -1)
    function = {"prod": prod, "multiply": prod, "amax": amax, "amin": amin}[reduce]
    out = function(chosen, -1) if chosen.meta.shape[-1] else movedim(part, dim, -1)
    out = as_type(out, input.meta.dtype)
    out = pick(mask.any(-1), out, movedim(part, dim, -1))  # not a tie with the neutral number
    out = movedim(out, -1, dim)
    if part.meta.shape == input.meta.shape:
        return out
    whole = clone(input)
    setitem(whole, cut, out)
    return whole


def _neutral(dtype: dtypes.DType, reduce: str) -> float | int:
    """The number that changes nothing."""
    if reduce in ("prod", "multiply"):
        return 1
    if dtype.is_floating_point:
        return -math.inf if reduce == "amax" else math.inf
    if dtype is dtypes.bool_:
        return reduce == "amin"

    info = np.iinfo(dtype.np)
    return int(info.min if reduce == "amax" else info.max)


def scatter_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    src: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """A copy of `input` into which src[i, j] is reduced at [i, index[i, j]] for dim 1, and so on.

    reduce: sum, prod, mean, amax or amin.  include_self: the elements there take part.
    """
    at = one_dim(dim, input.ndim, "scatter_reduce")
    if not input.ndim:
        parts = (reshape(v, (-1,)) for v in (input, index, src))
        flat, places, values = parts
        out = scatter_reduce(flat, 0, places, values, reduce, include_self=include_self)
        return reshape(out, ())
    index = reshape(index, (-1,)) if not index.ndim else index
    src = reshape(src, (-1,)) if not src.ndim else src
    return _into(input, at, as_index(index), src, reduce, include_self)


def index_reduce(
    input: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """A copy of `input` into which the slices of `source` are reduced at positions of `dim`.

    reduce: prod, mean, amax or amin.
    """
    if not input.ndim:
        flat = reshape(input, (1,))
        out = index_reduce(flat, 0, index, source, reduce, include_self=include_self)
        return reshape(out, ())
    at, places = _vector("index_reduce", input, dim, index)
    source = reshape(source, (-1,)) if not source.ndim else source
    wide = _spread(places, at, source.meta.shape)
    return _into(input, at, wide, source, reduce, include_self)


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """A copy of `input` with the elements of `source`, in order, where the mask is true."""
    if source.meta.dtype is not input.meta.dtype:
        raise DTypeError(f"masked_scatter: {input.meta} and {source.meta} must have one dtype")
    if mask.meta.dtype is not dtypes.bool_:
        raise DTypeError(f"masked_scatter_ only supports boolean masks, got {mask.meta}")
    x, m = broadcast_tensors(input, mask)
    flat = reshape(as_type(m, dtypes.bool_), (-1,))
    if flat.value is None:  # in a graph `gather` looks, when it runs
        _require_enough(source, flat)
    place = cumsum(as_type(flat, dtypes.int64), 0)
    if source.meta.numel:
        place = sub(place, 1).clamp(min=0)
    else:
        source = zeros(1, dtype=source.meta.dtype, **layout_of(x, no_partial=True, ndim=0))
    # A place past the last is an error of `gather`.
    values = gather_ops.gather(reshape(source, (-1,)), place, dim=0)
    return pick(m, reshape(values, x.meta.shape), x)


def _require_enough(source: Tensor, mask: Tensor) -> None:
    wanted = int(mask.sum().item())
    if wanted > source.meta.numel:
        raise ShapeError(
            "masked_scatter: Number of elements of source < number of ones in mask: "
            f"{source.meta} for {wanted} places"
        )


def take(input: Tensor, index: Tensor) -> Tensor:
    """The elements at positions of the flat tensor."""
    flat = reshape(input, (-1,))
    places = positive(index, input.meta.numel)
    return gather_ops.gather(flat, places, dim=0)


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """A copy of `input` with `source` at positions of the flat tensor; accumulate: added."""
    if source.meta.dtype is not input.meta.dtype:
        raise DTypeError(f"put: {input.meta} and {source.meta} must have one dtype")
    places = reshape(positive(index, input.meta.numel), (-1,))
    write = scatter_add if accumulate else scatter
    out = write(reshape(input, (-1,)), 0, places, reshape(source, (-1,)))
    return reshape(out, input.meta.shape)


# ---- parts that are slices -----------------------------------------------------------------------


def _with(input: Tensor, show: Callable[[Tensor], Tensor], src: Tensor, who: str) -> Tensor:
    """A copy of `input` with `src` in the view that `show` makes."""
    out = clone(input)
    view = show(out)
    if view.meta.shape != src.meta.shape:
        raise ShapeError(f"{who}: expected src to have the shape of {view.meta}, got {src.meta}")
    view.copy_(src)
    return out


def select_scatter(input: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """A copy of `input` with `src` at one position of `dim`."""
    return _with(input, lambda x: x.select(dim, index), src, "select_scatter")


def slice_scatter(
    input: Tensor,
    src: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor:
    """A copy of `input` with `src` in the slice start:end:step of `dim`."""
    at = one_dim(dim, input.ndim, "slice_scatter")
    cut = (*(slice(None),) * at, slice(start, end, step))
    return _with(input, lambda x: x[cut], src, "slice_scatter")


def diagonal_scatter(
    input: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy of `input` with `src` on a diagonal of two dims."""
    return _with(input, lambda x: diagonal(x, offset, dim1, dim2), src, "diagonal_scatter")


# ---- index tuples --------------------------------------------------------------------------------


def _rows(who: str, shape: Dims, indices: Tensor, updates: Tensor) -> tuple[Tensor, Tensor, Dims]:
    """The flat position of each update, the updates as rows, and the shape of a row."""
    depth = indices.meta.shape[-1]
    rest = shape[depth:]
    if depth > len(shape) or updates.meta.shape != (*indices.meta.shape[:-1], *rest):
        raise ShapeError(
            f"{who}: updates {updates.meta} at indices {indices.meta}"
            f" do not fit shape {list(shape)}"
        )
    index = tuple_index(indices, shape[:depth])
    count = index.meta.numel
    return reshape(index, (count,)), reshape(updates, (count, *rest)), rest


def scatter_nd(index: Tensor, update: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros of `shape` to which the updates are added at the index tuples in the last dim of
    `index`.
    """
    whole = tuple(map(int, shape))
    places, rows, _ = _rows("scatter_nd", whole, index, update)
    count = math.prod(whole[: index.meta.shape[-1]])
    return reshape(gather_ops.gather_grad(rows, places, dim=0, size=count), whole)


def tensor_scatter_nd_update(tensor: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """A copy of `tensor` with the updates at the index tuples in the last dim of `indices`."""
    shape = tensor.meta.shape
    places, rows, rest = _rows("tensor_scatter_nd_update", shape, indices, updates)
    flat = reshape(tensor, (-1, *rest))
    return reshape(scatter(flat, 0, _spread(places, 0, rows.meta.shape), rows), shape)


def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    """The first `size` places of nonzero elements; rows of fill_value where there are less."""
    places: Tensor = nonzero(input)
    count = places.meta.shape[0]
    if count >= size:
        return places[:size]
    filler = places.new_full((size - count, places.meta.shape[1]), fill_value)

    return cat([places, filler], 0)
