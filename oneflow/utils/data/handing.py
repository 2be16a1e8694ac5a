"""Hands batches from a worker process to its parent through memory that both map.

A message over the pipe is the pickle of the batch without its large arrays; these lie in anonymous
files (memfd) whose descriptors follow on the same socket, so nothing has a name that would have to
be removed when either process dies. Memory that `new_array` gave is handed over as it is; other
large arrays are copied into one file more. The parent's arrays are the mapped memory itself, which
is given back when the last of them is.
"""

from __future__ import annotations

import copyreg
import io
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recvfds, sendfds
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

LARGE = 1 << 16
"""Bytes from which an array does not travel through the pipe."""

_COUNTS = struct.Struct("<IQ")  # number of arrays, bytes of their table
_PLACE = struct.Struct("<IQQ")  # which file, offset, bytes
_MAX_FILES = 64  # far below what one message may carry and a process may open


class SharedArrays:
    """Memory for the batches of this process, found again when they are sent."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, int]] = {}  # address -> descriptor, bytes

    def new_array(self, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray[Any, Any]:
        """An array of that shape, in a file of its own if it is large."""
        kind = np.dtype(dtype)
        nbytes = kind.itemsize * int(np.prod(shape, dtype=np.int64))
        if nbytes < LARGE or len(self._files) >= _MAX_FILES:
            return np.empty(shape, kind)
        handle, memory = _new_file(nbytes)
        array: np.ndarray[Any, Any] = np.frombuffer(memory, dtype=np.uint8, count=nbytes)
        array = array.view(kind).reshape(shape)
        self._files[array.ctypes.data] = handle, nbytes
        return array

    def file_of(self, buffer: memoryview) -> int | None:
        """The descriptor of the file whose beginning the buffer is, None if it is elsewhere."""
        address = np.frombuffer(buffer, dtype=np.uint8).ctypes.data
        handle, nbytes = self._files.get(address, (None, 0))
        return handle if buffer.nbytes <= nbytes else None

    def forget(self) -> None:
        """Closes the files; their memory lives on where it is mapped."""
        for handle, _ in self._files.values():
            os.close(handle)
        self._files.clear()


def _new_file(nbytes: int) -> tuple[int, mmap.mmap]:
    handle = os.memfd_create("oneflow-batch", os.MFD_CLOEXEC)
    try:
        os.ftruncate(handle, nbytes)
        return handle, _mapped(handle, nbytes)
    except BaseException:
        os.close(handle)
        raise


def _mapped(handle: int, nbytes: int) -> mmap.mmap:
    # All pages at once: one by one they are asked for while the batch is written or read.
    return mmap.mmap(handle, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)


class _Pickler(pickle.Pickler):
    """Pickles for another process, large contiguous buffers left out."""

    def __init__(self, file: io.BytesIO, left_out: list[memoryview]) -> None:
        def take(buffer: pickle.PickleBuffer) -> bool:
            view = memoryview(buffer)
            if view.nbytes < LARGE or not view.contiguous:
                return True  # into the pickle
            left_out.append(buffer.raw())
            return False

        super().__init__(file, 5, buffer_callback=take)
        own: Any = ForkingPickler  # what multiprocessing knows to send: connections, locks ...
        self.dispatch_table = copyreg.dispatch_table | own._extra_reducers


def send(pipe: Connection, value: object, arrays: SharedArrays) -> None:
    """Send a value to the process at the other end. Raises the errors of pickling it, before a byte
    is sent.
    """
    file, buffers = io.BytesIO(), list[memoryview]()
    _Pickler(file, buffers).dump(value)
    found = [arrays.file_of(buffer) for buffer in buffers]
    loose = [b for b, handle in zip(buffers, found, strict=True) if handle is None]
    handles = [handle for handle in found if handle is not None]
    if loose:  # one more file, which comes first
        handles.insert(0, _copied(loose))
    try:
        places = _places_of(buffers, found)
        table = [_PLACE.pack(*place) for place in places]
        head = _COUNTS.pack(len(handles), len(table))
        pipe.send_bytes(b"".join((head, *table, file.getbuffer())))
        if handles:
            with _socket(pipe) as line:
                sendfds(line, handles)
    finally:
        if loose:
            os.close(handles[0])


def _copied(buffers: list[memoryview]) -> int:
    """The descriptor of a new file with the buffers one after another, each from a page on."""
    handle, memory = _new_file(sum(_pages(buffer) for buffer in buffers))
    at = 0
    for buffer in buffers:
        memory[at : at + buffer.nbytes] = buffer
        at += _pages(buffer)
    memory.close()
    return handle


def _pages(buffer: memoryview) -> int:
    """Bytes of the whole pages that the buffer fills."""
    return -(-buffer.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _places_of(
    buffers: list[memoryview], found: list[int | None]
) -> Iterator[tuple[int, int, int]]:
    """File number, offset and bytes of each buffer, in the order of `send`'s descriptors."""
    offset, number = 0, int(None in found)
    for buffer, handle in zip(buffers, found, strict=True):
        if handle is None:
            yield 0, offset, buffer.nbytes
            offset += _pages(buffer)
        else:
            yield number, 0, buffer.nbytes
            number += 1


def receive(pipe: Connection) -> bytes | tuple[bytes, list[mmap.mmap]]:
    """One message as it came: to be given to `value_of`. Raises EOFError at the end."""
    data = pipe.recv_bytes()
    num_files, num_arrays = _COUNTS.unpack_from(data)
    if not num_files:
        return data
    with _socket(pipe) as line:
        handles = recvfds(line, num_files)
    sizes = [0] * num_files
    for which, offset, nbytes in _places(data, num_arrays):
        sizes[which] = max(sizes[which], offset + nbytes)
    files = []
    try:
        for handle, size in zip(handles, sizes, strict=True):
            files.append(_mapped(handle, size))
    finally:
        for handle in handles:
            os.close(handle)
    return data, files


def value_of(message: bytes | tuple[bytes, list[mmap.mmap]]) -> Any:
    """The value that a message carries, its large arrays in the mapped memory."""
    data, files = message if isinstance(message, tuple) else (message, [])
    _, num_arrays = _COUNTS.unpack_from(data)
    places = _places(data, num_arrays)
    buffers = [memoryview(files[w])[start : start + nbytes] for w, start, nbytes in places]
    begin = _COUNTS.size + num_arrays * _PLACE.size
    return pickle.loads(memoryview(data)[begin:], buffers=buffers)


def _places(data: bytes, count: int) -> list[tuple[int, int, int]]:
    """File number, offset and bytes of each array."""
    return [_PLACE.unpack_from(data, _COUNTS.size + i * _PLACE.size) for i in range(count)]


def _socket(pipe: Connection) -> socket.socket:
    return socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
