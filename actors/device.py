"""The hardware layer: the few things that differ between kinds of devices."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from oneflow.actors.memory import aligned_buffer
from oneflow.core.device import load_cupy
from oneflow.core.errors import DeviceError


class Hardware(Protocol):
    """One device of this process.

    xp: its array module.  allocate: zeroed bytes as a uint8 array of xp.  synchronize: returns when all launched kernels have finished.
    """

    kind: str
    xp: Any

    def allocate(self, nbytes: int) -> Any: ...
    def to_host(self, array: Any) -> np.ndarray[Any, Any]: ...
    def copy(self, target: Any, source: Any) -> None: ...
    def synchronize(self) -> None: ...


class Cpu:
    """NumPy arrays; kernels have finished when they return."""

    kind = "cpu"
    xp: Any = np

    def allocate(self, nbytes: int) -> Any:
        return aligned_buffer(nbytes)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        return np.asarray(array)

    def copy(self, target: Any, source: Any) -> None:
        np.copyto(target, source)

    def synchronize(self) -> None:
        return


class Cuda:
    """CuPy arrays on one GPU; kernels run on one stream of its own. Not run on a GPU yet (docs/GPU.md)."""

    kind = "cuda"

    def __init__(self, index: int) -> None:
        cupy = load_cupy()
        count = cupy.cuda.runtime.getDeviceCount()
        if index >= count:
            raise DeviceError(f"there is no cuda:{index}: this host has {count} CUDA devices")
        self.xp: Any = cupy
        self._device = cupy.cuda.Device(index)
        self._device.use()
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._stream.use()

    def allocate(self, nbytes: int) -> Any:
        return self.xp.zeros(nbytes, dtype=self.xp.uint8)

    def to_host(self, array: Any) -> np.ndarray[Any, Any]:
        result: np.ndarray[Any, Any] = self.xp.asnumpy(array, stream=self._stream)
        return result

    def copy(self, target: Any, source: Any) -> None:
        if isinstance(source, np.ndarray):
            source = self.xp.asarray(source)
        self.xp.copyto(target, source)

    def synchronize(self) -> None:
        self._stream.synchronize()


def hardware_for(kind: str, index: int) -> Hardware:
    """The device `kind`:`index` of this process. Raises DeviceError."""
    return Cuda(index) if kind == "cuda" else Cpu()
