"""A rank whose process stands still is found, named and ended by its daemon, whatever it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from oneflow.protos import cluster_pb2 as pb
from tests.support.cluster import Running, alive
from tests.support.simulated.scheduler_peer import FakeScheduler, attempt, script
from tests.support.waiting import wait_until

GIL = """
import ctypes
def hold():
    while True:
        ctypes.PyDLL(None).usleep(60_000_000)
hold()
"""


def test_a_stopped_rank_is_lost(scheduler: FakeScheduler, start: Callable[..., Running]) -> None:
    daemon = start(suspect_s=0.6, act_s=4.0)
    scheduler.begin(attempt(), script("import time; mark = 'stopped'; time.sleep(600)"))
    wait_until(lambda: bool(alive("mark = 'stopped'")))
    (pid,) = alive("mark = 'stopped'")
    os.kill(pid, signal.SIGSTOP)
    failing = scheduler.wait("failing")
    assert (failing.reason, failing.exit_code, failing.pid) == ("NODE_LOST", 137, pid)
    assert failing.cause.startswith("frozen: it has been stopped (SIGSTOP) for ")
    end = scheduler.exited(attempt())
    assert (end.reason, end.exit_code, end.cause) == ("NODE_LOST", 137, failing.cause)
    assert float(daemon.told(r"it has been stopped \(SIGSTOP\) for (\S+) s")) < 3.8
    assert not alive("mark = 'stopped'")


def test_a_stuck_interpreter_is_named_with_its_line(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    start(suspect_s=1.0, stuck_s=4.0)
    program = tmp_path / "holds.py"
    program.write_text(GIL)
    spec = pb.JobSpec(argv=["python", str(program)], devices=1, device_type="cpu")
    scheduler.begin(attempt(), spec)
    end = scheduler.exited(attempt())
    assert (end.reason, end.exit_code) == ("HANG", 80)
    assert end.cause.startswith("stuck: its interpreter has been stuck for ")
    assert end.cause.endswith(", at holds.py:5 in hold")
    assert b"in hold" in scheduler.whole_log(attempt(), "stderr")
