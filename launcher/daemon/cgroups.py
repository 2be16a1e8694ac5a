"""A control group for each worker process, where this user may make one.

It finds every process of a rank, ends them in one stroke, tells of memory, and bounds memory and
the number of processes. Where none can be made, the tree of processes below the daemon has to do
(processes.py) and memory is not bounded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from oneflow.core.processes import is_alive, own_name, parse_name

MOUNTS = Path("/proc/self/mountinfo")
OWN = Path("/proc/self/cgroup")
CPU_PERIOD_US, MIN_QUOTA_US = 100_000, 1000  # as the kernel has them
NO_LIMIT_NBYTES = 1 << 60  # version 1 has a number for "no limit": near 2^63, by the page size


@dataclass(frozen=True)
class Hierarchies:
    """Folders in which this process may make groups. unified: of version 2; the others of
    version 1. None: not there or not ours to write to.
    """

    unified: Path | None = None
    memory: Path | None = None
    pids: Path | None = None

    @property
    def folders(self) -> list[Path]:
        return [path for path in (self.unified, self.memory, self.pids) if path is not None]


@dataclass
class Group:
    """One worker's groups. A group of version 2 may bound memory and processes as well, if its
    parent lets it.
    """

    hierarchies: Hierarchies
    name: str
    entries: list[int] = field(default_factory=list)  # open cgroup.procs, for the child to enter

    def enter(self) -> None:
        """Enter the group in the child between fork and exec: no imports, no locks."""
        for entry in self.entries:
            os.write(entry, b"0")

    def take(self, pid: int) -> None:
        """Puts a process of ours into the group. Raises OSError."""
        for entry in self.entries:
            os.write(entry, str(pid).encode())

    def entered(self) -> Group:
        """The same group, for one more child to enter. Raises OSError if it is gone."""
        twin = Group(self.hierarchies, self.name)
        for base in self.hierarchies.folders:
            path = base / self.name / "cgroup.procs"
            twin.entries.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        return twin

    def close_entries(self) -> None:
        for entry in self.entries:
            os.close(entry)
        self.entries.clear()

    @property
    def can_find(self) -> bool:
        return self.hierarchies.unified is not None

    @property
    def bounds_pids(self) -> bool:
        """Whether the number of its processes is bounded by the kernel."""
        return self._has("pids.max")

    @property
    def bounds_memory(self) -> bool:
        return self._has("memory.max", "memory.limit_in_bytes")

    def bound(self, cpus: float, memory_nbytes: int) -> list[str]:
        """Bound it to so many processors, and to so much memory if it may not have less already; 0:
        no bound. Return those of "processors" and "memory" that the kernel does not bound here.
        """
        missing = []
        quota = max(round(cpus * CPU_PERIOD_US), MIN_QUOTA_US)
        if cpus and not self._write(f"{quota} {CPU_PERIOD_US}", "cpu.max"):
            missing.append("processors")
        limit = self._number("memory.max", "memory.limit_in_bytes")
        is_less = limit is not None and limit <= memory_nbytes
        if memory_nbytes and not is_less:
            self._write("0", "memory.swap.max")
            if not self._write(str(memory_nbytes), "memory.max", "memory.limit_in_bytes"):
                missing.append("memory")
        return missing

    def _write(self, value: str, *names: str) -> bool:
        """Whether the kernel took the value in any of these files."""
        is_written = False
        for path in (base / self.name / n for base in self.hierarchies.folders for n in names):
            with suppress(OSError):
                if path.exists():
                    path.write_text(value)
                    is_written = True
        return is_written

    def _has(self, *names: str) -> bool:
        folders = [base / self.name for base in self.hierarchies.folders]
        return any((folder / name).exists() for folder in folders for name in names)

    def pids(self) -> list[int]:
        """Living processes in it; only if `can_find`."""
        if self.hierarchies.unified is None:
            return []
        found: list[int] = []
        for folder in _below(self.hierarchies.unified / self.name):
            with suppress(OSError):
                found += map(int, (folder / "cgroup.procs").read_text().split())
        return found

    def kill(self) -> None:
        """SIGKILL to all of it in one stroke, where the kernel can do that."""
        if self.hierarchies.unified is not None:
            with suppress(OSError):
                (self.hierarchies.unified / self.name / "cgroup.kill").write_text("1")

    def num_oom_kills(self) -> int | None:
        """Count how often the kernel killed in the group for memory; None where it does
        not tell.
        """
        places = [(self.hierarchies.unified, "memory.events")]
        places.append((self.hierarchies.memory, "memory.oom_control"))
        for base, name in places:
            count = _count(base / self.name / name, "oom_kill ") if base else None
            if count is not None:
                return count
        return None

    def memory_words(self) -> str:
        """Say how much memory was used at most, and how much is allowed, or else the host has; ""
        where the kernel does not tell.
        """
        used = self._number("memory.peak", "memory.max_usage_in_bytes")
        if used is None:
            return ""
        limit = self._number("memory.max", "memory.limit_in_bytes")
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if limit is None or limit >= NO_LIMIT_NBYTES:
            words = f"without a limit of its own; the host has {host >> 20} MiB"
        else:
            words = f"{limit >> 20} MiB are allowed"
        return f"at most {used >> 20} MiB were used, {words}"

    def _number(self, *names: str) -> int | None:
        for base in self.hierarchies.folders:
            for name in names:
                with suppress(OSError, ValueError):  # "max" is no number: not bounded
                    return int((base / self.name / name).read_text())
        return None

    def remove(self) -> bool:
        """False if something still lives in it."""
        self.close_entries()
        return all([_remove(base / self.name) for base in self.hierarchies.folders])


def find_hierarchies() -> Hierarchies:
    """Find the control groups that this process may use; cheap, called once."""
    own = _own_paths()
    found: dict[str, Path] = {}
    for kind, mount, controllers in _mounts():
        names = ["unified"] if kind == "cgroup2" else [c for c in controllers]
        for name in names:
            path = own.get("" if name == "unified" else name)
            if name in ("unified", "memory", "pids") and path is not None:
                folder = mount / path.lstrip("/")
                if _can_make_groups(folder):
                    found[name] = folder
    return Hierarchies(found.get("unified"), found.get("memory"), found.get("pids"))


def make_group(
    hierarchies: Hierarchies, number: int, max_pids: int, memory_nbytes: int
) -> Group | None:
    """A group for one worker; None if this user cannot make any."""
    if not hierarchies.folders:
        return None
    group = Group(hierarchies, own_name("oneflow", str(number)))
    for base in hierarchies.folders:
        folder = base / group.name
        try:
            folder.mkdir(exist_ok=True)
            _limit(folder, max_pids, memory_nbytes)
            group.entries.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            group.remove()
            return None
    return group


def sweep(hierarchies: Hierarchies) -> int:
    """Ends and removes groups of daemons that are no more; how many they were."""
    count = 0
    for base in hierarchies.folders:
        for folder in _subfolders(base):
            owner = parse_name("oneflow", folder.name)
            if owner is None or is_alive(*owner):
                continue
            group = Group(Hierarchies(unified=base), folder.name)
            group.kill()
            count += _remove(folder)
    return count


def _limit(folder: Path, max_pids: int, memory_nbytes: int) -> None:
    """Whichever of these files there are."""
    wanted = {"pids.max": str(max_pids)}
    if memory_nbytes:
        wanted |= dict.fromkeys(("memory.max", "memory.limit_in_bytes"), str(memory_nbytes))
        wanted["memory.swap.max"] = "0"
        wanted["memory.memsw.limit_in_bytes"] = str(memory_nbytes)
    for name, value in wanted.items():
        with suppress(OSError):
            if (folder / name).exists():
                (folder / name).write_text(value)


def _can_make_groups(folder: Path) -> bool:
    probe = folder / own_name("oneflow", "probe")
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def _own_paths() -> dict[str, str]:
    """Controller ("" for version 2) -> path of our own group."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for name in controllers.split(","):
                found[name] = path
    return found


def _mounts() -> Iterable[tuple[str, Path, list[str]]]:
    """(kind, where, options) of each mounted hierarchy."""
    with suppress(OSError):
        for line in MOUNTS.read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            kind, _, options = rest.split(" ", 2)
            if kind in ("cgroup", "cgroup2"):
                yield kind, Path(fields.split(" ")[4]), options.split(",")


def _below(folder: Path) -> Iterable[Path]:
    yield folder
    for inner in _subfolders(folder):
        yield from _below(inner)


def _subfolders(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return []


def _remove(folder: Path) -> bool:
    for inner in _subfolders(folder):
        _remove(inner)
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _count(path: Path, key: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), None)
