"""The right to write a folder of rows: one process has it, and those that only read ask nobody.

The kernel gives a lock back when its process ends, however it ends. A fork would keep it beyond
that, so forked processes let go of it at once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
import weakref
from pathlib import Path

from oneflow.core.errors import RowsInUseError, RowStoreError
from oneflow.one_embedding.store.direct_file import FULL, as_disk_error

_NAME = "lock"
_MOST_NBYTES = 512
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """The right to write a folder, which is made if there is none.

    Raises RowsInUseError, naming process and host, while another one has it; RowStoreError where no
    folder can be or none that this process may write.
    """

    def __init__(self, folder: Path) -> None:
        self._handle = -1
        path = folder / _NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            is_open = self._handle >= 0
            self.release()
            if error.errno in FULL:
                raise as_disk_error(error, path) from error
            if not is_open or error.errno not in _TAKEN:
                raise RowStoreError(
                    f"{folder} cannot be a folder of rows ({error.strerror}); give a "
                    "persistent_path that is a folder in which this process may write, or none for "
                    "a temporary one"
                ) from error
            raise RowsInUseError(
                f"{folder} is in use by another run, {_owner(path)}; stop it, give another "
                "persistent_path, or open the store read-only"
            ) from None
        _HELD.add(self)
        self._sign()

    def _sign(self) -> None:
        """Sign the lock; a disk that has no room for that is no reason not to read rows."""
        text = f"process {os.getpid()} on {socket.gethostname()} since {time.ctime()}"
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, text.encode()[:_MOST_NBYTES], 0)

    def release(self) -> None:
        """Let others have the folder; also done where the object goes."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    __del__ = release


def _owner(path: Path) -> str:
    """Name the lock's owner as signed, which happens a moment after taking it."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_NBYTES).decode(errors="replace")
    except OSError:
        text = ""
    return text or "which has not said who it is"


def _let_go() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_let_go)
