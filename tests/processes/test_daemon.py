"""A daemon in a process of its own, told what to do by a scheduler that is a part of the test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from fake_scheduler import FakeScheduler

PROGRAM = str(Path(__file__).with_name("daemon_program.py"))
QUICK = {"shutdown_grace_s": 2.0, "noted_s": 0.5, "leftover_grace_s": 0.3, "rejoin_s": 0.2}


class Running:
    """A daemon and its scheduler."""

    def __init__(self, scheduler: FakeScheduler, folder: Path, **settings: Any) -> None:
        self.scheduler, self.state = scheduler, folder / "state"
        given = {
            "device": "cpu:0",
            "node": "n1",
            "scheduler": f"127.0.0.1:{scheduler.port}",
            "state_dir": str(self.state),
            "warm": False,
            "times": QUICK,
            "heartbeat_s": 0.2,
            "suspect_s": 0.6,
            "act_s": 2.0,
        } | settings
        env = {k: v for k, v in os.environ.items() if not k.startswith("ONEFLOW_")}
        env |= {"TMPDIR": str(folder / "tmp"), "ONEFLOW_LOG_LEVEL": "INFO"}
        (folder / "tmp").mkdir(exist_ok=True)
        self.temp = folder / "tmp"
        self.errors = folder / "daemon.stderr"
        with open(self.errors, "ab") as errors:
            argv = [sys.executable, PROGRAM, json.dumps(given)]
            self.process = subprocess.Popen(argv, env=env, stderr=errors)

    def said(self) -> str:
        return self.errors.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


@pytest.fixture
def scheduler() -> Iterator[FakeScheduler]:
    found = FakeScheduler(token="secret")
    found.start()
    yield found
    found.stop()


@pytest.fixture
def start(scheduler: FakeScheduler, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts daemons; returns when the scheduler has heard of one."""
    started: list[Running] = []

    def start_one(**settings: Any) -> Running:
        after = len(scheduler.heard)
        found = Running(scheduler, tmp_path, **({"token": "secret"} | settings))
        started.append(found)
        scheduler.wait("hello", after=after)
        scheduler.wait("beat", after=after)
        return found

    yield start_one
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


@pytest.mark.parametrize(
    ("text", "code", "reason", "cause"),
    [
        ("print('hello')", 0, "NONE", ""),
        ("import sys; sys.exit(7)", 7, "USER_ERROR", "exited with code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "SIGNAL", "killed by SIGKILL"),
        ("import os; os.abort()", 134, "SIGNAL", "killed by SIGABRT"),
    ],
)
def test_the_end_of_a_script_is_told(
    scheduler: FakeScheduler,
    start: Callable[..., Running],
    text: str,
    code: int,
    reason: str,
    cause: str,
) -> None:
    daemon = start()
    scheduler.begin(attempt(), script(text))
    found = scheduler.exited(attempt())
    assert (found.exit_code, found.reason, found.cause) == (code, reason, cause)
    assert found.pid > 0
    assert scheduler.whole_log(attempt(), "stdout") == (b"hello\n" if code == 0 else b"")
    assert list(daemon.temp.iterdir()) == []
