"""The hardware layer: the few things that differ between kinds of devices."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from oneflow.actors.memory import aligned_buffer
from oneflow.core.plan import Plan
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_device import use_device


class Hardware(Protocol):
    """One device of this process.

    xp: its array module.  use: makes it this thread's current device.  allocate: zeroed bytes as a
    uint8 array of xp.  synchronize: returns when all launched kernels have finished.
    """

    kind: str
    xp: ArrayModule

    def use(self) -> None: ...
    def allocate(self, nbytes: int) -> Array: ...
    def copy(self, target: Array, source: Array) -> None: ...
    def synchronize(self) -> None: ...


class Cpu:
    """NumPy arrays; kernels have finished when they return."""

    kind = "cpu"
    xp: ArrayModule = np

    def use(self) -> None:
        return

    def allocate(self, nbytes: int) -> Array:
        return aligned_buffer(nbytes)

    def copy(self, target: Array, source: Array) -> None:
        np.copyto(target, source)

    def synchronize(self) -> None:
        return


class Cuda:
    """CuPy arrays on one GPU, which is made the current device of the thread that makes or uses it.
    Not run on a GPU yet (docs/GPU.md).

    Kernels run on the thread's current stream, as eager code does: so what one of them launched the
    other sees,
    without waiting. copy from the host: the values are taken at once.
    """

    kind = "cuda"

    def __init__(self, index: int) -> None:
        self._index = index
        self.xp: ArrayModule = use_device(index)

    def use(self) -> None:
        use_device(self._index)

    def allocate(self, nbytes: int) -> Array:
        zeros: Array = self.xp.zeros(nbytes, dtype=self.xp.uint8)
        return zeros

    def copy(self, target: Array, source: Array) -> None:
        if isinstance(source, np.ndarray):
            source = self.xp.asarray(source)
        self.xp.copyto(target, source)

    def synchronize(self) -> None:
        self.xp.cuda.get_current_stream().synchronize()


def is_on_gpu(plan: Plan) -> bool:
    """Are the registers of this plan in GPU memory?"""
    return any(actor.placement.type == "cuda" for actor in plan.actors)


def hardware_for(kind: str, index: int) -> Hardware:
    """The device `kind`:`index` of this process. Raises DeviceError."""
    return Cuda(index) if kind == "cuda" else Cpu()
