"""x[...] and x[...] = value: integers, slices, None, Ellipsis (views), index tensors and masks
(copies).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.dispatch import current_mode
from oneflow.core.errors import ArgumentError, GraphError, PositionError
from oneflow.core.operand import Index, IndexItem, Number
from oneflow.core.sbp import all_broadcast
from oneflow.functional.from_data import place
from oneflow.functional.gather_scatter import linear_index, positive
from oneflow.functional.promotion import as_type
from oneflow.functional.shaping import broadcast_tensors, stretched
from oneflow.functional.sort_and_search import nonzero
from oneflow.ops import gather as gather_ops
from oneflow.ops import shape, slicing
from oneflow.tensor import on_ranks
from oneflow.tensor.convert import as_array
from oneflow.tensor.inplace import check_writable, overwrite
from oneflow.tensor.tensor import KEEP_SHAPE, Tensor, extra, needs_data
from oneflow.tensor.views import with_history

if TYPE_CHECKING:
    from types import EllipsisType
    from typing import TypeGuard

    from numpy.typing import ArrayLike


Item: TypeAlias = "bool | int | slice | Tensor | EllipsisType | None"


def getitem(x: Tensor, index: Index) -> Tensor:
    """x[index] as NumPy has it."""
    items = _expanded(x, index)
    basic, chosen = _split_items(x, items)
    part = _take_basic(x, basic)
    if not chosen:
        return part
    out = _take_chosen(part, chosen)
    if out._array is None and all(not at.meta.shape for at in chosen.values()):
        extra(out).copied = True
    return out


def setitem(x: Tensor, index: Index, value: ArrayLike) -> None:
    """x[index] = value, broadcast and cast."""
    check_writable(x)
    items = _expanded(x, index)
    if isinstance(value, np.number | np.bool_):
        value = value.item()
    if x.is_global and isinstance(value, Tensor) and not (value.is_global or value.meta.shape):
        value = value if value.requires_grad else value.item()
    if (
        len(items) == 1
        and _is_mask(items[0])
        and isinstance(value, (bool, int, float))
        and items[0].meta.shape == x.meta.shape
    ):
        overwrite(x, with_history(x).masked_fill(_mask(items[0]), value))
        return
    basic, chosen = _split_items(x, items)
    if not chosen and x._placement is not None and current_mode().has_memory:
        on_ranks.write_slice(x, _sliced_value(x, basic, value), basic.bounds)
        return
    if not chosen and not basic.flips:
        target = _take_basic(x, basic)
        overwrite(target, _fitted(value, target))
        return
    old = with_history(x)
    overwrite(x, _updated(old, basic, chosen, value))


def _expanded(x: Tensor, index: Index) -> list[Item]:
    """One item per dim (None and bools stand for new ones), with Ellipsis and missing items filled
    in."""
    items = [_as_item(i, x) for i in _listed(index)]
    used = sum(_dims_of(i) for i in items)
    if used > x.ndim:
        raise PositionError(f"too many indices for {x.meta}, which has {x.ndim} dims: {used}")
    rest: list[Item] = [slice(None)] * (x.ndim - used)
    for at, item in enumerate(items):
        if item is Ellipsis:
            after = [i for i in items[at + 1 :] if i is not Ellipsis]
            return [*items[:at], *rest, *after]
    return items + rest


MOST_DIMS = 32
"""A list of at least that many items is one index, whatever its items are."""


def _listed(index: Index) -> Sequence[IndexItem]:
    """The items of an index. A short list is one item, unless one of its own is more than a number:
    then it means the tuple of them, as in PyTorch.
    """
    if isinstance(index, tuple):
        return index
    if isinstance(index, list) and len(index) < MOST_DIMS:
        for item in index:
            if item is None or item is Ellipsis or isinstance(item, _WHOLE_ITEMS):
                return cast("Sequence[IndexItem]", index)
    return (index,)


_WHOLE_ITEMS = (Tensor, slice, list, tuple, range, np.ndarray)


def _as_item(item: IndexItem, x: Tensor) -> Item:
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, (bool, np.bool_)):
        return bool(item)
    if isinstance(item, Tensor):
        if item.meta.dtype.is_floating_point:
            raise PositionError(
                f"tensors used as indices must be integers or bool, got {item.meta} for a tensor "
                f"{x.meta}; cast it with .long()"
            )
        if item.meta.shape:
            return item
        if _is_mask(item):
            needs_data(item, "x[mask] with a mask of no dims", KEEP_SHAPE)
            return bool(item.item())
        if item._array is None or not item.meta.dtype.is_integer:
            return item
        is_here = item._placement is None or on_ranks.world().rank in item._placement
        return int(item.item()) if is_here else 0  # where there are no values, any place will do
    if isinstance(item, range):
        item = list(item)
    if isinstance(item, (list, tuple, np.ndarray)):
        return _placed(item if len(item) else np.zeros(0, np.int64), x)
    try:
        return operator.index(item)
    except TypeError:
        raise PositionError(
            "tensors are indexed with integers, slices, None, Ellipsis, lists and tensors, not "
            f"{item!r}"
        ) from None


def _dims_of(item: Item) -> int:
    """Count the dims of the tensor that an item takes up."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, Tensor) and _is_mask(item) else 1


def _is_mask(item: object) -> TypeGuard[Tensor]:
    return isinstance(item, Tensor) and item.meta.dtype in (dtypes.bool_, dtypes.uint8)


def _mask(item: Tensor) -> Tensor:
    return as_type(item, dtypes.bool_)


class _Basic:
    """The part of an index that is a view: per dim a slice, then a shape without integer dims and
    with new ones.

    kept: per dim of the result of the slice, its place in `shape`, or None where an integer took it
    away.
    """

    def __init__(self, x: Tensor) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []
        self.steps: list[int] = []
        self.flips: list[int] = []
        self.shape: list[int] = []
        self.whole = x.meta.shape

    def add(self, item: int | slice, size: int) -> None:
        if isinstance(item, slice):
            if item.step == 0:
                raise ArgumentError(f"slice step cannot be zero, got x[{item.start}:{item.stop}:0]")
            start, stop, step = item.indices(size)
            count = len(range(start, stop, step))
            if step < 0:
                self.flips.append(len(self.starts))
                start, step = (start + (count - 1) * step if count else 0), -step
            self._append(start, start + (count - 1) * step + 1 if count else start, step)
            self.shape.append(count)
            return
        if not -size <= item < size:
            raise PositionError(
                f"index {item} is out of bounds for dimension {len(self.starts)} with size {size}"
            )
        self._append(item % size, item % size + 1, 1)

    def _append(self, start: int, stop: int, step: int) -> None:
        self.starts.append(start)
        self.stops.append(stop)
        self.steps.append(step)

    @property
    def bounds(self) -> dict[str, tuple[int, ...]]:
        return {
            "starts": tuple(self.starts),
            "stops": tuple(self.stops),
            "steps": tuple(self.steps),
        }

    @property
    def sliced_shape(self) -> tuple[int, ...]:
        """Return the shape of the slice, with the integer dims and without new ones."""
        bounds = zip(self.starts, self.stops, self.steps, strict=True)
        return tuple(-(-(b - a) // s) for a, b, s in bounds)

    @property
    def is_whole(self) -> bool:
        return all(
            (a, b, s) == (0, n, 1)
            for a, b, s, n in zip(self.starts, self.stops, self.steps, self.whole, strict=True)
        )


def _split_items(x: Tensor, items: list[Item]) -> tuple[_Basic, dict[int, Tensor]]:
    """The view part, and the index tensors by their dim in its result. A mask becomes an index per
    dim.
    """
    basic, chosen, dim = _Basic(x), {}, 0
    for item in items:
        if item is None:
            basic.shape.append(1)
        elif isinstance(item, bool):  # a new dim, which is taken once or not at all
            chosen[len(basic.shape)] = _placed(np.zeros(int(item), np.int64), x)
            basic.shape.append(1)
        elif _is_mask(item):
            for places in _mask_indices(x, item, dim):
                chosen[len(basic.shape)] = places
                basic.add(slice(None), x.meta.shape[dim])
                dim += 1
        elif isinstance(item, Tensor):
            chosen[len(basic.shape)] = positive(item, x.meta.shape[dim], dim)
            basic.add(slice(None), x.meta.shape[dim])
            dim += 1
        else:
            basic.add(cast("int | slice", item), x.meta.shape[dim])
            dim += 1
    return basic, chosen


def _mask_indices(x: Tensor, mask: Tensor, dim: int) -> tuple[Tensor, ...]:
    if mask._array is None:
        if hasattr(mask.value, "refuse"):
            mask.value.refuse("x[mask]", mask.meta)
        raise GraphError(
            "x[mask] has a shape that depends on values and cannot be traced in nn.Graph.build; "
            f"{KEEP_SHAPE}"
        )
    wanted = x.meta.shape[dim : dim + mask.ndim]
    if mask.meta.shape != wanted:
        raise PositionError(
            f"the mask {mask.meta} does not fit dims {dim} to {dim + mask.ndim - 1} of {x.meta}"
        )
    places: tuple[Tensor, ...] = nonzero(mask, as_tuple=True)
    return places


def _take_basic(x: Tensor, basic: _Basic) -> Tensor:
    """The part of x under ints, slices and new dims: always another tensor than x."""
    part, wanted = x, tuple(basic.shape)
    if not basic.is_whole:
        part = slicing.slice(part, **basic.bounds)
    if basic.flips:
        part = shape.flip(part, dims=tuple(basic.flips))
    if part is not x and part.meta.shape == wanted:
        return part
    return shape.reshape(part, shape=wanted)


def _front(x: Tensor, chosen: dict[int, Tensor]) -> tuple[Tensor, Tensor, int, tuple[int, ...]]:
    """The indexed dims moved to the front and made one: (x, index into it, where the result's dims
    go, order).
    """
    dims = list(chosen)
    order = (*dims, *(i for i in range(x.ndim) if i not in chosen))
    moved = x if order == tuple(range(x.ndim)) else shape.transpose(x, dims=order)
    sizes = moved.meta.shape[: len(dims)]
    rest = moved.meta.shape[len(dims) :]
    flat = shape.reshape(moved, shape=(int(np.prod(sizes, dtype=np.int64)), *rest))
    index = linear_index(list(broadcast_tensors(*chosen.values())), sizes)
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    return flat, index, dims[0] if adjacent else 0, order


def _take_chosen(x: Tensor, chosen: dict[int, Tensor]) -> Tensor:
    if len(chosen) == 1:
        ((dim, index),) = chosen.items()
        return gather_ops.gather(x, index, dim=dim)
    flat, index, place, _ = _front(x, chosen)
    taken = gather_ops.gather(flat, index, dim=0)
    if place == 0:
        return taken
    count = index.ndim
    order = (*range(count, count + place), *range(count), *range(count + place, taken.ndim))
    return shape.transpose(taken, dims=order)


def _fitted(value: ArrayLike, target: Tensor) -> Tensor:
    """`value` as a tensor of the shape and dtype of `target`."""
    return _fitted_shape(value, target, target.meta.shape)


def _sliced_value(x: Tensor, basic: _Basic, value: ArrayLike) -> Tensor | Number:
    """`value` in the shape of the slice, in the order of the slice; a number stays one."""
    if isinstance(value, (bool, int, float)):
        return value
    if not isinstance(value, Tensor):
        value = _placed(value, x)
    shaped = _stretched(as_type(value, x.meta.dtype), tuple(basic.shape))
    shaped = shape.reshape(shaped, shape=basic.sliced_shape)
    return shape.flip(shaped, dims=tuple(basic.flips)) if basic.flips else shaped


def _stretched(value: Tensor, wanted: tuple[int, ...]) -> Tensor:
    while value.ndim > len(wanted) and value.meta.shape[0] == 1:
        value = shape.reshape(value, shape=value.meta.shape[1:])
    return stretched(value, wanted)


def _placed(value: ArrayLike, target: Tensor) -> Tensor:
    """A list or an array as a tensor where `target` is."""
    array = as_array(value, None, target.meta.dtype)
    if target._placement is None:
        return place(array, target._device, None, None)
    return place(array, None, target._placement, all_broadcast(target._placement.ndim))


def _updated(x: Tensor, basic: _Basic, chosen: dict[int, Tensor], value: ArrayLike) -> Tensor:
    """`x` with the part replaced, as a new tensor."""
    part = _take_basic(x, basic)
    if chosen:
        part = _scattered(part, chosen, value)
    else:
        part = _fitted(value, part)
    part = shape.reshape(part, shape=basic.sliced_shape)
    if basic.flips:
        part = shape.flip(part, dims=tuple(basic.flips))
    if basic.is_whole:
        return part
    return slicing.slice_update(x, part, **basic.bounds)


def _scattered(x: Tensor, chosen: dict[int, Tensor], value: ArrayLike) -> Tensor:
    """A copy of `x` with `value` at the chosen places."""
    flat, index, place, order = _front(x, chosen)
    rest = flat.meta.shape[1:]
    count = index.ndim
    target = (*rest[:place], *index.meta.shape, *rest[place:])
    fitted = _fitted_shape(value, x, target)
    if place:
        axes = (*range(place, place + count), *range(place), *range(place + count, len(target)))
        fitted = shape.transpose(fitted, dims=axes)
    rows = shape.reshape(fitted, shape=(index.meta.numel, *rest))
    places = shape.reshape(index, shape=(index.meta.numel, *(1,) * len(rest)))
    places = shape.expand(places, shape=rows.meta.shape)
    whole = gather_ops.dim_scatter(flat, places, rows, dim=0)
    moved = shape.reshape(whole, shape=tuple(x.meta.shape[i] for i in order))
    back = tuple(sorted(range(len(order)), key=order.__getitem__))
    return shape.transpose(moved, dims=back)


def _fitted_shape(value: ArrayLike, x: Tensor, wanted: tuple[int, ...]) -> Tensor:
    """`value` as a tensor of that shape where `x` is; a number is the same on all ranks."""
    if isinstance(value, (bool, int, float)):
        if x._placement is None:
            return x.new_full(wanted, value)
        nd_sbp = all_broadcast(x._placement.ndim)
        return x.new_full(wanted, value, placement=x._placement, sbp=nd_sbp)
    if not isinstance(value, Tensor):
        value = _placed(value, x)
    return _stretched(as_type(value, x.meta.dtype), wanted)
