"""`flow.cuda`: which GPUs there are, and waiting for them. `cuda` without an index is the GPU of
this process, `cuda:<local rank>`.

A device is given as an index, "cuda:1", `flow.device("cuda:1")` or None (this process's own GPU).
Where there is no CuPy or no GPU, calls that need one raise DeviceError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

from oneflow.core.config import current_config
from oneflow.core.device import Device, DeviceLike
from oneflow.core.errors import ArgumentError, DeviceError
from oneflow.functional.random_state import default_generator
from oneflow.functional.random_state import manual_seed as _seed
from oneflow.kernels.cuda_device import device_number, gpu_count, import_cupy, own_device
from oneflow.surfaces import accept_paths, below
from oneflow.tensor.tensor import Tensor

__all__ = [
    "DeviceProperties",
    "Event",
    "current_device",
    "device_count",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "set_device",
    "set_rng_state",
    "set_rng_state_all",
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
    """Gives memory that no tensor uses back to this process's own GPU, if it has one."""
    if is_available():
        own_device().get_default_memory_pool().free_all_blocks()


def mem_get_info(device: CudaDevice = None) -> tuple[int, int]:
    """Return (free, total) bytes of the GPU, all processes together."""
    number = _number(device)
    free, total = import_cupy().cuda.Device(number).mem_info
    return int(free), int(total)


def is_initialized() -> bool:
    """Whether there is a GPU that this process can use: CuPy starts it at the first need."""
    return is_available()


def memory_allocated(device: CudaDevice = None) -> int:
    """Number of bytes that the GPU's arrays take of CuPy's memory pool; 0 without a GPU."""
    return _pool_bytes(device, "used_bytes")


def memory_reserved(device: CudaDevice = None) -> int:
    """Number of bytes that CuPy's memory pool holds on the GPU, used or free; 0 without a GPU."""
    return _pool_bytes(device, "total_bytes")


def _pool_bytes(device: CudaDevice, measure: str) -> int:
    """Return one measure of the memory pool on a GPU; each GPU has a pool of its own."""
    if not is_available():
        return 0
    cupy = import_cupy()
    with cupy.cuda.Device(_number(device)):
        return int(getattr(cupy.get_default_memory_pool(), measure)())


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


def get_device_capability(device: CudaDevice = None) -> tuple[int, int]:
    """(major, minor) of the GPU's compute capability."""
    found = get_device_properties(device)
    return found.major, found.minor


@dataclass(frozen=True)
class DeviceProperties:
    """A GPU: its name, compute capability, bytes of memory and number of multiprocessors."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def get_device_properties(device: CudaDevice = None) -> DeviceProperties:
    """The properties of the GPU."""
    number = _number(device)
    found = import_cupy().cuda.runtime.getDeviceProperties(number)
    name = found["name"]
    return DeviceProperties(
        name.decode() if isinstance(name, bytes) else str(name),
        int(found["major"]),
        int(found["minor"]),
        int(found["totalGlobalMem"]),
        int(found["multiProcessorCount"]),
    )


def get_rng_state(device: CudaDevice = "cuda") -> Tensor:
    """The state of the default generator, which all devices share; needs no GPU."""
    return default_generator.get_state()


def get_rng_state_all() -> list[Tensor]:
    """The state of the generator of each GPU: of the one that they share."""
    return [default_generator.get_state() for _ in range(device_count())]


def set_rng_state(new_state: Tensor, device: CudaDevice = "cuda") -> None:
    """Go on where the default generator had this state."""
    default_generator.set_state(new_state)


def set_rng_state_all(new_states: Sequence[Tensor]) -> None:
    """Go on where the generator that all GPUs share had the first of these states."""
    for state in list(new_states)[:1]:
        default_generator.set_state(state)


class Event:
    """A mark in the work of this process's GPU; without a GPU, in that of the CPU, where the work
    before it is done when it is recorded.

    enable_timing: `elapsed_time` may be asked.  The others are accepted and change nothing.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._is_timed, self._recorded_at = enable_timing, -1.0
        self._event: Any = None
        if is_available():
            own_device()
            self._event = import_cupy().cuda.Event(block=blocking, disable_timing=not enable_timing)

    def record(self, stream: object = None) -> None:
        """Put the mark behind all work given so far."""
        self._recorded_at = perf_counter()
        if self._event is not None:
            self._event.record()

    def wait(self, stream: object = None) -> None:
        """Return at once: later work runs behind earlier work, as all streams are one."""

    def query(self) -> bool:
        """Return whether the work before the mark is done."""
        return self._event is None or bool(self._event.done)

    def synchronize(self) -> None:
        """Wait until the work before the mark is done."""
        if self._event is not None:
            self._event.synchronize()

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this mark to another. Raises ArgumentError for a mark that
        is not recorded or was made without `enable_timing`.
        """
        for event in (self, end_event):
            if not event._is_timed or event._recorded_at < 0:
                raise ArgumentError(
                    "Event.elapsed_time: both events must be made with enable_timing=True and "
                    "recorded"
                )
        if self._event is None:
            return (end_event._recorded_at - self._recorded_at) * 1e3
        return float(import_cupy().cuda.get_elapsed_time(self._event, end_event._event))


def _number(device: CudaDevice) -> int:
    """The CUDA device that is meant. Raises DeviceError if it is none or not there."""
    where = Device("cuda", device) if device is None or isinstance(device, int) else Device(device)
    if where.type != "cuda":
        raise DeviceError(f"expected a cuda device, got {where}")
    return device_number(where.index)


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return (default_generator,) * device_count()
    return below(__name__, name)


accept_paths(__name__)
