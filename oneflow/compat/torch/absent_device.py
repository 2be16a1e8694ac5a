"""`torch.xpu`, `torch.mps`, `torch.mtia` and their kin: kinds of devices on which no tensor can be.
Questions have answers; all else raises DeviceError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from oneflow.core.errors import DeviceError

__all__ = [
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "memory_allocated",
    "set_device",
    "synchronize",
]


def is_available() -> bool:
    """Return False: no tensor can be on such a device."""
    return False


is_initialized = is_bf16_supported = _is_in_bad_fork = is_available


def device_count() -> int:
    """Return 0: there are no such devices."""
    return 0


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise DeviceError(f"{name}: there is no such device here; use cpu or cuda")

    refuse.__name__ = name
    refuse.__doc__ = "Raise DeviceError: there are no such devices."
    return refuse


current_device = _refusing("current_device")
current_stream = _refusing("current_stream")
device = _refusing("device")
get_device_capability = _refusing("get_device_capability")
get_device_name = _refusing("get_device_name")
get_device_properties = _refusing("get_device_properties")
get_rng_state = _refusing("get_rng_state")
get_rng_state_all = _refusing("get_rng_state_all")
max_memory_allocated = _refusing("max_memory_allocated")
mem_get_info = _refusing("mem_get_info")
memory_allocated = current_allocated_memory = _refusing("memory_allocated")
memory_reserved = driver_allocated_memory = _refusing("memory_reserved")
memory_stats = _refusing("memory_stats")
max_memory_reserved = _refusing("max_memory_reserved")
recommended_max_memory = _refusing("recommended_max_memory")
set_rng_state = _refusing("set_rng_state")
set_rng_state_all = _refusing("set_rng_state_all")
set_device = _refusing("set_device")
set_per_process_memory_fraction = _refusing("set_per_process_memory_fraction")
stream = _refusing("stream")
synchronize = _refusing("synchronize")
Event = _refusing("Event")
Stream = _refusing("Stream")


def manual_seed(seed: int) -> None:
    """Return at once: the default generator serves all devices, and there are none of these."""


manual_seed_all = manual_seed


def empty_cache() -> None:
    """Return at once: there is no memory of such a device."""


reset_peak_memory_stats = reset_max_memory_allocated = _lazy_call = _lazy_init = empty_cache
