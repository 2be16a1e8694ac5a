"""Daemons in processes of their own, and what tests ask of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oneflow.protos import cluster_pb2 as pb

from .fake_scheduler import FakeScheduler

PROGRAM = str(Path(__file__).with_name("daemon_program.py"))
QUICK = {"shutdown_grace_s": 2.0, "noted_s": 0.5, "leftover_grace_s": 0.3, "rejoin_s": 0.2}


class Running:
    """A daemon and its scheduler. settings: of DaemonSettings; None: as it is by default."""

    def __init__(
        self,
        scheduler: FakeScheduler,
        folder: Path,
        more_env: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.scheduler, self.state = scheduler, folder / "state"
        given = {
            "device": "cpu:0",
            "node": "n1",
            "scheduler": f"127.0.0.1:{scheduler.port}",
            "state_dir": str(self.state),
            "warm": False,
            "allow_scripts": True,
            "times": QUICK,
            "heartbeat_s": 0.2,
            "suspect_s": 0.6,
            "act_s": 2.0,
        } | settings
        given = {name: value for name, value in given.items() if value is not None}
        env = {k: v for k, v in os.environ.items() if not k.startswith("ONEFLOW_")}
        env |= {"TMPDIR": str(folder / "tmp"), "ONEFLOW_LOG_LEVEL": "INFO"}
        env |= more_env or {}
        (folder / "tmp").mkdir(exist_ok=True)
        self.temp = folder / "tmp"
        self.errors = folder / f"daemon-{given['device']}.stderr"
        with open(self.errors, "ab") as errors:
            argv = [sys.executable, PROGRAM, json.dumps(given)]
            self.process = subprocess.Popen(argv, env=env, stdout=errors, stderr=errors)

    def said(self) -> str:
        return self.errors.read_text()

    def told(self, pattern: str) -> str:
        """What it said, as far as the group of the pattern."""
        until(lambda: re.search(pattern, self.said()) is not None)
        match = re.search(pattern, self.said())
        assert match is not None
        return match[1]

    def has_group_with(self, name: str) -> bool:
        """Whether a rank's control group has this limit."""
        return any(Path("/sys/fs/cgroup").rglob(f"oneflow-{self.process.pid}-*/{name}"))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@contextmanager
def fake_scheduler() -> Iterator[FakeScheduler]:
    found = FakeScheduler(token="secret")
    found.start()
    try:
        yield found
    finally:
        found.stop()


@contextmanager
def daemons(scheduler: FakeScheduler, folder: Path) -> Iterator[Callable[..., Running]]:
    """Gives what starts one, and returns when the scheduler has heard of it."""
    started: list[Running] = []

    def start_one(**settings: Any) -> Running:
        after = len(scheduler.heard)
        found = Running(scheduler, folder, **({"token": "secret"} | settings))
        started.append(found)
        scheduler.wait("hello", after=after)
        scheduler.wait("beat", after=after)
        return found

    try:
        yield start_one
    finally:
        for found in started:
            found.end()
            print(found.said())


def script(text: str, **more: Any) -> pb.JobSpec:
    """A job that runs Python text."""
    return pb.JobSpec(argv=["python", "-c", text], devices=1, device_type="cpu", **more)


def attempt(name: str = "j1", number: int = 1, rank: int = 0) -> pb.AttemptId:
    return pb.AttemptId(job_id=name, attempt=number, rank=rank)


def alive(mark: str) -> list[int]:
    """Processes with `mark` on their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
                state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if mark.encode() in words and state not in "ZX":
                found.append(int(name))
    return found


def until(holds: Callable[[], bool], timeout_s: float = 10.0) -> float:
    """Waits; seconds it took."""
    started = time.monotonic()
    while not holds():
        assert time.monotonic() - started < timeout_s
        time.sleep(0.005)
    return time.monotonic() - started


def stop(id: pb.AttemptId, grace_s: float, why: str = "cancelled by ada") -> pb.SchedulerMessage:
    return pb.SchedulerMessage(stop=pb.Stop(id=id, grace_s=grace_s, why=why))
