"""Named shared memory that a rank leaves in /dev/shm: nothing ends it with its processes.

A name says nothing about who made it, so whose it is is found by looking who maps it while the rank
lives. Only what a process of the rank was seen to map, and nobody maps any more, is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")


class SharedMemory:
    """The shared memory that the processes of one rank use."""

    def __init__(self, folder: Path = FOLDER) -> None:
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
        """Removes what nobody uses any more; the names."""
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
