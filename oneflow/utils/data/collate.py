"""The way from a list of samples to a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from oneflow.core.dtype import float64, int64
from oneflow.functional.concat_split import stack
from oneflow.tensor.tensor import Tensor, wrap

Array = np.ndarray[Any, Any]
CollateTable = Mapping[Any, Callable[..., Any]]
"""Type, or tuple of types, of samples -> the function that batches them; it is called with the list
of samples and the keyword `collate_fn_map`, which is the table.
"""

new_array: Callable[[tuple[int, ...], Any], Array] = np.empty
"""Memory of a batch. A worker process takes it where its parent can read it (handing.py)."""


def default_convert(data: object) -> Any:
    """Arrays inside of nested containers become tensors; the rest stays. For samples that are not
    batched. Tuples become lists, as in PyTorch; named tuples keep their kind.
    """
    if isinstance(data, np.ndarray) and data.dtype.kind not in "SUO":
        return wrap(data)
    if isinstance(data, np.generic) and data.dtype.kind not in "SUO":
        return wrap(np.asarray(data))
    if isinstance(data, Mapping):
        return _mapping_like(data, {key: default_convert(data[key]) for key in data})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(default_convert, data))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _sequence_like(data, [default_convert(item) for item in data])
    return data


def _mapping_like(model: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Put the items into a mapping of the model's kind, with its other attributes; a dict if that
    fails.
    """
    try:
        if isinstance(model, MutableMapping):
            clone = copy.copy(model)
            clone.update(items)
            return clone
        kind: Any = type(model)
        return kind(items)
    except TypeError:  # it cannot be copied, or is not made of a mapping
        return items


def _sequence_like(model: Sequence[Any], items: list[Any]) -> Any:
    """The items in a sequence of the model's kind; in a list for tuples, and if that fails."""
    if isinstance(model, tuple):
        return items
    try:
        if isinstance(model, MutableSequence):
            clone = copy.copy(model)
            for i, item in enumerate(items):
                clone[i] = item
            return clone
        kind: Any = type(model)
        return kind(items)
    except TypeError:  # it cannot be copied, or is not made of a list
        return items


def default_collate(batch: Sequence[Any]) -> Any:
    """Stacks samples along a new first dim: tensors, arrays and numbers become tensors, containers
    keep their kind, but for tuples, which become lists.

    Strings and bytes stay as they are. Floats become float64 and integers int64. Raises TypeError
    for samples that `default_collate_fn_map` has no row for, ValueError for sequences of different
    lengths.
    """
    return collate(batch, collate_fn_map=default_collate_fn_map)


def collate(batch: Sequence[Any], *, collate_fn_map: CollateTable | None = None) -> Any:
    """Batch samples by the table's function for their type; go into containers that it lacks."""
    first, table = batch[0], collate_fn_map or {}
    found = table.get(type(first)) or next(
        (table[kind] for kind in table if isinstance(first, kind)), None
    )
    if found is not None:
        return found(batch, collate_fn_map=table)
    if isinstance(first, Mapping):
        items = {key: collate([one[key] for one in batch], collate_fn_map=table) for key in first}
        return _mapping_like(first, items)
    if isinstance(first, Sequence):
        if any(len(item) != len(first) for item in batch):
            raise ValueError("each element in list of batch should be of equal size")
        columns = [collate(c, collate_fn_map=table) for c in zip(*batch, strict=True)]
        if isinstance(first, tuple) and hasattr(first, "_fields"):
            return type(first)(*columns)
        return _sequence_like(first, columns)
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {type(first).__name__}"
    )


def collate_tensor_fn(batch: Sequence[Any], *, collate_fn_map: object = None) -> Tensor:
    """Stack the tensors along a new first dim, in the way of the first one's subclass."""
    kind: Any = type(batch[0])
    if hasattr(kind, "__torch_function__") and not kind.__module__.startswith("oneflow."):
        return kind.__torch_function__(stack, (kind,), (list(batch), 0), {})  # type: ignore[no-any-return]
    if all(t.is_local and t.is_cpu for t in batch):
        return wrap(_stacked([t._array for t in batch]))
    stacked: Tensor = stack(list(batch), 0)
    return stacked


def collate_numpy_array_fn(batch: Sequence[Any], *, collate_fn_map: object = None) -> Tensor:
    """The arrays along a new first dim. Raises TypeError for arrays of texts or objects."""
    first = batch[0]
    if first.dtype.kind in "SUO":
        raise TypeError(f"default_collate: found arrays of {first.dtype}, which no tensor can hold")
    return wrap(_stacked([np.asarray(item) for item in batch]))


def _stacked(arrays: list[Array]) -> Array:
    if any(a.shape != arrays[0].shape for a in arrays):
        shapes = sorted({a.shape for a in arrays})
        raise ValueError(f"stack expects each tensor to be equal size, but got {shapes}")
    dtype = np.result_type(*arrays) if len({a.dtype for a in arrays}) > 1 else arrays[0].dtype
    whole = new_array((len(arrays), *arrays[0].shape), dtype)
    for row, array in zip(whole, arrays, strict=True) if arrays[0].ndim else ():
        row[...] = array
    if not arrays[0].ndim:
        whole[...] = arrays
    return whole


def collate_bool_fn(batch: Sequence[Any], *, collate_fn_map: object = None) -> Tensor:
    """A tensor of bools."""
    return wrap(np.array(batch, dtype=np.bool_))


def collate_int_fn(batch: Sequence[Any], *, collate_fn_map: object = None) -> Tensor:
    """A tensor of int64."""
    return wrap(np.array(batch, dtype=int64.np))


def collate_float_fn(batch: Sequence[Any], *, collate_fn_map: object = None) -> Tensor:
    """A tensor of float64."""
    return wrap(np.array(batch, dtype=float64.np))


def collate_str_fn(batch: Sequence[Any], *, collate_fn_map: object = None) -> Sequence[Any]:
    """The texts as they are."""
    return batch


default_collate_fn_map: dict[Any, Callable[..., Any]] = {
    Tensor: collate_tensor_fn,
    np.ndarray: collate_numpy_array_fn,
    np.generic: collate_numpy_array_fn,
    bool: collate_bool_fn,
    int: collate_int_fn,
    float: collate_float_fn,
    str: collate_str_fn,
    bytes: collate_str_fn,
}
"""The table of `default_collate`: a row that is added here counts for every loader."""
