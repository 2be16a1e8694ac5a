"""Folders and small files that only their owner may change, on machines that others use too."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from oneflow.core.errors import ConfigError


def make_state_dir(folder: Path, *parts: str) -> None:
    """Make the folder, which others may not write to, and in it the parts, which others may not
    even look into. Raises ConfigError if it is another user's, or if it holds something and others
    may write to it: its files could be theirs.

    One of root's is taken as it is: containers are given such, with rights of a group.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid not in (os.getuid(), 0):
            raise ConfigError(
                f"the state directory {folder} belongs to user {found.st_uid}, who could change "
                "what is kept there: name another, or give it to this user with chown"
            )
        if found.st_uid == os.getuid() and found.st_mode & 0o022:
            if any(folder.iterdir()):
                check_unwritten(folder)
            folder.chmod(stat.S_IMODE(found.st_mode) & ~0o022)
        for part in parts:
            _make_private(folder / part)
    except OSError as error:
        raise ConfigError(f"cannot use the state directory {folder}: {error.strerror}") from None


def check_unwritten(folder: Path) -> None:
    """Raises ConfigError for a folder of this user's in which others may have replaced something.
    One of root's is taken as it is by others, and one with the sticky bit by all.
    """
    try:
        found = folder.stat()
    except OSError as error:
        raise ConfigError(f"cannot look at {folder}: {error.strerror}") from None
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == os.getuid() and mode & 0o022 and not mode & stat.S_ISVTX:
        raise ConfigError(
            f"others may write to {folder} (mode {mode:04o}), so what is in it may be theirs; look "
            f"through it, then run: chmod go-w {folder}"
        )


def check_private(folder: Path) -> None:
    """Raises ConfigError for a folder that others than this user, or root, may look into, and
    FileNotFoundError if there is none.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot look at {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{folder} is no folder of this user's, so no socket in it is believed")
    if found.st_mode & 0o077:
        raise ConfigError(
            f"others may look into {folder} (mode {stat.S_IMODE(found.st_mode):04o}), so no socket "
            f"in it is believed; run: chmod 700 {folder}"
        )


def _make_private(folder: Path) -> None:
    """A link is followed if it is ours: an operator may keep large things on another disk."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid not in (os.getuid(), 0):
        raise ConfigError(f"{folder} is another user's: remove it")
    found = folder.stat()
    if found.st_uid == os.getuid() and found.st_mode & 0o077:
        folder.chmod(0o700)


def write_private(path: Path, data: str | bytes, mode: int = 0o600) -> None:
    """Whole or not at all, with the mode from the start; durable, and through no link. Raises
    ConfigError.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(partial, flags, mode), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder outlast a crash of the machine. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
