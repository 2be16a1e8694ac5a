"""Switches of the whole process: default device and type, threads, deterministic algorithms."""

from __future__ import annotations

from oneflow.core.device import Device, chosen_device
from oneflow.core.dtype import dtype_of
from oneflow.core.errors import ArgumentError, CallError
from oneflow.core.no_effect import without_effect
from oneflow.functional.promotion import set_default_dtype
from oneflow.kernels.threads import set_limit

_LEGACY = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
}
_deterministic = {"wanted": False, "warns_only": False}


def _assert(condition: object, message: str) -> None:
    """Raise AssertionError with the message unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def _log_api_usage_once(event: str) -> None:
    """Do nothing: no record of use is kept."""


def get_default_device() -> Device:
    """The device of new tensors for which none is given."""
    return chosen_device() or Device("cpu")


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


def are_deterministic_algorithms_enabled() -> bool:
    """Whether `use_deterministic_algorithms(True)` was called last."""
    return _deterministic["wanted"]


def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Whether `use_deterministic_algorithms(True, warn_only=True)` was called last."""
    return _deterministic["warns_only"]
