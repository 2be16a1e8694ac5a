"""The mode that times ops of eager code and counts the bytes that they allocate and free.

An op allocates the memory of its results that is neither its inputs' nor anybody's before; it is
freed when the last tensor over it goes. Bytes freed while an op runs count against that op, all
others as events of their own, `[memory]`, as in PyTorch. Memory that a kernel takes for itself and
returns is not seen. Gradients are computed op by op, so that each op is seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any

import numpy as np

from oneflow.core.device import Device
from oneflow.core.dispatch import Mode
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.kernels.array import Array
from oneflow.nn.timing import FACTS, Recording, Timing
from oneflow.tensor.tensor import Tensor


class Memory:
    """The bytes that the calls of one recording allocated and freed.

    by_call: number of a call in the recording -> bytes that it allocated and did not free, without
    the calls inside of it, and with them.  outside: (time, bytes), freed between calls.
    """

    def __init__(self) -> None:
        self.by_call: dict[int, tuple[int, int]] = {}
        self.outside: list[tuple[int, int]] = []
        self._frames: list[list[int]] = []
        self._alive: set[int] = set()
        self._is_open = True

    def begin(self) -> None:
        self._frames.append([0, 0])

    def end(self, number: int) -> None:
        """End the call of that number."""
        own, inside = self._frames.pop()
        self.by_call[number] = own, own + inside
        if self._frames:
            self._frames[-1][1] += own + inside

    def abort(self) -> None:
        """End a call that failed."""
        self._frames.pop()

    def close(self) -> None:
        """Count nothing any more."""
        self._is_open = False

    def made(self, outs: Iterable[Tensor], inputs: Iterable[Tensor]) -> None:
        """Count the memory of results that was not there before."""
        known = {id(_owner(x)) for x in inputs}
        for x in outs:
            owner = _owner(x)
            if owner is None or id(owner) in known or id(owner) in self._alive:
                continue
            self._alive.add(id(owner))
            self._frames[-1][0] += owner.nbytes
            weakref.finalize(owner, self._freed, id(owner), owner.nbytes).atexit = False

    def _freed(self, key: int, nbytes: int) -> None:
        self._alive.discard(key)
        if not self._is_open:
            return
        if self._frames:
            self._frames[-1][0] -= nbytes
        else:
            self.outside.append((perf_counter_ns(), -nbytes))


def _owner(x: Tensor) -> Array | None:
    """The array that has the memory of a tensor; None on a GPU."""
    array = getattr(x, "_array", None)
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    return array if isinstance(array, np.ndarray) else None


class MemoryTiming(Timing):
    """Times ops and counts their memory."""

    replays = False

    def __init__(self, inner: Mode, recording: Recording, memory: Memory) -> None:
        super().__init__(inner, recording)
        self._memory = memory

    def over(self, inner: Mode) -> MemoryTiming:
        return MemoryTiming(inner, self.recording, self._memory)

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        memory = self._memory
        memory.begin()
        try:
            out = super().run(op, inputs, attrs)
        except BaseException:
            memory.abort()
            raise
        memory.made(out if isinstance(out, tuple) else (out,), inputs)
        memory.end(len(self.recording.noted) // FACTS - 1)
        return out

    def create(
        self,
        op: type[Op],
        attrs: Attrs,
        device: Device | None,
        placement: Placement | None,
        nd_sbp: NdSbp | None,
    ) -> Any:
        memory = self._memory
        memory.begin()
        try:
            out = super().create(op, attrs, device, placement, nd_sbp)
        except BaseException:
            memory.abort()
            raise
        memory.made((out,), ())
        memory.end(len(self.recording.noted) // FACTS - 1)
        return out
