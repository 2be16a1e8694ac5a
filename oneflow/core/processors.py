"""The number of processors that this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def usable_processors() -> int:
    """Return how many processors the affinity and the CPU quota of the control groups leave.

    At least 1. A quota is rounded down: a group that uses more than it may is held back for the
    rest of each tenth of a second, all of its threads together.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
    count = os.cpu_count() or 1 if affinity is None else len(affinity(0))
    quota = cpu_quota()
    return count if quota is None else max(1, min(count, int(quota)))


def share_of_processors(processes: int) -> int:
    """Return the number of threads for each of `processes` that share the processors of this one.

    At least 1.
    """
    return max(1, usable_processors() // processes)


def cpu_quota(process: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> float | None:
    """Return the processors that the control groups of a process may use, or None for no limit.

    process: file with the groups, of version 1 or 2. root: where they are mounted.
    """
    try:
        lines = process.read_text().splitlines()
    except OSError:  # a system without control groups
        return None
    found = [quota for line in lines for quota in _quotas(line, root)]
    return min(found, default=None)


def _quotas(line: str, root: Path) -> Iterator[float]:
    """The quotas of a group and of those around it. line: number, controllers and path."""
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return
    top = root / controllers if controllers else root
    if controllers and not top.is_dir():
        top = root / "cpu"
    folder = top / path.strip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(top):
            break
        quota = _quota(group, is_unified=not controllers)
        if quota is not None:
            yield quota


def _quota(group: Path, *, is_unified: bool) -> float | None:
    try:
        if is_unified:
            allowed, period = (group / "cpu.max").read_text().split()
        else:
            allowed, period = ((group / f"cpu.cfs_{n}_us").read_text() for n in ("quota", "period"))
        return float(allowed) / float(period) if float(allowed) > 0 else None
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
