"""The files that a job leaves on this node, in a folder that its own processes write to.

Only plain files are read there: names are checked, and each folder on the way is opened without
following links, so that nothing outside can be read, even if files are swapped meanwhile.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from oneflow.core.errors import ProtocolError

FOLDER = "outputs"
MAX_NAMES = 10_000
MAX_DEPTH = 16
MAX_SAID_NAMES = 50
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # never waits for a pipe


def output_names(folder: Path) -> list[str]:
    """Names of the files in it, with / between folders, the first MAX_NAMES of them in order; no
    links, and nothing whose name begins with a dot or cannot be printed.
    """
    found: list[str] = []
    with suppress(OSError):  # none yet
        _collect(os.open(folder, _FOLDER_FLAGS), "", found)
    return sorted(found)


def _collect(at: int, before: str, found: list[str]) -> None:
    """Adds the names below an open folder, which is closed."""
    try:
        with os.scandir(at) as scanned:
            entries = sorted((e for e in scanned if _may_be_shown(e.name)), key=lambda e: e.name)
        for entry in entries:
            if len(found) >= MAX_NAMES:
                return
            if entry.is_file(follow_symlinks=False):
                found.append(before + entry.name)
            elif before.count("/") + 1 < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # gone, not ours to read, or a link by now
                    inner = os.open(entry.name, _FOLDER_FLAGS, dir_fd=at)
                    _collect(inner, f"{before}{entry.name}/", found)
    finally:
        os.close(at)


def _may_be_shown(name: str) -> bool:
    return not name.startswith(".") and name.isprintable()


def open_output(folder: Path, name: str) -> BinaryIO:
    """Open the output of that name, with or without its ending. Raises ProtocolError."""
    parts = name.split("/")
    if len(parts) <= MAX_DEPTH and all(part and _may_be_shown(part) for part in parts):
        for last in (parts[-1], f"{parts[-1]}.safetensors"):
            if (found := _opened(folder, [*parts[:-1], last])) is not None:
                return found
    names = output_names(folder)
    more = f" and {len(names) - MAX_SAID_NAMES} more" if len(names) > MAX_SAID_NAMES else ""
    there_are = ", ".join(names[:MAX_SAID_NAMES]) or "none"
    raise ProtocolError(f"there is none of that name; there are {there_are}{more}")


def _opened(folder: Path, parts: list[str]) -> BinaryIO | None:
    """None if there is no such file, or anything on the way to it is a link."""
    try:
        at = os.open(folder, _FOLDER_FLAGS)
    except OSError:
        return None
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER_FLAGS, dir_fd=at)
            os.close(at)
            at = inner
        file = os.open(parts[-1], _FILE_FLAGS, dir_fd=at)
    except OSError:
        return None
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        return None
    return os.fdopen(file, "rb")
