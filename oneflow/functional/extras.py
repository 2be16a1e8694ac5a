"""The remaining functions of `flow.*`: small ones about one tensor, and switches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from oneflow.core.device import Device, chosen_device
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import ArgumentError, CallError, DTypeError
from oneflow.core.no_effect import without_effect
from oneflow.functional.promotion import as_type, set_default_dtype
from oneflow.kernels.threads import set_limit
from oneflow.ops import slicing
from oneflow.tensor.dlpack import array_of
from oneflow.tensor.inplace import check_writable, overwrite
from oneflow.tensor.tensor import Tensor, wrap
from oneflow.tensor.views import with_history

_Slice = slice  # the name is taken below
_LEGACY = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
}

Cuts: TypeAlias = "Sequence[tuple[int | None, int | None, int | None]]"
"""(start, stop, step) per dim."""


def numel(input: Tensor) -> int:
    """Number of elements."""
    return input.meta.numel


def is_nonzero(input: Tensor) -> bool:
    """Is the only element not zero?"""
    return bool(input)


def _assert(condition: object, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def _log_api_usage_once(event: str) -> None:
    """Do nothing: no record of use is kept."""


def get_default_device() -> Device:
    """The device of new tensors for which none is given."""
    return chosen_device() or Device("cpu")


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


def set_default_tensor_type(tensor_type: object) -> None:
    """Set the default dtype by the name of a legacy type such as "oneflow.FloatTensor"."""
    name = str(tensor_type).rsplit(".", 1)[-1]
    if name not in _LEGACY:
        raise CallError(f"set_default_tensor_type knows {', '.join(_LEGACY)}, got {tensor_type!r}")
    set_default_dtype(dtype_of(_LEGACY[name]))


def set_num_threads(count: int) -> None:
    """Set how many threads the kernels of this process may use, those of BLAS among them."""
    if count < 1:
        raise ArgumentError(f"set_num_threads: needs at least 1, got {count}")
    set_limit(count)


def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Change nothing: each op has one algorithm. Warn once if others are asked for.

    All are deterministic on CPUs; docs/GPU.md names those that add atomically on GPUs.
    """
    if not mode:
        without_effect("use_deterministic_algorithms(False)", "there are no other algorithms here")
    _deterministic.update(wanted=bool(mode), warns_only=bool(mode and warn_only))


_deterministic = {"wanted": False, "warns_only": False}


def are_deterministic_algorithms_enabled() -> bool:
    """Whether `use_deterministic_algorithms(True)` was called last."""
    return _deterministic["wanted"]


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether `use_deterministic_algorithms(True, warn_only=True)` was called last."""
    return _deterministic["warns_only"]


def from_dlpack(source: object) -> Tensor:
    """A tensor over the memory of any CPU array that speaks DLPack, or of a capsule."""
    return wrap(array_of(source))


def to_dlpack(input: Tensor) -> Any:
    """A DLPack capsule over the memory of a CPU tensor."""
    if input._array is None or not hasattr(input._array, "__dlpack__"):
        raise DTypeError(f"to_dlpack: {input.meta} has no memory to share")
    return input.__dlpack__()
