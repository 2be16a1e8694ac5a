"""Files that appear whole or not at all, and exact reads of parts of files."""

from __future__ import annotations

import contextlib
import math
import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from oneflow.core.errors import CheckpointError
from oneflow.core.metrics import METRICS

Array = np.ndarray[Any, Any]

_MANY_RUNS = 4096
_PAGE_NBYTES = 4096
_JOINED_NBYTES = 1 << 20
_ONE_READ_NBYTES = 1 << 30  # Linux reads at most 2 GiB at once


class PendingFile:
    """A file that gets its name only when it is complete and on the disk.

    Raises OSError as the file system does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        handle, self._beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        self.file: BinaryIO = os.fdopen(handle, "wb")

    def commit(self) -> int:
        """Makes it visible under its name, in place of an older one. Returns its size in bytes."""
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            nbytes = self.file.tell()
            self.file.close()
            os.chmod(self._beside, 0o666 & ~_umask())
            os.replace(self._beside, self.path)
        except BaseException:
            self.abort()
            raise
        return nbytes

    def abort(self) -> None:
        """Takes away what was written so far; the older file under the name stays."""
        with contextlib.suppress(OSError):  # it may try to write the rest to a full disk
            self.file.close()
        Path(self._beside).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder outlast a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Readable(Protocol):
    """Bytes that can be read from anywhere. where: for messages."""

    where: str
    nbytes: int

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fills `target`. Raises CheckpointError if there are not so many bytes."""

    def close(self) -> None:
        """No more reads."""


class OpenFile:
    """A regular file open for reading. follow: whether it may be a symbolic link.

    Raises CheckpointError for anything else, FileNotFoundError if there is none.
    """

    def __init__(self, path: Path, *, follow: bool = True) -> None:
        self.where = str(path)
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not keep us waiting
        if not follow and path.is_symlink():
            raise CheckpointError(f"{path} is a symbolic link; its file must be in the folder")
        self._handle = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
        found = os.fstat(self._handle)
        self.nbytes = found.st_size
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise CheckpointError(f"{path} is not a regular file")

    def read_into(self, offset: int, target: memoryview) -> None:
        METRICS.checkpoint("read", target.nbytes)
        done = 0
        while done < target.nbytes:
            piece = target[done : done + _ONE_READ_NBYTES]
            count = os.preadv(self._handle, [piece], offset + done)
            if count == 0:
                raise CheckpointError(
                    f"{self.where} ends at byte {offset + done}, {target.nbytes - done} bytes early"
                )
            done += count

    def close(self) -> None:
        os.close(self._handle)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Memory:
    """Bytes in memory as a `Readable`."""

    def __init__(self, data: bytes, where: str) -> None:
        METRICS.checkpoint("read", len(data))
        self.where = where
        self.nbytes = len(data)
        self._data = memoryview(data)

    def close(self) -> None:
        self._data = memoryview(b"")

    def read_into(self, offset: int, target: memoryview) -> None:
        piece = self._data[offset : offset + target.nbytes]
        if piece.nbytes != target.nbytes:
            raise CheckpointError(f"{self.where} has {self.nbytes} bytes, too few")
        target[:] = piece


def read_bytes(source: Readable, offset: int, count: int) -> bytes:
    """`count` bytes from `offset` on."""
    found = bytearray(count)
    source.read_into(offset, memoryview(found))
    return bytes(found)


def read_box(
    source: Readable,
    offset: int,
    shape: Sequence[int],
    wanted: Sequence[slice],
    target: Array,
) -> None:
    """Fills `target` with a part of an array that lies at `offset`, and reads no other byte.

    shape: of the whole array in the source, in C order.  wanted: of the part, one slice a dim.
    target: of the part's shape and the array's dtype, may be strided.
    Of very many short runs that share pages of the file, what lies between them is read as well:
    the system fetches whole pages anyway, and a call for each run would take far longer.
    """
    if not target.size:
        return
    split = target.ndim - _num_whole_dims(shape, target)
    strides = [math.prod(shape[d + 1 :]) * target.dtype.itemsize for d in range(len(shape))]
    base = offset + sum(s.start * n for s, n in zip(wanted, strides, strict=True))
    run_nbytes = math.prod(target.shape[split:]) * target.dtype.itemsize
    joins = 0
    if split and math.prod(target.shape[:split]) >= _MANY_RUNS:
        joins = int(strides[split - 1] - run_nbytes < _PAGE_NBYTES)
    for at in np.ndindex(target.shape[: split - joins]):
        index: Any = (*at, ...)  # the Ellipsis makes it a view of a 0-d array too
        start = base + sum(i * n for i, n in zip(at, strides, strict=False))
        if joins:
            _read_rows(source, start, strides[split - 1], target[index])
        else:
            source.read_into(start, _as_bytes(target[index]))


def _read_rows(source: Readable, start: int, stride: int, target: Array) -> None:
    """Fills the rows of `target`, contiguous in the source and `stride` bytes apart there."""
    row = math.prod(target.shape[1:]) * target.dtype.itemsize
    step = max(1, _JOINED_NBYTES // stride)
    tail = np.empty((1, *target.shape[1:]), target.dtype).strides[1:]
    for first in range(0, len(target), step):
        rows = target[first : first + step]
        nbytes = (len(rows) - 1) * stride + row
        found: Array = np.empty(nbytes // target.dtype.itemsize, target.dtype)
        source.read_into(start + first * stride, _as_bytes(found))
        spread = np.lib.stride_tricks.as_strided(found, rows.shape, (stride, *tail))
        np.copyto(rows, spread)


def _num_whole_dims(shape: Sequence[int], target: Array) -> int:
    """How many last dims make one contiguous run, both in the source and in the target."""
    count, run = 0, target.dtype.itemsize
    for dim in reversed(range(target.ndim)):
        if target.shape[dim] > 1 and target.strides[dim] != run:
            break
        count += 1
        run *= target.shape[dim]
        if target.shape[dim] != shape[dim]:
            break
    return count


def _as_bytes(run: Array) -> memoryview:
    flat: Any = run.reshape(-1).view(np.uint8)
    return memoryview(flat)
