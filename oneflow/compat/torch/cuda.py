"""Names of `torch.cuda` beyond those of `flow.cuda`: streams, peaks of memory, graphs.

All kernels of a process go to one stream, in the order of the calls, which is at least as much as a
program with several streams relies on. A stream that it makes is a name for that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NoReturn

from oneflow import cuda
from oneflow.core.device import Device
from oneflow.core.errors import DeviceMemoryError, OneFlowError
from oneflow.cuda import CudaDevice, Event
from oneflow.kernels.cuda_device import import_cupy
from oneflow.tensor.tensor import Tensor

OutOfMemoryError = DeviceMemoryError


class Stream:
    """The stream of a GPU. device, priority, stream_ptr, stream_id: accepted; all streams are one.

    `with stream:` changes nothing: kernels run in the order of their calls.
    """

    def __init__(self, device: CudaDevice = None, priority: int = 0, **_: object) -> None:
        self.device = (
            Device("cuda", device) if isinstance(device, int) else Device(device or "cuda")
        )
        self.priority, self.stream_id, self.cuda_stream = priority, 0, 0

    def wait_stream(self, stream: object) -> None:
        """Return at once: work of both is done in the order of the calls."""

    wait_event = wait_stream

    def record_event(self, event: Event | None = None) -> Event:
        """Put a mark behind all work given so far."""
        mark = Event() if event is None else event
        mark.record()
        return mark

    def query(self) -> bool:
        """Return whether all work given so far is done."""
        return not cuda.is_available() or self.record_event().query()

    def synchronize(self) -> None:
        """Wait until all work given so far is done."""
        if cuda.is_available():
            cuda.synchronize(self.device)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.device == other.device

    def __hash__(self) -> int:
        return hash(self.device)


ExternalStream = Stream


def current_stream(device: CudaDevice = None) -> Stream:
    """Return the stream of a GPU."""
    return Stream(device)


default_stream = current_stream


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """Change nothing inside: kernels run in the order of their calls."""
    yield


StreamContext = stream


def set_stream(stream: Stream) -> None:
    """Change nothing: all streams are one."""


class device:
    """A block in which `cuda` is one GPU: this process's own, as for `flow.cuda.set_device`."""

    def __init__(self, device: CudaDevice) -> None:
        self.idx = device

    def __enter__(self) -> None:
        if self.idx is not None and cuda.is_available():
            cuda.set_device(self.idx)

    def __exit__(self, *_: object) -> None:
        return None


class device_of(device):
    """A block in which `cuda` is the GPU of a tensor; nothing for a tensor elsewhere."""

    def __init__(self, obj: Tensor) -> None:
        super().__init__(obj.device.index if obj.is_cuda else -1)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return whether the GPU multiplies bfloat16: of compute capability 8.0 or more."""
    return cuda.is_available() and cuda.get_device_capability() >= (8, 0)


def is_current_stream_capturing() -> bool:
    """Return False: eager code is not captured; `nn.Graph` replays its steps by itself."""
    return False


def get_arch_list() -> list[str]:
    """Return the architecture of this process's GPU, for which kernels are compiled at need."""
    if not cuda.is_available():
        return []
    major, minor = cuda.get_device_capability()
    return [f"sm_{major}{minor}"]


class CUDAGraph:
    """A recording of kernels: none is ever made by a program; `nn.Graph` makes its own."""

    def __init__(self, *_: object, **__: object) -> None:
        graph()


def graph(*_: object, **__: object) -> NoReturn:
    """Refuse: `nn.Graph` records and replays a step by itself."""
    raise OneFlowError("cuda.graph: nn.Graph records the kernels of a step and replays them")


make_graphed_callables = graph_pool_handle = graph


def cudart() -> NoReturn:
    """Refuse: CuPy has the functions of CUDA's runtime."""
    raise OneFlowError("cuda.cudart: use cupy.cuda.runtime")


# ---- peaks of memory -----------------------------------------------------------------------------


class _Peaks:
    """The most bytes that arrays took of each GPU's pool since the watch began."""

    def __init__(self) -> None:
        self.hook: Any = None
        self.used: dict[int, int] = {}
        self.held: dict[int, int] = {}

    def watch(self) -> None:
        """Begin to watch allocations, if that has not begun."""
        if self.hook is not None:
            return
        steps = {
            "name": "oneflow.cuda.max_memory_allocated",
            "malloc_postprocess": lambda _, device_id, **__: self.note(device_id),
        }
        self.hook = type("Watch", (import_cupy().cuda.MemoryHook,), steps)()
        self.hook.__enter__()

    def note(self, number: int) -> None:
        pool = import_cupy().get_default_memory_pool()
        self.used[number] = max(self.used.get(number, 0), pool.used_bytes())
        self.held[number] = max(self.held.get(number, 0), pool.total_bytes())

    def reset(self) -> None:
        self.used.clear()
        self.held.clear()


_peaks = _Peaks()


def _peak(found: dict[int, int], device: CudaDevice) -> int:
    if not cuda.is_available():
        return 0
    _peaks.watch()
    number = cuda._number(device)
    with import_cupy().cuda.Device(number):
        _peaks.note(number)
    return found[number]


def max_memory_allocated(device: CudaDevice = None) -> int:
    """Return the most bytes that the GPU's arrays took at once, since this function or
    `reset_peak_memory_stats` was first called, or since the last reset; 0 without a GPU.
    """
    return _peak(_peaks.used, device)


def max_memory_reserved(device: CudaDevice = None) -> int:
    """Return the most bytes that CuPy's memory pool held: see `max_memory_allocated`."""
    return _peak(_peaks.held, device)


def reset_peak_memory_stats(device: CudaDevice = None) -> None:
    """Begin a new measurement of `max_memory_allocated`, on all GPUs."""
    if cuda.is_available():
        _peaks.watch()
        _peaks.reset()


reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats
reset_accumulated_memory_stats = reset_peak_memory_stats
max_memory_cached, memory_cached = max_memory_reserved, cuda.memory_reserved


def memory_stats(device: CudaDevice = None) -> dict[str, int]:
    """Return the bytes that arrays take and that the pool holds, now and at most."""
    return {
        "allocated_bytes.all.current": cuda.memory_allocated(device),
        "allocated_bytes.all.peak": max_memory_allocated(device),
        "reserved_bytes.all.current": cuda.memory_reserved(device),
        "reserved_bytes.all.peak": max_memory_reserved(device),
    }


def memory_summary(device: CudaDevice = None, abbreviated: bool = False) -> str:
    """Return `memory_stats` as text."""
    return "\n".join(f"{name:<30} {value:>16,}" for name, value in memory_stats(device).items())


def set_per_process_memory_fraction(fraction: float, device: CudaDevice = None) -> None:
    """Let CuPy's memory pool hold at most this part of the GPU's memory."""
    if cuda.is_available():
        with import_cupy().cuda.Device(cuda._number(device)):
            import_cupy().get_default_memory_pool().set_limit(fraction=fraction)


def ipc_collect() -> None:
    """Return at once: memory of other processes is closed where it is used last."""


init = _lazy_init = ipc_collect


def _is_in_bad_fork() -> bool:
    """Return False: CuPy begins where it is first needed."""
    return False


def can_device_access_peer(device: CudaDevice, peer_device: CudaDevice) -> bool:
    """Return whether one GPU can read another one's memory."""
    numbers = cuda._number(device), cuda._number(peer_device)
    return bool(import_cupy().cuda.runtime.deviceCanAccessPeer(*numbers))
