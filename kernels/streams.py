"""Streams of a GPU beside the one that kernels are launched on: exchanges between ranks (BOXING)
and copies from the host (COPY) run at the same time as kernels.

Kernels go to the stream that is current. What is launched inside `beside` comes after all that was
launched before, and nothing launched later waits for it until `join`. Memory that is used beside
must be held until then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from oneflow.kernels.array import GpuEvent, GpuStream

BOXING, COPY = "boxing", "copy"


@contextmanager
def beside(name: str) -> Iterator[None]:
    """Work launched inside runs on the stream `name` of the current GPU."""
    stream: Any = side_stream(name)
    stream.wait_event(mark())
    with stream:
        yield


def join(name: str) -> None:
    """Let what is launched from now on wait for all that was launched beside."""
    wait(mark(side_stream(name)))


def wait(event: GpuEvent) -> None:
    """Let what is launched from now on come after an event."""
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
