"""Settings of a process that PyTorch has as functions of its top module."""

from __future__ import annotations

import sys
from types import ModuleType

from oneflow.amp import autocasting
from oneflow.core.device import Device, DeviceLike, set_chosen_device
from oneflow.core.dtype import DType
from oneflow.core.errors import ArgumentError, DeviceError
from oneflow.core.no_effect import without_effect
from oneflow.functional import switches
from oneflow.kernels.threads import num_threads
from oneflow.tensor.tensor import Tensor

GETTERS = {
    "cpu": autocasting.get_autocast_cpu_dtype,
    "cuda": autocasting.get_autocast_gpu_dtype,
}
SETTERS = {
    "cpu": autocasting.set_autocast_cpu_dtype,
    "cuda": autocasting.set_autocast_gpu_dtype,
}
PRECISIONS = ("highest", "high", "medium")
_said = {"matmul": "highest"}


def get_num_threads() -> int:
    """Return how many threads the kernels of this process may use."""
    return num_threads()


def get_num_interop_threads() -> int:
    """Return 1: ops run one after the other."""
    return 1


def set_num_interop_threads(count: int) -> None:
    """Warn once: ops run one after the other."""
    if count != 1:
        without_effect("set_num_interop_threads", "ops run one after the other")


def get_autocast_dtype(device_type: str) -> DType:
    """Return the dtype to which `autocast` lowers on a kind of device."""
    return GETTERS[_kind(device_type, "get_autocast_dtype")]()


def set_autocast_dtype(device_type: str, dtype: DType) -> None:
    """Choose the dtype to which `autocast` lowers on a kind of device."""
    SETTERS[_kind(device_type, "set_autocast_dtype")](dtype)


def is_autocast_cpu_enabled() -> bool:
    """Return whether the code is inside of `autocast("cpu")`."""
    return autocasting.is_autocast_enabled("cpu")


def is_autocast_available(device_type: str) -> bool:
    """Return whether `autocast` takes a kind of device."""
    return device_type in GETTERS


def get_float32_matmul_precision() -> str:
    """Return the setting; products of float32 are float32 in any case."""
    return _said["matmul"]


def set_float32_matmul_precision(precision: str) -> None:
    """Take note; products of float32 are computed in float32."""
    if precision not in PRECISIONS:
        raise ArgumentError(
            f"set_float32_matmul_precision: one of {', '.join(PRECISIONS)}, got {precision!r}"
        )
    if precision != "highest":
        without_effect(
            f"set_float32_matmul_precision({precision!r})", "products of float32 stay in float32"
        )
    _said["matmul"] = precision


def get_deterministic_debug_mode() -> int:
    """Return the level of `use_deterministic_algorithms`: 0, 1 to warn, 2 to raise."""
    if not switches.are_deterministic_algorithms_enabled():
        return 0
    return 1 if switches.is_deterministic_algorithms_warn_only_enabled() else 2


def get_device_module(device: DeviceLike | None = None) -> ModuleType:
    """Return the module of functions for a kind of device: `flow.cuda`, `flow.cpu`."""
    kind = Device("cpu" if device is None else device).type
    try:
        found: ModuleType = getattr(sys.modules["oneflow"], kind)
    except AttributeError:
        raise DeviceError(f"get_device_module: there is no module for {kind}") from None
    return found


def set_default_device(device: DeviceLike | None) -> None:
    """Choose where functions make tensors in this thread if they are not told; None: on the CPU."""
    set_chosen_device(None if device is None else Device(device))


def set_vital(group: str, name: str, value: str) -> bool:
    """Return False: notes of where a program stands are not kept."""
    return False


def typename(obj: object) -> str:
    """Return the name of a tensor's type, or the full name of another object's class."""
    if isinstance(obj, Tensor):
        return str(obj.type())
    kind = obj if isinstance(obj, type) else type(obj)
    module = getattr(kind, "__module__", "")
    return f"{module}.{kind.__qualname__}" if module not in ("", "builtins") else kind.__qualname__


def _kind(device_type: str, who: str) -> str:
    if device_type not in GETTERS:
        raise ArgumentError(f"{who}: device_type is cpu or cuda, got {device_type!r}")
    return device_type
