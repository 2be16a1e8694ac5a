"""Processes of this machine, told from later ones of the same pid by their start."""

from __future__ import annotations

from pathlib import Path


def start_time(pid: int) -> int:
    """Clock ticks from boot to the start of a process; 0 if nothing of it runs any more: a zombie
    has ended, too.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])
