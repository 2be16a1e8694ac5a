"""The GPU that a device index means in this process, and CuPy with that GPU made current. Imports
CuPy only when called.
"""

from __future__ import annotations

from typing import Any

from oneflow.core.config import current_config
from oneflow.core.device import load_cupy
from oneflow.core.errors import DeviceError
from oneflow.kernels.array import ArrayModule, GpuArray


def import_cupy() -> Any:
    """CuPy. Raises DeviceError if it is not installed."""
    return load_cupy()


def gpu_count() -> int:
    """Return the number of GPUs that this process sees; 0 without CuPy."""
    try:
        return _count(load_cupy())
    except DeviceError:
        return 0


def cuda_version() -> int:
    """Return the version of the CUDA runtime, 12040 for 12.4; 0 without a GPU."""
    return int(import_cupy().cuda.runtime.runtimeGetVersion()) if gpu_count() else 0


def device_number(index: int) -> int:
    """The CUDA device that `cuda:index` is. Ranks that outnumber the GPUs of a host share them in
    turn: `cuda:local_rank` is device local_rank modulo their number. Raises DeviceError.
    """
    return _number(index, _count(import_cupy()))


def use_device(index: int) -> Any:
    """Makes `cuda:index` the current device of this thread and returns CuPy. Raises DeviceError."""
    cupy = import_cupy()
    number = _number(index, _count(cupy))
    if cupy.cuda.runtime.getDevice() != number:
        cupy.cuda.Device(number).use()
    return cupy


def own_device() -> Any:
    """CuPy on this rank's own GPU, where its parts of global tensors are."""
    return use_device(current_config().local_rank)


def index_of(array: GpuArray) -> int:
    """The inverse of `device_number` for a CuPy array; of a shared GPU it is this rank's index."""
    number, local_rank = int(array.device.id), current_config().local_rank
    return local_rank if local_rank % _count(import_cupy()) == number else number


def _count(cupy: ArrayModule) -> int:
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"there is no CUDA device on this host: {error}") from error


def _number(index: int, count: int) -> int:
    if 0 <= index < count:
        return index
    if count and index == current_config().local_rank:
        return index % count
    raise DeviceError(f"there is no cuda:{index}: this host has {count} CUDA devices")
