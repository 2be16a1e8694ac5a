"""Files that are read and written past the page cache, many random reads at once.

A disk gives its pace only to many reads under way at the same time. The kernel takes a whole list
of them in one call (io_submit, which needs O_DIRECT to return before they are done); where that
call is refused, as in some sandboxes, they are read one after the other.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from oneflow.core.errors import RowDiskFullError, RowStoreError

Array: TypeAlias = "np.ndarray[Any, Any]"

DEPTH = 256
"""Reads under way at once: fewer leave a disk idle, more change nothing."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CONTROL_WORDS = 8
_EVENT_WORDS = 4
_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


class _Calls(NamedTuple):
    """Numbers of the kernel's calls, which the C library has no functions for."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_CALLS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}


def aligned_bytes(nbytes: int) -> Array:
    """uint8[nbytes] of zeros that begin at a page, as reads past the page cache need them."""
    return np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)[:nbytes]


class DirectFile:
    """A file past the page cache where its file system can. Offsets, sizes and memory are multiples
    of the disk's blocks.

    Raises RowDiskFullError, OSError as the file system does.
    """

    def __init__(self, path: Path, block_nbytes: int, *, create: bool = False) -> None:
        self.path, self._block_nbytes, self.handle = path, block_nbytes, -1
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC if create else os.O_RDONLY
        direct = getattr(os, "O_DIRECT", 0)
        try:
            self.handle = os.open(path, flags | direct | os.O_CLOEXEC, 0o666)
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
            self.handle = os.open(path, flags | os.O_CLOEXEC, 0o666)
        else:
            self._try_block(aligned_bytes(block_nbytes), is_write=create)

    def _try_block(self, block: Array, *, is_write: bool) -> None:
        """Go through the page cache if blocks of that size cannot go past it."""
        try:
            if is_write:
                os.pwrite(self.handle, block.data, 0)
            else:
                os.preadv(self.handle, [block.data], 0)
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
            flags = fcntl.fcntl(self.handle, fcntl.F_GETFL)
            fcntl.fcntl(self.handle, fcntl.F_SETFL, flags & ~os.O_DIRECT)

    def write(self, offset: int, data: Array) -> None:
        """Write all bytes of `data` (uint8) at an offset."""
        done = 0
        while done < data.size:
            try:
                count = os.pwrite(self.handle, data[done:].data, offset + done)
                if count < min(self._block_nbytes, data.size - done):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                raise as_disk_error(error, self.path) from error
            done += count if done + count == data.size else count - count % self._block_nbytes

    def sync(self) -> None:
        """Wait until all writes are on the disk."""
        os.fsync(self.handle)

    def close(self) -> None:
        """Give back the handle; also done where the object goes."""
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1

    __del__ = close


def as_disk_error(error: OSError, path: Path) -> Exception:
    """The error to raise for one of the file system: ours for a full disk."""
    if error.errno not in FULL:
        return error
    return RowDiskFullError(
        f"the disk of {path} is full ({error.strerror}): rows changed since the last snapshot are "
        "in memory only; make room and save again"
    )


class BatchReader:
    """Many reads of one size at once."""

    def __init__(self, depth: int = DEPTH) -> None:
        self._depth = depth
        self._context = ctypes.c_uint64(0)
        self._calls = _CALLS.get(platform.machine())
        self._libc = ctypes.CDLL(None, use_errno=True)
        if self._calls and self._call("setup", depth, ctypes.byref(self._context)) < 0:
            self._calls = None
        self._events = np.zeros((depth, _EVENT_WORDS), np.int64)

    def read(self, handles: Array, offsets: Array, target: Array) -> None:
        """Fill the rows of `target` (uint8 (n, nbytes), aligned), each from an offset of a file.

        handles: int64[n], of open files.  offsets: int64[n].  Raises RowStoreError for a read that
        fails or comes short.
        """
        if self._calls is None:
            for handle, offset, row in zip(handles.tolist(), offsets.tolist(), target, strict=True):
                _checked(os.preadv(handle, [row.data], offset), target.shape[1])
            return
        count, nbytes = target.shape
        controls = np.zeros((count, _CONTROL_WORDS), np.int64)  # struct iocb of linux/aio_abi.h
        controls[:, 2] = handles << 32
        controls[:, 3] = target.ctypes.data + np.arange(count) * target.strides[0]
        controls[:, 4], controls[:, 5] = nbytes, offsets
        lines = controls.ctypes.data + np.arange(count) * controls.strides[0]
        sent = done = 0
        try:
            while done < count:
                room = min(self._depth - (sent - done), count - sent)
                if room:
                    first = ctypes.c_void_p(lines.ctypes.data + 8 * sent)
                    sent += self._positive("submit", ctypes.c_long(room), first)
                done += self._wait(nbytes)
        finally:
            while done < sent:  # the disk still writes into `target`
                done += self._wait(None)

    def _wait(self, nbytes: int | None) -> int:
        events = ctypes.c_void_p(self._events.ctypes.data)
        most = ctypes.c_long(self._depth)
        count = self._positive("getevents", ctypes.c_long(1), most, events, None)
        if nbytes is not None:
            wrong = self._events[:count, 2] != nbytes
            if wrong.any():
                _checked(int(self._events[:count, 2][wrong][0]), nbytes)
        return count

    def _positive(self, name: str, *args: object) -> int:
        while (count := self._call(name, self._context, *args)) < 0:
            if ctypes.get_errno() not in (errno.EINTR, errno.EAGAIN):
                raise RowStoreError(f"io_{name} failed: {os.strerror(ctypes.get_errno())}")
        return count

    def _call(self, name: str, *args: object) -> int:
        return int(self._libc.syscall(ctypes.c_long(getattr(self._calls, name)), *args))

    def close(self) -> None:
        """Give back the kernel's resources; also done where the object goes."""
        if self._calls is not None:
            self._call("destroy", self._context)
            self._calls = None

    __del__ = close


def _checked(result: int, nbytes: int) -> None:
    if result < 0:
        raise RowStoreError(f"a row could not be read: {os.strerror(-result)}")
    if result != nbytes:
        raise RowStoreError(
            f"a file of rows is torn: a read gave {result} bytes, not {nbytes}; load a snapshot"
        )
