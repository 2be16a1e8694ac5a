"""Shared memory that ranks may have left."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .waiting import wait_until

FOLDER = Path("/dev/shm")


def names_of_memory() -> set[str]:
    """Names of shared memory of ranks, those of tests in other processes included."""
    return {path.name for path in FOLDER.iterdir() if "oneflow" in path.name}


def check_no_memory_is_left(before: Collection[str]) -> None:
    """Raise SceneError for new names that stay though no living process maps them.

    Mapped memory is of a test beside this one. Memory that nobody maps may be so just now: memory
    that is being made, or removed, is waited for.
    """
    left = _abandoned() - set(before)

    def is_gone() -> bool:
        left.intersection_update(_abandoned())
        return not left

    wait_until(is_gone, lambda: f"left in {FOLDER}: {sorted(left)}")


def _abandoned() -> set[str]:
    names = names_of_memory()
    for process in Path("/proc").glob("[0-9]*") if names else ():
        with suppress(OSError):
            maps = (process / "maps").read_text(errors="replace")
            names = {name for name in names if f"{FOLDER}/{name}" not in maps}
    return names
