"""The hardware layer for GPUs of CUDA. Not run on a GPU yet (docs/GPU.md)."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from oneflow.core.metrics import METRICS
from oneflow.kernels.array import Array, ArrayModule, GpuArray, address, is_pinned
from oneflow.kernels.cuda_device import gpu_count, import_cupy, index_of, use_device
from oneflow.kernels.hardware import Hardware, Host
from oneflow.kernels.streams import copy_beside, pinned


class Cuda(Hardware):
    """CuPy arrays on one GPU.

    Kernels run on the thread's current stream, as eager code does: each sees the results of the
    other without waiting. copy from the host: the values are taken at once.
    """

    kind = "cuda"
    joins_neighbours = maps_peers = True

    def __init__(self, index: int) -> None:
        self.index = index
        use_device(index)

    @classmethod
    def count(cls) -> int:
        return gpu_count()

    @classmethod
    def owns(cls, array: Array) -> bool:
        return hasattr(array, "__cuda_array_interface__")  # CuPy need not be installed to ask

    @classmethod
    def index_of(cls, array: Array) -> int:
        made: Any = array
        gpu: GpuArray = made
        return index_of(gpu)

    @classmethod
    def address(cls, array: Array) -> int:
        return address(array)

    @classmethod
    def load_kernels(cls) -> None:
        import_cupy()

    def use(self) -> ArrayModule:
        module: ArrayModule = use_device(self.index)
        return module

    def pinned(self, array: Host) -> Host:
        return pinned(array)

    def from_host(self, array: Host, non_blocking: bool = False) -> Array:
        if non_blocking and is_pinned(array):
            return copy_beside(array, self.index)
        made: Array = use_device(self.index).array(array)
        return made

    @classmethod
    def to_host(cls, array: Array) -> Host:
        made: Any = array
        host: Host = made.get()
        return host

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()

    def memory(self) -> tuple[int, int]:
        free, total = self.use().cuda.Device().mem_info
        return int(free), int(total)

    def copy(self, target: Array, source: Array) -> None:
        if isinstance(source, np.ndarray):
            source = self.xp.asarray(source)
        self.xp.copyto(target, source)

    def staging(self, part: Array) -> Host:
        import cupyx

        raw: Host = cupyx.empty_pinned((max(part.nbytes, 1),), np.uint8)
        shaped: Host = raw[: part.nbytes].view(part.dtype).reshape(part.shape)
        METRICS.pinned(raw.nbytes)
        weakref.finalize(shaped, METRICS.pinned, -raw.nbytes).atexit = False
        return shaped

    def to_staging(self, staged: Host, part: Array) -> None:
        if part.size:
            made: Any = self.xp.ascontiguousarray(part)
            made.get(out=staged)

    def from_staging(self, part: Array, staged: Host) -> None:
        if part.size:
            part[...] = self.xp.asarray(staged)
            self.synchronize()
