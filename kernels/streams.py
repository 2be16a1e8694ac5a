"""Streams of a GPU beside the one that kernels are launched on: exchanges between ranks (BOXING)
and copies from the host (COPY) run at the same time as kernels.

Kernels go to the stream that is current. Work launched inside `beside` comes after all that was
launched before, and nothing launched later waits for it until `join`. Memory that is used beside
must be held until then.

A copy from pinned memory, which a GPU reads by itself, waits for nothing: so the next batch is on
its way while kernels of this step run. Work launched after `copy_beside` waits for the copy. Two
things must outlive their last name: the source, until the copy is done, and memory of the stream
COPY, which the next copy may be given, until the kernels that were launched before the array was
dropped are done.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from oneflow.kernels.array import Array, GpuEvent, GpuStream
from oneflow.kernels.cuda_device import import_cupy, use_device

BOXING, COPY = "boxing", "copy"
_held: deque[tuple[GpuEvent, object]] = deque()
"""Memory in use, and the event after which it is not; oldest first."""


@contextmanager
def beside(name: str) -> Iterator[None]:
    """Work launched inside runs on the stream `name` of the current GPU."""
    stream: Any = side_stream(name)
    stream.wait_event(mark())
    with stream:
        yield


def join(name: str) -> None:
    """Let work launched from now on wait for all that was launched beside."""
    wait(mark(side_stream(name)))


def wait(event: GpuEvent) -> None:
    """Let work launched from now on come after an event."""
    _current().wait_event(event)


def mark(stream: GpuStream | None = None) -> GpuEvent:
    """An event behind all that was launched so far; stream: None is the current one."""
    import cupy

    return (stream or _current()).record(cupy.cuda.Event(disable_timing=True))


def side_stream(name: str) -> GpuStream:
    """The stream `name` of the current GPU."""
    import cupy

    return _made(name, cupy.cuda.Device().id)


@cache
def _made(name: str, device: int) -> GpuStream:
    import cupy

    stream: GpuStream = cupy.cuda.Stream(non_blocking=True)
    return stream


def _current() -> GpuStream:
    import cupy

    stream: GpuStream = cupy.cuda.get_current_stream()
    return stream


# ---- copies from the host ------------------------------------------------------------------------


def pinned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy in pinned memory. Raises DeviceError without a GPU."""
    memory = import_cupy().cuda.alloc_pinned_memory(max(array.nbytes, 1))
    made: np.ndarray[Any, Any] = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
    np.copyto(made, array)
    return made


def copy_beside(array: np.ndarray[Any, Any], index: int) -> Array:
    """A copy of a pinned array on `cuda:index`; returns before it is there."""
    cupy = use_device(index)
    while _held and _held[0][0].done:
        _held.popleft()
    stream: Any = side_stream(COPY)
    with stream:
        made = cupy.empty(array.shape, array.dtype)
        made.set(array, stream=stream)
        arrived = mark()
    _held.append((arrived, array))
    wait(arrived)
    dropped = weakref.finalize(made, _hold, made.data, int(cupy.cuda.Device().id))
    dropped.atexit = False
    found: Array = made
    return found


def _hold(memory: object, device: int) -> None:
    """Hold memory of a dropped array of the stream COPY: kernels launched so far may read it."""
    with import_cupy().cuda.Device(device):
        _held.append((mark(), memory))
