"""Jobs that the launcher starts, or that are started by hand, and their possible leftovers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from oneflow.scheduler.ports import free_port

from .memory import check_no_memory_is_left, names_of_memory
from .waiting import WAIT_S, wait_until

BUSY = re.compile(
    r"^.*Z W .*(was frozen, or had no CPU|sent no heartbeat for|is back after).*\n", re.MULTILINE
)
QUICK = {"ONEFLOW_HEARTBEAT_SECONDS": "0.2"}  # who says nothing for 2 s is lost
LAUNCH = ["-m", "oneflow.distributed.launch", "--nproc_per_node", "2", "--grace-period", "1"]


def without_pauses(stderr: str) -> str:
    """Return stderr without the remarks that ranks had no CPU: on a busy machine they are true, and
    about nothing that a test has done.
    """
    return BUSY.sub("", stderr)


@dataclass
class Ended:
    """The end of a run."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def line(self) -> str:
        """The cause line, which must be the only one and the last."""
        found = [text for text in self.err.splitlines() if text.startswith("oneflow: job=")]
        assert len(found) == 1 and self.err.splitlines()[-1] == found[0], self.err
        return found[0]

    def by_rank(self, rank: int) -> str:
        """Text that a rank wrote to stderr."""
        pattern = re.compile(rf"^[^:\s]+:{rank}: ?(.*)$")
        found = [pattern.match(text) for text in self.err.splitlines()]
        return "\n".join(match.group(1) for match in found if match)


class Jobs:
    """Starts processes, and knows their possible leftovers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.mark = uuid.uuid4().hex
        self.memory = names_of_memory()
        self.running: list[subprocess.Popen[str]] = []

    def env(self, **more: str) -> dict[str, str]:
        ours = ("ONEFLOW_", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        nets = {"ONEFLOW_HEARTBEAT_SECONDS": "1", "ONEFLOW_TIMEOUT_SECONDS": "120"}
        marked = {"FAILURE_TEST": self.mark, "TMPDIR": str(self.temporary)}
        return kept | {"OMP_NUM_THREADS": "1"} | nets | marked | more

    def start(self, *command: str, **more: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=self.env(**more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.running.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> Ended:
        started = time.monotonic()
        out, err = process.communicate(timeout=WAIT_S)
        seconds = time.monotonic() - started
        return Ended(process.returncode, out, without_pauses(err), seconds)

    def launch(self, *script: str, flags: tuple[str, ...] = (), **more: str) -> Ended:
        """A job of two ranks, started and waited for."""
        process = self.start(*LAUNCH, "--standalone", *flags, *script, **more)
        return self.finish(process)

    def by_hand(self, *script: str, **more: str) -> list[subprocess.Popen[str]]:
        """Two ranks as two terminals would start them."""
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        world["ONEFLOW_RDZV_TIMEOUT_SECONDS"] = "120"
        return [
            self.start(*script, **world, RANK=str(r), LOCAL_RANK=str(r), **more) for r in (0, 1)
        ]

    def wait_here(self) -> None:
        """Until both ranks have done a few steps."""
        wait_until(self._are_here)

    def _are_here(self) -> bool:
        if all((self.folder / f"{rank}.here").exists() for rank in (0, 1)):
            return True
        if any(process.poll() is not None for process in self.running):
            pytest.fail("\n".join(p.communicate(timeout=WAIT_S)[1] for p in self.running))
        return False

    def pids(self, rank: str | None = None) -> list[int]:
        """Living processes of the jobs, or of one rank of them."""
        mark = f"FAILURE_TEST={self.mark}"
        found = [p for p in Path("/proc").glob("[0-9]*") if mark in environment(p)]
        return [int(p.name) for p in found if rank is None or is_rank(p, rank)]

    def check_nothing_is_left(self) -> None:
        assert self.pids() == []
        assert list(self.temporary.iterdir()) == []
        check_no_memory_is_left(self.memory)


def is_rank(process: Path, rank: str) -> bool:
    """Whether it is that rank: by its name if it was forked, else by its environment."""
    try:
        name = (process / "comm").read_text().strip()
        is_forked = b"--fork" in (process / "cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return False
    return name == f"rank-{rank}" if is_forked else f"RANK={rank}" in environment(process)


def environment(process: Path) -> set[str]:
    """Environment of a process; empty for one that is gone, a zombie or somebody else's."""
    try:
        return set((process / "environ").read_bytes().decode(errors="replace").split("\0"))
    except OSError:
        return set()


@contextmanager
def running_jobs(folder: Path) -> Iterator[Jobs]:
    """Checks that all that is started has ended afterwards, and has left nothing."""
    started = Jobs(folder)
    yield started
    for process in started.running:
        if process.poll() is None:
            process.kill()
            process.communicate()
    wait_until(lambda: not started.pids())
    started.check_nothing_is_left()
