"""Processes of this machine, told from later ones of the same pid by their start."""

from __future__ import annotations

import os
import re
from pathlib import Path


def stat_fields(pid: int, tid: int = 0) -> list[str]:
    """The fields of /proc/<pid>/stat, or of one thread's, from its state (the third) on; [] if it
    is gone.
    """
    folder = f"/proc/{pid}/task/{tid}" if tid else f"/proc/{pid}"
    try:
        text = Path(folder, "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name in brackets may hold anything


def start_time(pid: int) -> int:
    """Clock ticks from boot to the start of a process; 0 if nothing of it runs any more: a zombie
    has ended, too.
    """
    fields = stat_fields(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else 0


def is_alive(pid: int, started: int) -> bool:
    """Whether the process of that pid that began at `started` still runs."""
    return started != 0 and start_time(pid) == started


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal, as SIGSTOP does."""
    return stat_fields(pid)[:1] == ["T"]


def own_mark() -> str:
    """`<pid>-<start time>` of this process."""
    return f"{os.getpid()}-{start_time(os.getpid())}"


def own_name(prefix: str, suffix: str) -> str:
    """`prefix-<pid>-<start time>-suffix` of this process."""
    return f"{prefix}-{own_mark()}-{suffix}"


def parse_name(prefix: str, name: str) -> tuple[int, int] | None:
    """(pid, start time) of a name that `own_name` made; None for any other."""
    match = re.match(rf"{re.escape(prefix)}-(\d+)-(\d+)-", name)
    return (int(match[1]), int(match[2])) if match else None
