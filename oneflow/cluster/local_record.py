"""The record of the cluster that `oneflow cluster up` started on this machine: a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oneflow.core.errors import ConfigError
from oneflow.core.folders import write_private
from oneflow.core.processes import is_stopped, start_time


@dataclass(frozen=True)
class Process:
    """started: in clock ticks since boot, which tells it from a later one with the same pid."""

    name: str  # scheduler, or the device of a daemon
    pid: int
    started: int

    @property
    def is_alive(self) -> bool:
        return self.started > 0 and start_time(self.pid) == self.started

    @property
    def is_stopped(self) -> bool:
        """Whether it lives but was stopped by a signal: it will not answer."""
        return self.is_alive and is_stopped(self.pid)


@dataclass(frozen=True)
class LocalCluster:
    """The local cluster as it was started.

    address: of the scheduler. allow_scripts, ui: as it was started. ray: address of the Ray cluster
    that holds `num_remote` daemons, or "". tls: folder of certificates, or "". scheduler_flags,
    daemon_flags: more of their command lines.
    """

    address: str
    processes: tuple[Process, ...]
    allow_scripts: bool = False
    ui: bool = False
    ray: str = ""
    num_remote: int = 0
    tls: str = ""
    scheduler_flags: tuple[str, ...] = ()
    daemon_flags: tuple[str, ...] = ()

    @property
    def num_daemons(self) -> int:
        return len(self.daemons) + self.num_remote

    @property
    def scheduler(self) -> Process:
        return next(p for p in self.processes if p.name == "scheduler")

    @property
    def daemons(self) -> tuple[Process, ...]:
        return tuple(p for p in self.processes if p.name != "scheduler")

    @property
    def is_whole(self) -> bool:
        return all(process.is_alive for process in self.processes)


def folder(state: Path) -> Path:
    """Return the folder in which the local cluster keeps its state."""
    return state / "local"


def read_record(state: Path) -> LocalCluster | None:
    """None if no local cluster was started, or it was taken down.

    Raises ConfigError if the file is damaged.
    """
    path = _path(state)
    try:
        found: Any = json.loads(path.read_text())
        processes = tuple(Process(**process) for process in found.pop("processes"))
        for name in ("scheduler_flags", "daemon_flags"):
            found[name] = tuple(map(str, found.get(name, ())))
        return LocalCluster(processes=processes, **found)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); end its processes and remove it") from None


def write_record(state: Path, record: LocalCluster) -> None:
    """Whole or not at all, for this user only."""
    write_private(_path(state), json.dumps(asdict(record)))


def remove_record(state: Path) -> None:
    _path(state).unlink(missing_ok=True)


def process_of(name: str, pid: int) -> Process:
    """A process that was just started."""
    return Process(name, pid, start_time(pid))


def _path(state: Path) -> Path:
    return folder(state) / "cluster.json"
