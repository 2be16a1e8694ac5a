"""Other shapes of the same elements: reshape, transpose, expand, squeeze, flip, ..."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.dtype import bool_, int32, int64
from oneflow.core.errors import (
    ArgumentError,
    CallError,
    DTypeError,
    OneFlowError,
    PlacementError,
    PositionError,
    ShapeError,
)
from oneflow.core.operand import DimLike, Number, ShapeLike, Tensors
from oneflow.core.size import Size
from oneflow.functional.creation import shape_of
from oneflow.functional.dims import argument_dims, given, listed, many_dims, one_dim, some_dims
from oneflow.ops import shape as ops
from oneflow.ops.gather import gather
from oneflow.tensor.tensor import Tensor, needs_data, wrap
from oneflow.tensor.views import apart, view_of


def _sizes(x: Tensor, args: tuple[Any, ...], who: str) -> tuple[int, ...]:
    """A shape with at most one -1, filled in."""
    sizes = [int(s) for s in argument_dims(args)]
    if -1 in sizes:
        rest = math.prod(s for s in sizes if s != -1)
        if sizes.count(-1) > 1 or rest == 0 or x.meta.numel % rest:
            raise ShapeError(f"{who}: shape '{list(sizes)}' is invalid for {x.meta}")
        sizes[sizes.index(-1)] = x.meta.numel // rest
    return tuple(sizes)


def reshape(input: Tensor, *sizes: ShapeLike, shape: ShapeLike | None = None) -> Tensor:
    """The same elements in row-major order in another shape; one size may be -1. A view if that is
    possible.
    """
    if shape is not None:
        sizes = given("reshape", sizes, shape=shape)
    return ops.reshape(input, shape=_sizes(input, sizes, "reshape"))


def view(
    input: Tensor, *sizes: ShapeLike, shape: ShapeLike | None = None, size: ShapeLike | None = None
) -> Tensor:
    """The tensor in another shape, as `reshape`, but never a copy. Raises OneFlowError where one
    would be needed, unless ONEFLOW_DISABLE_VIEW is set.
    """
    sizes = given("view", sizes, shape=shape, size=size)
    if len(sizes) == 1 and not isinstance(sizes[0], (int, tuple, list, Tensor)):
        raise CallError(f"view() takes a shape, got {sizes[0]!r}; use .to(dtype) to cast")
    out = reshape(input, *sizes)
    if (
        view_of(out) is None
        and out is not input
        and out._placement is None
        and out.meta.numel
        and not current_config().view_may_copy
    ):
        raise OneFlowError(
            "view(): invalid ShapeView: the strides of this tensor do not allow it; "
            "use .reshape(), or .contiguous() first; a program written for copies runs with "
            "ONEFLOW_DISABLE_VIEW=1"
        )
    return out


def view_as(input: Tensor, other: Tensor) -> Tensor:
    """`view` in the shape of `other`."""
    return view(input, other.meta.shape)


def reshape_as(input: Tensor, other: Tensor) -> Tensor:
    """`reshape` in the shape of `other`."""
    return reshape(input, other.meta.shape)


def flatten(input: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Dims start_dim to end_dim, both included, made one."""
    first = one_dim(start_dim, input.ndim, "flatten")
    last = one_dim(end_dim, input.ndim, "flatten")
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} comes after end_dim {end_dim}")
    if first == last and input.ndim:
        return input
    shape = input.meta.shape
    middle = math.prod(shape[first : last + 1])
    return ops.reshape(input, shape=(*shape[:first], middle, *shape[last + 1 :]))


def unflatten(
    input: Tensor,
    dim: int,
    sizes: Sequence[int] | None = None,
    *,
    shape: Sequence[int] | None = None,
) -> Tensor:
    """Dim `dim` taken apart into `sizes` (later releases of OneFlow: `shape`), one of which may be
    -1.
    """
    if sizes is not None and shape is not None:
        raise CallError("unflatten() got its sizes more than once, also as shape")
    sizes = shape if sizes is None else sizes
    if sizes is None:
        raise CallError("unflatten() needs the sizes into which it takes a dim apart")
    at = one_dim(dim, input.ndim, "unflatten")
    whole = input.meta.shape
    wanted = list(sizes)
    if -1 in wanted:
        rest = math.prod(s for s in wanted if s != -1)
        wanted[wanted.index(-1)] = whole[at] // rest if rest else 0
    return reshape(input, (*whole[:at], *wanted, *whole[at + 1 :]))


def permute(input: Tensor, *order: int | Sequence[int], dims: DimLike = None) -> Tensor:
    """Dim i of the result is dim dims[i]."""
    if dims is not None:
        order = given("permute", order, dims=dims)
    wanted = tuple(one_dim(d, input.ndim, "permute") for d in argument_dims(order))
    return ops.transpose(input, dims=wanted)


def transpose(
    input: Tensor,
    dim0: int | Sequence[int] | None = None,
    dim1: int | None = None,
    *,
    perm: Sequence[int] | None = None,
) -> Tensor:
    """Two dims exchanged; or all, in the order `perm`."""
    if perm is not None or dim1 is None:
        return permute(input, cast("int | Sequence[int]", dim0) if perm is None else perm)
    order = list(range(input.ndim))
    a, b = one_dim(cast(int, dim0), input.ndim, "transpose"), one_dim(dim1, input.ndim, "transpose")
    if order:
        order[a], order[b] = order[b], order[a]
    return ops.transpose(input, dims=tuple(order))


swapaxes = transpose
swapdims = transpose


def t(input: Tensor) -> Tensor:
    """The transposed matrix; a vector as it is."""
    if input.ndim > 2:
        raise ShapeError(f"t() expects a tensor with <= 2 dimensions, but self is {input.ndim}D")
    return ops.transpose(input, dims=tuple(reversed(range(input.ndim))))


def movedim(input: Tensor, source: DimLike, destination: DimLike) -> Tensor:
    """Dims moved to other places, the others in their order."""
    moved = many_dims(source, input.ndim, "movedim")
    places = many_dims(destination, input.ndim, "movedim")
    if len(moved) != len(places):
        raise ShapeError(f"movedim: {source} and {destination} must name as many dims")
    if len(set(moved)) != len(moved) or len(set(places)) != len(places):
        raise ShapeError(f"movedim: a dim appears twice in {source} or {destination}")
    rest = iter([d for d in range(input.ndim) if d not in moved])
    by_place = dict(zip(places, moved, strict=True))
    order = tuple(by_place[i] if i in by_place else next(rest) for i in range(input.ndim))
    return ops.transpose(input, dims=order)


def expand(
    input: Tensor, *sizes: ShapeLike, shape: ShapeLike | None = None, size: ShapeLike | None = None
) -> Tensor:
    """Dims of size 1 stretched without copying; -1 keeps a size; new dims may come in front."""
    wanted = argument_dims(given("expand", sizes, shape=shape, size=size))
    own = input.meta.shape
    added = len(wanted) - len(own)
    if added < 0:
        raise ShapeError(f"expand: {input.meta} has more dims than the wanted shape {list(wanted)}")
    full = tuple(
        own[i - added] if int(n) == -1 and i >= added else int(n) for i, n in enumerate(wanted)
    )
    return ops.expand(input, shape=full)


broadcast_to = expand


def stretched(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`expand`, or `x` itself where it has that shape."""
    return x if x.meta.shape == shape else expand(x, shape)


def expand_as(input: Tensor, other: Tensor) -> Tensor:
    """`expand` to the shape of `other`."""
    return expand(input, other.meta.shape)


def broadcast_like(x: Tensor, like: Tensor, broadcast_axes: DimLike = ()) -> Tensor:
    """`x` stretched to the shape of `like`; broadcast_axes: dims of `like` that `x` lacks."""
    if broadcast_axes and x.ndim < like.ndim:
        missing = set(many_dims(broadcast_axes, like.ndim, "broadcast_like"))
        own = iter(x.meta.shape)
        x = reshape(x, tuple(1 if i in missing else next(own) for i in range(like.ndim)))
    return expand(x, like.meta.shape)


def broadcast_dim_like(x: Tensor, like: Tensor, dim: int, like_dim: int | None = None) -> Tensor:
    """`x` stretched in one dim to the size of `like` in `like_dim` (default: the same dim)."""
    at = one_dim(dim, x.ndim, "broadcast_dim_like")
    source = one_dim(dim if like_dim is None else like_dim, like.ndim, "broadcast_dim_like")
    shape = list(x.meta.shape)
    shape[at] = like.meta.shape[source]
    return expand(x, shape)


def broadcast_shapes(*shapes: int | Sequence[int]) -> Size:
    """The shape in which shapes meet."""
    listed = [tuple(s) if not isinstance(s, int) else (s,) for s in shapes]
    whole = [1] * max(map(len, listed), default=0)
    for shape in listed:
        for i, size in enumerate(shape, start=len(whole) - len(shape)):
            if size < 0:
                raise ShapeError(
                    "broadcast_shapes: Trying to create tensor with negative dimension "
                    f"({size}): {shape}"
                )
            if size != 1 and whole[i] not in (1, size):
                raise ShapeError(
                    "Shape mismatch: objects cannot be broadcast to a single shape: The size of "
                    f"tensor a ({whole[i]}) must match the size of tensor b ({size}) at "
                    f"non-singleton dimension {i}; the shapes are {', '.join(map(str, listed))}"
                )
            whole[i] = size if size != 1 else whole[i]
    return Size(whole)


def broadcast_tensors(*tensors: Tensors) -> tuple[Tensor, ...]:
    """The tensors stretched to the shape in which they meet."""
    xs = listed(tensors)
    shape = broadcast_shapes(*[x.meta.shape for x in xs])
    return tuple(stretched(x, shape) for x in xs)


def squeeze(input: Tensor, dim: DimLike = None) -> Tensor:
    """Without dims of size 1; dim: only that one, or those."""
    if dim is None:
        gone = set(range(input.ndim))
    else:
        gone = set(some_dims(dim, input.ndim, "squeeze"))
    shape = tuple(n for i, n in enumerate(input.meta.shape) if n != 1 or i not in gone)
    return ops.reshape(input, shape=shape)


def unsqueeze(input: Tensor, dim: int) -> Tensor:
    """The tensor with a dim of size 1 put in at `dim`."""
    at = one_dim(dim, input.ndim + 1, "unsqueeze")
    shape = input.meta.shape
    return ops.reshape(input, shape=(*shape[:at], 1, *shape[at:]))


def flip(input: Tensor, *order: int | Sequence[int], dims: DimLike = None) -> Tensor:
    """The order reversed along dims."""
    wanted = argument_dims(given("flip", order, dims=dims))
    if not wanted and not order and dims is None:
        raise CallError("flip() needs the dims to reverse")
    return ops.flip(input, dims=some_dims(wanted, input.ndim, "flip"))


def roll(input: Tensor, shifts: int | Sequence[int], dims: DimLike = None) -> Tensor:
    """Elements moved along dims by `shifts`; those that fall off come back in front. Without dims:
    of the flat tensor.
    """
    if not isinstance(shifts, int) and not len(shifts):
        raise ShapeError("roll: `shifts` required, got none")
    if dims is None:
        flat = ops.reshape(input, shape=(input.meta.numel,))
        total = shifts if isinstance(shifts, int) else sum(shifts)
        return ops.reshape(ops.roll(flat, shifts=(int(total),), dims=(0,)), shape=input.meta.shape)
    steps = (shifts,) if isinstance(shifts, int) else tuple(int(s) for s in shifts)
    if not input.ndim:
        raise PositionError(f"roll: dims {dims} are given, but {input.meta} has no dims")
    return ops.roll(input, shifts=steps, dims=many_dims(dims, input.ndim, "roll"))


def tril(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zeros above a diagonal of the last two dims."""
    return ops.tril(input, diagonal=int(diagonal))


def triu(input: Tensor, diagonal: int = 0) -> Tensor:
    """Zeros below a diagonal of the last two dims."""
    return ops.triu(input, diagonal=int(diagonal))


def diagonal(input: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A diagonal of two dims, as the last dim."""
    a, b = one_dim(dim1, input.ndim, "diagonal"), one_dim(dim2, input.ndim, "diagonal")
    rest = tuple(i for i in range(input.ndim) if i not in (a, b))
    return ops.diagonal(ops.transpose(input, dims=(*rest, a, b)), offset=int(offset))


def diag(input: Tensor, diagonal: int = 0) -> Tensor:
    """The diagonal of a matrix; of a vector, the matrix with that diagonal."""
    if input.ndim == 2:
        return apart(ops.diagonal(input, offset=int(diagonal)), input)
    if input.ndim != 1:
        raise ShapeError(f"diag: needs a vector or a matrix, got {input.meta}")
    return diag_embed(input, diagonal)


def diag_embed(input: Tensor, offset: int = 0) -> Tensor:
    """Square matrices with the last dim on a diagonal."""
    size = input.meta.shape[-1] + abs(offset)
    return ops.diag_embed(input, offset=int(offset), rows=size, columns=size)


def tile(input: Tensor, *sizes: ShapeLike, dims: DimLike = None) -> Tensor:
    """Repeated along each dim; missing counts in front are 1."""
    counts = argument_dims(given("tile", sizes, dims=dims))
    counts = (1,) * (input.ndim - len(counts)) + tuple(counts)
    return repeat(input, counts)


def repeat(
    input: Tensor,
    *counts: ShapeLike,
    sizes: ShapeLike | None = None,
    repeats: ShapeLike | None = None,
) -> Tensor:
    """Copies of the tensor side by side along each dim; new dims may come in front."""
    counts = given("repeat", counts, sizes=sizes, repeats=repeats)
    counts = shape_of(tuple(argument_dims(counts)), "repeat")
    shape = (1,) * (len(counts) - input.ndim) + tuple(input.meta.shape)
    if len(counts) < input.ndim:
        raise ShapeError(
            "repeat: Number of dimensions of repeat dims can not be smaller than number of "
            f"dimensions of tensor {input.meta}"
        )
    split = [n for pair in zip((1,) * len(shape), shape, strict=True) for n in pair]
    grown = [n for pair in zip(counts, shape, strict=True) for n in pair]
    x = ops.expand(ops.reshape(input, shape=tuple(split)), shape=tuple(grown))
    whole = tuple(a * b for a, b in zip(counts, shape, strict=True))
    return apart(ops.reshape(x, shape=whole), input)


def repeat_interleave(
    input: Tensor, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Each element (or slice along `dim`) repeated in place.  repeats: a number, or a tensor with
    one per slice.
    """
    if dim is None:
        input, dim = reshape(input, (-1,)), 0
    at = one_dim(dim, input.ndim, "repeat_interleave")
    if isinstance(repeats, Tensor):
        needs_data(
            repeats, "a tensor of repeats", "give an int, or a tensor made outside of build()"
        )
        counts = _repeats(repeats, input.meta.shape[at], at)
        index = wrap(np.repeat(np.arange(input.meta.shape[at]), counts))
        _check_size(int(counts.sum()), output_size)
        return gather(input, index, dim=at)
    if repeats < 0:
        raise ArgumentError(f"repeat_interleave: Repeats must be non-negative, got {repeats}")
    _check_size(input.meta.shape[at] * repeats, output_size)
    shape = input.meta.shape
    x = ops.reshape(input, shape=(*shape[: at + 1], 1, *shape[at + 1 :]))
    x = ops.expand(x, shape=(*shape[: at + 1], int(repeats), *shape[at + 1 :]))
    whole = (*shape[:at], shape[at] * int(repeats), *shape[at + 1 :])
    return apart(ops.reshape(x, shape=whole), input)


def _repeats(repeats: Tensor, size: int, dim: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The count of repetitions of each of `size` slices."""
    if repeats.meta.dtype not in (int32, int64):
        raise DTypeError(
            f"repeat_interleave: repeats has to be Long or Int tensor, got {repeats.meta}"
        )
    if repeats.ndim > 1:
        raise ShapeError(
            f"repeat_interleave: repeats must be 0-dim or 1-dim tensor, got {repeats.meta}"
        )
    if repeats.meta.numel not in (1, size):
        raise ShapeError(
            "repeat_interleave: repeats must have the same size as input along dim, but got "
            f"repeats.size(0) = {repeats.meta.numel} and input.size({dim}) = {size}"
        )
    counts = np.broadcast_to(repeats.numpy(), (size,))
    if counts.size and counts.min() < 0:
        raise ArgumentError(
            f"repeat_interleave: repeats can not be negative, got {int(counts.min())}"
        )
    return counts


def _check_size(size: int, wanted: int | None) -> None:
    if wanted is not None and wanted != size:
        raise ShapeError(
            "repeat_interleave: allocated size does not match required size: output_size is "
            f"{wanted}, the result has {size}"
        )


def meshgrid(*tensors: Tensors, indexing: str = "ij") -> tuple[Tensor, ...]:
    """Grids of the coordinates of vectors.  indexing: "ij" (matrix) or "xy" (first two
    exchanged).
    """
    xs = listed(tensors)
    if indexing not in ("ij", "xy"):
        raise ArgumentError(
            f'meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}'
        )
    if not xs:
        raise ArgumentError("meshgrid expects a non-empty TensorList")
    for x in xs:
        if x.ndim > 1:
            raise ShapeError(
                f"meshgrid: Expected 0D or 1D tensor in the tensor list but got: {x.meta}"
            )
        if x.meta.dtype is not xs[0].meta.dtype:
            raise DTypeError(
                "meshgrid expects all tensors to have the same dtype, got "
                f"{xs[0].meta} and {x.meta}"
            )
        if (x._placement, x._device) != (xs[0]._placement, xs[0]._device):
            raise PlacementError(
                "meshgrid expects all tensors to have the same device, and to be local or global "
                f"alike, got {xs[0]._placement or xs[0]._device} and {x._placement or x._device}"
            )
    swapped = indexing == "xy" and len(xs) > 1
    if swapped:
        xs[0], xs[1] = xs[1], xs[0]
    shape = tuple(x.meta.numel for x in xs)
    grids = []
    for i, x in enumerate(xs):
        flat = ops.reshape(x, shape=(1,) * i + (x.meta.numel,) + (1,) * (len(xs) - i - 1))
        grids.append(ops.expand(flat, shape=shape))
    if swapped:
        grids[0], grids[1] = grids[1], grids[0]
    return tuple(grids)


def _each(lift: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The function of one tensor; of several, or of a list of them, it gives a tuple."""

    @functools.wraps(lift)
    def apply(*given: Tensors, tensors: Tensors | None = None) -> Any:
        xs = given if tensors is None else (*given, tensors)
        if len(xs) == 1 and isinstance(xs[0], Tensor):
            return lift(xs[0])
        return tuple(lift(x) for x in listed(xs))

    return apply


@_each
def atleast_1d(input: Tensor) -> Tensor:
    """The tensor with at least one dim."""
    return input if input.ndim else reshape(input, (1,))


@_each
def atleast_2d(input: Tensor) -> Tensor:
    """The tensor with at least two dims; new ones in front."""
    if input.ndim > 1:
        return input
    return unsqueeze(atleast_1d(input), 0)


@_each
def atleast_3d(input: Tensor) -> Tensor:
    """The tensor with at least three dims."""
    if input.ndim > 2:
        return input
    return unsqueeze(atleast_2d(input), -1)


def pad_with(input: Tensor, pads: tuple[int, ...], value: Number) -> Tensor:
    """pads: (before, after) per dim, not negative."""
    kind = input.meta.dtype
    if kind.is_floating_point:
        value = float(value)
    elif not kind.is_complex:
        value = bool(value) if kind is bool_ else int(value)
    return ops.pad(input, pads=pads, value=value)
