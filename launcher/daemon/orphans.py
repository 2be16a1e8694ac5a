"""The leftovers of a daemon that was killed: found by name, and swept by the next one; and of a
rank, which may leave named shared memory.

All that a daemon makes outside of its state folder carries its pid and start time in its name, so
that nobody mistakes a living daemon's things for those of a dead one whose pid came again.

Nothing ends shared memory in /dev/shm with its processes, and its name tells nothing about its
maker, so its owner is found by looking which process maps it while the rank lives. Only memory that
a process of the rank was seen to map, and nobody maps any more, is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from oneflow.core.processes import is_alive, own_name, parse_name
from oneflow.launcher.daemon import cgroups

MARK = "ONEFLOW_DAEMON_MARK"  # in the environment of every process of a rank

SHARED_MEMORY = Path("/dev/shm")


def sweep() -> tuple[int, int, int]:
    """End and remove the leftovers of dead daemons: numbers of processes, control groups, folders
    that there were.
    """
    groups = cgroups.sweep(cgroups.find_hierarchies())
    return sweep_processes(), groups, sweep_temp_dirs()


def make_temp_dir() -> Path:
    """Make a folder for the files that a rank leaves in its TMPDIR; short, for sockets have short
    names.
    """
    return Path(tempfile.mkdtemp(prefix=own_name("oneflow-job", "")))


def sweep_temp_dirs() -> int:
    """Removes those of daemons that are no more; how many they were."""
    count = 0
    for entry in os.scandir(tempfile.gettempdir()):
        owner = parse_name("oneflow-job", entry.name)
        is_ours = owner is not None and entry.stat(follow_symlinks=False).st_uid == os.getuid()
        if owner is not None and is_ours and not is_alive(*owner):
            shutil.rmtree(entry.path, ignore_errors=True)
            count += 1
    return count


def sweep_processes() -> int:
    """Kills ranks' processes whose daemon is no more; how many they were."""
    count = 0
    for pid, mark in _marks():
        owner = parse_name(MARK, f"{MARK}-{mark}-")
        if owner is None or is_alive(*owner):
            continue
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def _marks() -> list[tuple[int, str]]:
    """(pid, mark) of every process that carries one."""
    found = []
    start = f"{MARK}=".encode()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            environ = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:  # gone, or not ours
            continue
        for entry in environ.split(b"\0"):
            if entry.startswith(start):
                found.append((int(name), entry.removeprefix(start).decode(errors="replace")))
    return found


class SharedMemory:
    """The shared memory that the processes of one rank use."""

    def __init__(self, folder: Path = SHARED_MEMORY) -> None:
        self._folder = folder
        self._others = set(self._names())  # there before the rank began
        self._ours: dict[str, int] = {}  # name -> inode

    def look(self, find: Callable[[], Iterable[int]]) -> None:
        """Finds out about names that are new, for which it asks for the rank's processes."""
        new = {name: inode for name, inode in self._names().items() if self._is_new(name, inode)}
        if not new:
            return
        for pid in find():
            for name in _mapped(pid, self._folder) & new.keys():
                self._ours[name] = new[name]

    def remove(self) -> list[str]:
        """Remove the memory that nobody uses any more; return the names."""
        there = self._names()
        ours = {name for name, inode in self._ours.items() if there.get(name) == inode}
        if not ours:
            return []
        for entry in os.listdir("/proc"):
            if entry.isdecimal():
                ours -= _mapped(int(entry), self._folder)
        for name in ours:
            with suppress(OSError):
                (self._folder / name).unlink()
        return sorted(ours)

    def _is_new(self, name: str, inode: int) -> bool:
        return name not in self._others and self._ours.get(name) != inode

    def _names(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with suppress(OSError):
            for entry in os.scandir(self._folder):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                        found[entry.name] = entry.inode()
        return found


def _mapped(pid: int, folder: Path) -> set[str]:
    """Names in the folder that a process maps."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="surrogateescape")
    except OSError:
        return set()
    start = f"{folder}/"
    paths = (line[line.find(start) :] for line in text.splitlines() if start in line)
    return {path.removeprefix(start) for path in paths}
