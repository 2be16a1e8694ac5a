"""One scheduler per state directory: a locked file that names its holder.

The lock is the kernel's, so it goes with its process: a file that a dead one left is no obstacle.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from oneflow.core.errors import ConfigError
from oneflow.core.folders import make_state_dir

LOCK_FILE = "scheduler.lock"


class StateLock:
    """Held from `take` to `release`."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / LOCK_FILE
        self._fd = -1

    def take(self) -> None:
        """Raises ConfigError that names the holder."""
        try:
            make_state_dir(self._path.parent, "jobs", "blobs")
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(fd, 100, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise ConfigError(
                f"the state directory {self._path.parent} is in use by another scheduler"
                f"{_describe(holder)}; stop that one or name another state directory"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """The file stays: to remove it would let two in."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def _describe(holder: str) -> str:
    if not holder.isdecimal():
        return ""
    try:
        words = Path(f"/proc/{holder}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f", process {holder}"
    return f", process {holder} ({' '.join(word for word in words if word)[:80]})"
