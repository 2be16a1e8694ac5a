"""Ranks that exited 0, as the launcher tells the ranks of its machine: an empty file for each.

A rank that ends before it has joined is known to nobody else, and the others would wait for it
until the deadline.
"""

from __future__ import annotations

import os
from pathlib import Path


def note_exited(folder: Path, rank: int) -> None:
    """Says that `rank` exited 0. Raises OSError if the file cannot be made."""
    (folder / str(rank)).touch()


def exited_ranks(folder: Path | None) -> frozenset[int]:
    """Ranks that have exited 0; none without a launcher, whose `folder` goes away with it."""
    if folder is None:
        return frozenset()
    try:
        return frozenset(int(name) for name in os.listdir(folder) if name.isdecimal())
    except FileNotFoundError:
        return frozenset()


def exited_early(rank: int, needed_by: int) -> str:
    """Return the words of `needed_by`, which waits for the others to join, about `rank`."""
    return f"rank {rank} exited 0 before it joined: rank {needed_by} needs it"
