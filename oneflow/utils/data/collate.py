"""The way from a list of samples to a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from oneflow.core.dtype import float64, int64
from oneflow.functional.joining import stack
from oneflow.tensor.tensor import Tensor, wrap


def default_convert(data: object) -> Any:
    """Arrays inside of nested containers become tensors; the rest stays. For samples that are not
    batched.
    """
    if isinstance(data, np.ndarray) and data.dtype.kind not in "SUO":
        return wrap(data)
    if isinstance(data, np.generic):
        return wrap(np.asarray(data))
    return _rebuild(data, default_convert)


def _rebuild(data: object, convert: Callable[[object], Any]) -> Any:
    if isinstance(data, Mapping):
        return {key: convert(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(convert, data))
    if isinstance(data, list | tuple):
        return type(data)(map(convert, data))
    return data


def default_collate(batch: Sequence[Any]) -> Any:
    """Stacks samples along a new first dim: tensors, arrays and numbers become tensors, containers
    keep their kind.

    Strings and bytes stay lists. Floats become float64 and integers int64. Raises TypeError,
    ValueError.
    """
    first = batch[0]
    if isinstance(first, Tensor):
        return _stack(batch)
    if isinstance(first, np.ndarray | np.generic):
        if first.dtype.kind in "SUO":
            raise TypeError(
                f"default_collate: found arrays of {first.dtype}, which no tensor can hold"
            )
        return wrap(np.stack([np.asarray(item) for item in batch]))
    if isinstance(first, bool):
        return wrap(np.array(batch, dtype=np.bool_))
    if isinstance(first, int):
        return wrap(np.array(batch, dtype=int64.np))
    if isinstance(first, float):
        return wrap(np.array(batch, dtype=float64.np))
    if isinstance(first, str | bytes):
        return list(batch)
    if isinstance(first, Mapping):
        return {key: default_collate([item[key] for item in batch]) for key in first}
    if isinstance(first, Sequence):
        return _transpose(batch)
    raise TypeError(
        "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; "
        f"found {type(first).__name__}"
    )


def _stack(batch: Sequence[Any]) -> Tensor:
    if all(t.is_local and t.is_cpu for t in batch):
        return wrap(np.stack([t._array for t in batch]))
    stacked: Tensor = stack(list(batch), 0)
    return stacked


def _transpose(batch: Sequence[Any]) -> Any:
    first = batch[0]
    if any(len(item) != len(first) for item in batch):
        raise ValueError("each element in list of batch should be of equal size")
    columns = [default_collate(column) for column in zip(*batch, strict=True)]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*columns)
    return columns
