"""`flow.cuda`: which GPUs there are, and waiting for them. `cuda` without an index is the GPU of
this process, `cuda:<local rank>`.

A device is given as an index, "cuda:1", `flow.device("cuda:1")` or None (this process's own GPU).
Where there is no CuPy or no GPU, what needs one raises DeviceError.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from oneflow.core.config import current_config
from oneflow.core.device import Device, DeviceLike
from oneflow.core.errors import DeviceError
from oneflow.functional.legacy import CUDA_TYPES
from oneflow.functional.random_state import manual_seed as _seed
from oneflow.kernels.cuda_device import device_number, gpu_count, import_cupy, own_device
from oneflow.surfaces import accept_paths, below

__all__ = [
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "is_available",
    "manual_seed",
    "manual_seed_all",
    "mem_get_info",
    "set_device",
    "synchronize",
]

CudaDevice: TypeAlias = "DeviceLike | int | None"


def is_available() -> bool:
    """Can tensors be on a GPU: is CuPy installed, and is there a GPU it can use?"""
    return gpu_count() > 0


def device_count() -> int:
    """Number of GPUs that this process sees; 0 without CuPy."""
    return gpu_count()


def current_device() -> int:
    """The index that `cuda` stands for: the local rank. Raises DeviceError without a GPU."""
    index = current_config().local_rank
    device_number(index)
    return index


def set_device(device: CudaDevice) -> None:
    """Confirms which GPU `cuda` is, as scripts with one process per GPU do with their local rank.

    A process keeps its own GPU, where its parts of global tensors are, so another one raises
    DeviceError. A negative index does nothing.
    """
    if isinstance(device, int) and device < 0:
        return
    wanted, own = _number(device), _number(None)
    if wanted != own:
        raise DeviceError(
            f"set_device: `cuda` is GPU {own} in this process (its local rank is "
            f"{current_config().local_rank}) and cannot become GPU {wanted}; name the device of "
            f'each tensor, device="cuda:{wanted}", or choose GPUs with CUDA_VISIBLE_DEVICES'
        )


def synchronize(device: CudaDevice = None) -> None:
    """Waits until all work given to the GPU is done."""
    number = _number(device)
    import_cupy().cuda.Device(number).synchronize()


def empty_cache() -> None:
    """Gives memory that no tensor uses back to this process's own GPU."""
    own_device().get_default_memory_pool().free_all_blocks()


def mem_get_info(device: CudaDevice = None) -> tuple[int, int]:
    """(free, total) bytes of the GPU, whoever uses it."""
    number = _number(device)
    free, total = import_cupy().cuda.Device(number).mem_info
    return int(free), int(total)


def get_device_name(device: CudaDevice = None) -> str:
    """Return the maker's name for the GPU."""
    number = _number(device)
    name = import_cupy().cuda.runtime.getDeviceProperties(number)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def manual_seed(seed: int) -> None:
    """Seeds the default generator, which all devices share; needs no GPU."""
    _seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators as `manual_seed` does."""
    _seed(seed)


def _number(device: CudaDevice) -> int:
    """The CUDA device that is meant. Raises DeviceError if it is none or not there."""
    where = Device("cuda", device) if device is None or isinstance(device, int) else Device(device)
    if where.type != "cuda":
        raise DeviceError(f"expected a cuda device, got {where}")
    return device_number(where.index)


def __getattr__(name: str) -> Any:
    """`cuda.FloatTensor` and the like."""
    return CUDA_TYPES[name] if name in CUDA_TYPES else below(__name__, name)


accept_paths(__name__)
