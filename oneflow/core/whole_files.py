"""Files that appear under their names whole or not at all.

A file is written beside its name and renamed over it when it is complete. A rename replaces any
file that stands there, so `target_of` looks first: a symbolic link is followed, and a device, pipe,
socket or folder is refused before a byte is written (as root, /dev/null itself would be replaced).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import BinaryIO

from oneflow.core.errors import FileKindError

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
}
_MAX_PREFIX_NBYTES = 200  # of a name, which has at most 255 with what is put around it


def target_of(path: Path) -> Path:
    """The file that a write to `path` replaces or makes: behind symbolic links, if there are any.

    Raises FileKindError for anything but a regular file, OSError for links in a circle.
    """
    try:
        found = stat.S_IFMT(os.stat(path).st_mode)
    except FileNotFoundError:  # nothing there, or a link to nothing: the link's target is made
        return Path(os.path.realpath(path))
    if found == stat.S_IFREG:
        return Path(os.path.realpath(path))
    kind = _KINDS.get(found, "something else")
    advice = "name a file in it" if found == stat.S_IFDIR else "open it and pass the open file"
    raise FileKindError(
        f"{path} is {kind}, and only a regular file can be replaced by a new one; {advice}"
    )


class PendingFile:
    """A file that gets its name only when it is complete and on the disk.

    An older file keeps its permissions. As a context it gives the file to write to, and commits.
    Raises FileKindError if something else than a file has the name, OSError as the file system
    does.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._target = path, target_of(path)
        self._mode = _mode_of(self._target)
        prefix = os.fsdecode(os.fsencode(self._target.name)[:_MAX_PREFIX_NBYTES])
        self._beside = self._target.with_name(f".{prefix}.{secrets.token_hex(8)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        mode = 0o666 if self._mode is None else self._mode & 0o600
        try:
            self.file: BinaryIO = os.fdopen(os.open(self._beside, flags, mode), "wb")
        except FileNotFoundError as error:
            missing = f"Parent directory {self._target.parent} does not exist"
            raise FileNotFoundError(error.errno, missing, str(path)) from None

    def __enter__(self) -> BinaryIO:
        return self.file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.abort() if kind is not None else self.commit()

    def commit(self) -> int:
        """Makes it visible under its name, in place of an older one. Returns its size in bytes."""
        try:
            self.file.flush()
            if self._mode is not None:
                os.fchmod(self.file.fileno(), self._mode)
            os.fsync(self.file.fileno())
            nbytes = self.file.tell()
            self.file.close()
            os.replace(self._beside, self._target)
        except BaseException:
            self.abort()
            raise
        return nbytes

    def abort(self) -> None:
        """Remove the unfinished file; the older file under the name stays."""
        with contextlib.suppress(OSError):  # it may try to write the rest to a full disk
            self.file.close()
        self._beside.unlink(missing_ok=True)


def _mode_of(path: Path) -> int | None:
    """The permissions of a file; None if there is none."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file, there whole or not at all, in place of an older one. Raises as
    `PendingFile` does.
    """
    with PendingFile(path) as file:
        file.write(data)
