"""Bytes kept on disk by the digest of their sources: object code of kernels, plans.

A user that can write to the folder of a cache chooses the code that this program runs, so a folder
that is another user's, or that others may write, is not used at all. An entry is written whole or
not at all, by any number of processes at once; one that was damaged since is as good as none, and
is written anew. The size of a folder has a limit: the least recently used entry goes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from oneflow.core.log import get_logger

_log = get_logger(__name__)
_CHECK_NBYTES = 32
_PARTIAL = ".partial"
_ABANDONED_S = 3600.0  # a partial file this old: its writer was killed
_KEPT = 0.75  # of the limit, where something had to go


class DiskCache:
    """One folder of entries.

    folder: None keeps nothing. suffix: of the entries' names. limit_nbytes: of all of them.
    what: is kept there, for messages. variable: names another folder.
    """

    def __init__(
        self, folder: Path | None, suffix: str, limit_nbytes: int, what: str, variable: str
    ) -> None:
        self._suffix, self._limit = suffix, limit_nbytes
        self._folder = _private(folder, what, variable)
        self._room = 0
        """Bytes that may be written before the folder's size is looked at again."""

    @property
    def is_open(self) -> bool:
        """Whether entries are kept."""
        return self._folder is not None

    def get(self, digest: str) -> bytes | None:
        """The bytes of an entry; None if there is none, or a damaged one."""
        if self._folder is None:
            return None
        path = self._folder / f"{digest}{self._suffix}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        # Written whole or not at all, but a disk that was full or failing may have cut it since.
        entry, check = data[:-_CHECK_NBYTES], data[-_CHECK_NBYTES:]
        if hashlib.sha256(entry).digest() != check:
            return None
        with contextlib.suppress(OSError):  # another process has just removed it
            os.utime(path)
        return entry

    def put(self, digest: str, entry: bytes) -> None:
        """Keep an entry, in place of one that may be there."""
        if self._folder is None:
            return
        data = entry + hashlib.sha256(entry).digest()
        if len(data) > self._limit:
            return
        try:
            self._make_room(len(data))
            _write(self._folder, f"{digest}{self._suffix}", data)
        except OSError as error:  # a full disk: what was made is there, the next process makes it
            _log.info("%s%s is not kept: %s", digest, self._suffix, error)

    def decided(self, digest: str, make: Callable[[], bytes]) -> bytes:
        """The bytes of an entry that is made if there is none, by one process while others wait: a
        choice measured once holds for all of them."""
        found = self.get(digest)
        if found is not None:
            return found
        if self._folder is None:
            return make()
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            found = self.get(digest)
            if found is None:
                found = make()
                self.put(digest, found)
        finally:
            os.close(folder)
        return found

    def _make_room(self, nbytes: int) -> None:
        self._room -= nbytes
        if self._room >= 0 or self._folder is None:
            return
        used = _trimmed(self._folder, self._suffix, self._limit - nbytes)
        self._room = self._limit - nbytes - used


def _private(folder: Path | None, what: str, variable: str) -> Path | None:
    """The folder, made if need be; None if it cannot be written, or if others could write it."""
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.stat()
            is_ours = found.st_uid == os.getuid() and not found.st_mode & 0o022
            if is_ours and os.access(folder, os.W_OK):
                return folder
    except OSError as error:
        _log.info("the folder of %s cannot be used: %s", what, error)
    _log.info("no private folder for %s: name one in %s", what, variable)
    return None


def _write(folder: Path, name: str, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, suffix=_PARTIAL, delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.replace(file.name, folder / name)
        except OSError:
            os.unlink(file.name)
            raise


def _trimmed(folder: Path, suffix: str, limit_nbytes: int) -> int:
    """Bytes that a folder holds, after the oldest entries went if it held more than the limit."""
    entries = []
    for item in os.scandir(folder):
        try:
            found = item.stat(follow_symlinks=False)
        except OSError:  # another process has just removed it
            continue
        if item.name.endswith(suffix):
            entries.append((found.st_mtime, found.st_size, item.path))
        elif item.name.endswith(_PARTIAL) and found.st_mtime < time.time() - _ABANDONED_S:
            _remove(item.path)
    used = sum(size for _, size, _ in entries)
    if used > limit_nbytes:
        for _, size, path in sorted(entries):
            if used <= _KEPT * limit_nbytes:
                break
            _remove(path)
            used -= size
    return used


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # another process was faster
        os.unlink(path)
