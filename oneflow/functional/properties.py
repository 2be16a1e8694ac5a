"""Properties of one tensor, its slices, and its memory shared by DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from oneflow.core.errors import DTypeError
from oneflow.functional.promotion import as_type
from oneflow.ops import slicing
from oneflow.tensor.dlpack import array_of
from oneflow.tensor.inplace import check_writable, overwrite
from oneflow.tensor.tensor import Tensor, wrap
from oneflow.tensor.views import with_history

_Slice = slice  # the name is taken below

Cuts: TypeAlias = "Sequence[tuple[int | None, int | None, int | None]]"
"""(start, stop, step) per dim."""


def numel(input: Tensor) -> int:
    """Number of elements."""
    return input.meta.numel


def is_nonzero(input: Tensor) -> bool:
    """Is the only element not zero?"""
    return bool(input)


def is_floating_point(input: Tensor) -> bool:
    return input.meta.dtype.is_floating_point


def contiguous(input: Tensor) -> Tensor:
    """The tensor itself if contiguous, else a contiguous copy."""
    return input.contiguous()


def _bounds(
    x: Tensor, slice_tup_list: Sequence[tuple[int | None, int | None, int | None]]
) -> dict[str, tuple[int, ...]]:
    """(start, stop, step) per dim, None where the whole is meant."""
    starts, stops, steps = [], [], []
    entries = [*slice_tup_list, *((None, None, None),) * (x.ndim - len(slice_tup_list))]
    for entry, size in zip(entries, x.meta.shape, strict=True):
        start, stop, step = _Slice(*entry).indices(size)
        starts.append(start)
        stops.append(max(start, stop))
        steps.append(step)
    return {"starts": tuple(starts), "stops": tuple(stops), "steps": tuple(steps)}


def slice(
    input: Tensor, slice_tup_list: Sequence[tuple[int | None, int | None, int | None]]
) -> Tensor:
    """The part given by a (start, stop, step) per dim."""
    return slicing.slice(input, **_bounds(input, slice_tup_list))


def slice_update(
    input: Tensor,
    update: Tensor,
    slice_tup_list: Sequence[tuple[int | None, int | None, int | None]],
) -> Tensor:
    """Writes `update` into the part given by a (start, stop, step) per dim; returns the tensor."""
    check_writable(input)
    part = as_type(update, input.meta.dtype)
    return overwrite(
        input, slicing.slice_update(with_history(input), part, **_bounds(input, slice_tup_list))
    )


def from_dlpack(source: object) -> Tensor:
    """A tensor over the memory of any CPU array that speaks DLPack, or of a capsule."""
    return wrap(array_of(source))


def to_dlpack(input: Tensor) -> Any:
    """A DLPack capsule over the memory of a CPU tensor."""
    if input._array is None or not hasattr(input._array, "__dlpack__"):
        raise DTypeError(f"to_dlpack: {input.meta} has no memory to share")
    return input.__dlpack__()
