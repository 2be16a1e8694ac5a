"""CuPy and NCCL as far as the collectives use them, in host memory: ranks are threads.

A "stream" runs calls at once, except that an NCCL call waits in its caller until all
peers have made theirs. Streams and events write down all calls, in order, for tests.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from oneflow.kernels import hardware
from oneflow.kernels.cuda_hardware import Cuda
from tests.support.waiting import CALL_S

here = threading.local()


class DeviceArray(np.ndarray):
    """Memory of the host that says it is a GPU's."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return types.SimpleNamespace(ptr=self.__array_interface__["data"][0])

    def get(self) -> Any:
        return np.array(self, subok=False)


def events() -> list[tuple[Any, ...]]:
    """Acts of this thread's streams."""
    if not hasattr(here, "events"):
        here.events = []
    found: list[tuple[Any, ...]] = here.events
    return found


class Event:
    def __init__(self, disable_timing: bool = False) -> None:
        self.done = False


class Stream:
    numbers = itertools.count(1)

    def __init__(self, non_blocking: bool = False, ptr: int | None = None) -> None:
        self.ptr = next(Stream.numbers) if ptr is None else ptr

    def record(self, event: Event) -> Event:
        event.done = True
        events().append(("record", self.ptr, id(event)))
        return event

    def wait_event(self, event: Event) -> None:
        events().append(("wait", self.ptr, id(event)))

    def synchronize(self) -> None:
        events().append(("synchronize", self.ptr))

    def __enter__(self) -> Stream:
        here.stack = [*getattr(here, "stack", []), self]
        return self

    def __exit__(self, *_: Any) -> None:
        here.stack = here.stack[:-1]


NULL = Stream(ptr=0)


class Device:
    def __init__(self, number: int = 0) -> None:
        self.id = number

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: Any) -> None:
        return


class NcclError(RuntimeError):
    pass


class Meeting:
    """The communicators of one unique id."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.calls: dict[int, dict[int, Any]] = {}
        self.sent: dict[tuple[int, int], list[np.ndarray[Any, Any]]] = {}
        self.ends = 0


_meetings: dict[bytes, Meeting] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()
NUMPY = {"i1": np.int8, "u1": np.uint8, "f4": np.float32, "f8": np.float64, "i4": np.int32}
KINDS = ("i1", "u1", "i4", "f4", "f8")
REDUCE = (np.add, np.multiply, np.maximum, np.minimum)


def _memory(pointer: int, nbytes: int) -> np.ndarray[Any, Any]:
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(pointer), np.uint8)


class NcclCommunicator:
    def __init__(self, size: int, unique: bytes, index: int) -> None:
        assert isinstance(unique, bytes) and len(unique) == 128
        with _lock:
            self.meeting = _meetings.setdefault(unique, Meeting(size))
        self.index, self.number, self.is_aborted, self.is_destroyed = index, 0, False, False
        self.async_error: Exception | None = None
        with self.meeting.changed:
            self.meeting.ends += 1
            self.meeting.changed.notify_all()
            self.meeting.changed.wait_for(lambda: self.meeting.ends >= size, CALL_S)

    # ---- collectives -----------------------------------------------------------------------------

    def allReduce(self, source: int, out: int, n: int, kind: int, op: int, stream: int) -> None:
        dtype = np.dtype(NUMPY[KINDS[kind]])
        self._call("allReduce", source, out, n * dtype.itemsize, stream, (dtype, op, None))

    def reduceScatter(self, source: int, out: int, n: int, kind: int, op: int, stream: int) -> None:
        dtype = np.dtype(NUMPY[KINDS[kind]])
        part = slice(self.index * n * dtype.itemsize, (self.index + 1) * n * dtype.itemsize)
        nbytes = n * dtype.itemsize * self.meeting.size
        self._call("reduceScatter", source, out, nbytes, stream, (dtype, op, part))

    def allGather(self, source: int, out: int, n: int, kind: int, stream: int) -> None:
        self._call("allGather", source, out, n, stream, None)

    def broadcast(self, source: int, out: int, n: int, kind: int, root: int, stream: int) -> None:
        self._call("broadcast", source, out, n, stream, root)

    def _call(self, name: str, source: int, out: int, nbytes: int, stream: int, how: Any) -> None:
        events().append((name, stream))
        _start(lambda: self._meet(name, source, out, nbytes, how))

    def _meet(self, name: str, source: int, out: int, nbytes: int, how: Any) -> None:
        self.number += 1
        number = self.number
        mine = _memory(source, nbytes).copy()
        with self.meeting.changed:
            posted = self.meeting.calls.setdefault(number, {})
            posted[self.index] = mine
            self.meeting.changed.notify_all()
            if not self._wait(lambda: len(posted) == self.meeting.size):
                return
            parts = [posted[i] for i in range(self.meeting.size)]
        if name == "allGather":
            _memory(out, nbytes * len(parts))[:] = np.concatenate(parts)
        elif name == "broadcast":
            _memory(out, nbytes)[:] = parts[how]
        else:
            dtype, op, part = how
            total = parts[0].view(dtype)
            for other in parts[1:]:
                total = REDUCE[op](total, other.view(dtype))
            raw = total.view(np.uint8)[part or slice(None)]
            _memory(out, raw.size)[:] = raw

    # ---- sends and receives ----------------------------------------------------------------------

    def send(self, source: int, n: int, kind: int, peer: int, stream: int) -> None:
        events().append(("send", stream))
        _start(lambda: self._send(source, n, peer), is_send=True)

    def recv(self, out: int, n: int, kind: int, peer: int, stream: int) -> None:
        events().append(("recv", stream))
        _start(lambda: self._recv(out, n, peer))

    def _send(self, source: int, n: int, peer: int) -> None:
        with self.meeting.changed:
            key = self.index, peer
            self.meeting.sent.setdefault(key, []).append(_memory(source, n).copy())
            self.meeting.changed.notify_all()

    def _recv(self, out: int, n: int, peer: int) -> None:
        key = peer, self.index
        with self.meeting.changed:
            if self._wait(lambda: bool(self.meeting.sent.get(key))):
                data = self.meeting.sent[key].pop(0)
                assert data.size == n
                _memory(out, n)[:] = data

    def _wait(self, ready: Any) -> bool:
        """False if aborted meanwhile."""
        self.meeting.changed.wait_for(lambda: ready() or self.is_aborted, 30)
        return not self.is_aborted

    # ---- the rest --------------------------------------------------------------------------------

    def check_async_error(self) -> None:
        if self.async_error is not None:
            raise self.async_error

    def abort(self) -> None:
        with self.meeting.changed:
            self.is_aborted = True
            self.meeting.changed.notify_all()

    def destroy(self) -> None:
        self.is_destroyed = True


def _start(call: Any, is_send: bool = False) -> None:
    group = getattr(here, "group", None)
    if group is None:
        call()
    else:
        group.append((not is_send, call))


def group_start() -> None:
    assert getattr(here, "group", None) is None, "a group in a group"
    here.group = []
    events().append(("groupStart",))


def group_end() -> None:
    calls, here.group = here.group, None
    events().append(("groupEnd",))
    for _, call in sorted(calls, key=lambda c: c[0]):  # sends first, as all start together
        call()


def _device(array: Any) -> Any:
    return array.view(DeviceArray)


def _unique_id() -> bytes:
    return next(_numbers).to_bytes(128, "little")


def make() -> Any:
    """The module."""
    nccl = types.SimpleNamespace(
        available=True,
        NcclCommunicator=NcclCommunicator,
        NcclError=NcclError,
        get_unique_id=_unique_id,
        get_version=lambda: 23005,
        groupStart=group_start,
        groupEnd=group_end,
        **{
            name: KINDS.index(kind)
            for name, kind in (
                ("NCCL_INT8", "i1"), ("NCCL_UINT8", "u1"), ("NCCL_INT32", "i4"),
                ("NCCL_FLOAT32", "f4"), ("NCCL_FLOAT64", "f8"),
            )
        },
        NCCL_SUM=0, NCCL_PROD=1, NCCL_MAX=2, NCCL_MIN=3,
    )  # fmt: skip
    cuda = types.SimpleNamespace(
        nccl=nccl,
        Stream=Stream,
        Event=Event,
        Device=Device,
        get_current_stream=lambda: (getattr(here, "stack", None) or [NULL])[-1],
    )
    return types.SimpleNamespace(
        __version__="14.2.0",
        cuda=cuda,
        ndarray=DeviceArray,
        empty=lambda shape, dtype: _device(np.full(shape, 77).astype(dtype)),
        empty_like=lambda x: _device(np.full(x.shape, 77).astype(x.dtype)),
        asarray=lambda x: _device(np.array(x, subok=False)),
        asnumpy=lambda x: np.array(x, subok=False),
        ascontiguousarray=lambda x: _device(np.ascontiguousarray(x).reshape(x.shape)),
        copyto=np.copyto,
    )


class StandIn(Cuda):
    """A GPU whose array module is the stand-in."""

    array_class = DeviceArray

    def __init__(self, index: int = 0) -> None:
        self.index = index

    @classmethod
    def count(cls) -> int:
        return 1

    def use(self) -> Any:
        return sys.modules["cupy"]

    def from_host(self, array: Any, non_blocking: bool = False) -> Any:
        return self.use().asarray(array)

    @classmethod
    def to_host(cls, array: Any) -> Any:
        return np.array(array, subok=False)


@contextmanager
def installed() -> Iterator[Any]:
    """`import cupy` gives the stand-in, and "cuda" is a device of it."""
    cupy = make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(hardware._kinds, "cuda", StandIn)
        patch.setattr(hardware, "_made", lambda kind, index: hardware.hardware_class(kind)(index))
        patch.setitem(sys.modules, "cupy", cupy)
        patch.setitem(sys.modules, "cupy.cuda", cupy.cuda)
        patch.setitem(sys.modules, "cupy.cuda.nccl", cupy.cuda.nccl)
        yield cupy
