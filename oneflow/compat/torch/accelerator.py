"""`torch.accelerator`: the GPU of this process under a name that names no maker."""

from __future__ import annotations

from typing import Any

from oneflow import cuda
from oneflow.core.device import Device

__all__ = [
    "current_accelerator",
    "current_device_idx",
    "current_device_index",
    "current_stream",
    "device_count",
    "empty_cache",
    "is_available",
    "max_memory_allocated",
    "memory_allocated",
    "memory_reserved",
    "reset_peak_memory_stats",
    "set_device_idx",
    "set_device_index",
    "synchronize",
]

device_count = cuda.device_count
empty_cache = cuda.empty_cache
is_available = cuda.is_available
memory_allocated, memory_reserved = cuda.memory_allocated, cuda.memory_reserved


def current_accelerator(check_available: bool = False) -> Device | None:
    """Return the kind of device beside the CPU; None where there is no GPU."""
    return Device("cuda") if is_available() else None


def current_device_index() -> int:
    """Return the number of this process's GPU. Raises DeviceError without a GPU."""
    return cuda.current_device()


def set_device_index(device: cuda.CudaDevice) -> None:
    """Confirm which GPU `cuda` is: see `flow.cuda.set_device`."""
    cuda.set_device(device)


current_device_idx, set_device_idx = current_device_index, set_device_index


def synchronize(device: cuda.CudaDevice = None) -> None:
    """Wait until all work given to the GPU is done; return at once without a GPU."""
    if is_available():
        cuda.synchronize(device)


def current_stream(device: object = None) -> Any:
    """Return the stream of this process's GPU: see `flow.cuda.current_stream`."""
    return cuda.current_stream(device)


def max_memory_allocated(device: object = None) -> int:
    """Return the most bytes that arrays took on the GPU at once."""
    return int(cuda.max_memory_allocated(device))


def reset_peak_memory_stats(device: object = None) -> None:
    """Begin a new measurement of `max_memory_allocated`."""
    cuda.reset_peak_memory_stats(device)
