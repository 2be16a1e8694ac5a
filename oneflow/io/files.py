"""Paths and open files that users name, and exact reads of parts of files."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Protocol, TypeAlias, cast

from oneflow.core.errors import CheckpointError
from oneflow.core.metrics import METRICS

AnyPath: TypeAlias = "str | os.PathLike[str]"
Target: TypeAlias = "AnyPath | IO[bytes]"
"""A path, or an open binary file."""

_ONE_READ_NBYTES = 1 << 30  # Linux reads at most 2 GiB at once


def as_open(target: Target) -> IO[bytes] | None:
    """The open file that `target` is; None if it is a path."""
    is_file = hasattr(target, "write") or hasattr(target, "read")
    return cast("IO[bytes]", target) if is_file else None


def as_path(target: Target) -> Path:
    """Return `target` as a path. Raises TypeError for an object that is none."""
    return Path(os.fspath(cast("AnyPath", target)))


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

    def read_into(self, offset: int, target: memoryview, is_counted: bool = True) -> None:
        """Fill `target` from an offset. is_counted: among the bytes read of checkpoints; bytes that
        are only verified are not.
        """
        if is_counted:
            METRICS.checkpoint_nbytes["read"] += target.nbytes
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

    def __exit__(self, *_: object) -> None:
        self.close()


class Memory:
    """Bytes in memory as a `Readable`."""

    def __init__(self, data: bytes, where: str) -> None:
        METRICS.checkpoint_nbytes["read"] += len(data)
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


class Verified:
    """A file whose bytes are read to be verified, and not counted."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self.where, self.nbytes = file.where, file.nbytes

    def read_into(self, offset: int, target: memoryview) -> None:
        self._file.read_into(offset, target, is_counted=False)

    def close(self) -> None:
        self._file.close()


def read_bytes(source: Readable, offset: int, count: int) -> bytes:
    """`count` bytes from `offset` on."""
    found = bytearray(count)
    source.read_into(offset, memoryview(found))
    return bytes(found)
