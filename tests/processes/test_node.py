"""`oneflow daemon run` with two devices: one line for both daemons, and a job of two ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oneflow.cluster.client import connect
from oneflow.cluster.settings import load_settings
from oneflow.scheduler.jobs.records import JobState
from tests.support.cluster import SchedulerProcess
from tests.support.waiting import WAIT_S, wait_until


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    found = SchedulerProcess(tmp_path, allow_scripts=True, tick_s=0.1).start()
    yield found
    found.kill()


@pytest.fixture
def node(scheduler: SchedulerProcess, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    words = ["--device", "cpu:0-1", "--node", "n0", "--scheduler", scheduler.known["address"]]
    words += ["--state-dir", str(tmp_path / "node"), "--allow-scripts"]
    words += ["--token-file", str(tmp_path / "state" / "daemon.token")]
    argv = [sys.executable, "-m", "oneflow", "daemon", "run", *words]
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "ONEFLOW_CONFIG_DIR": str(tmp_path)}
    found = subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)
    yield found
    found.kill()
    found.communicate(timeout=WAIT_S)


def test_two_devices_on_one_line_run_a_job_and_outlive_a_daemon(
    scheduler: SchedulerProcess, node: subprocess.Popen[str]
) -> None:
    given = load_settings({"client.address": scheduler.known["address"]})
    with connect(token=scheduler.token(), settings=given) as cluster:

        def up() -> dict[str, int]:
            """Process ids of the daemons that are up, by device."""
            return {d.device: d.pid for d in cluster.status().daemons if d.state == "up"}

        wait_until(lambda: len(up()) == 2, "both daemons are up")
        show = "import os; print('rank', os.environ['RANK'])"
        job = cluster.submit_script([sys.executable, "-c", show], devices=2)
        assert job.wait(WAIT_S).state is JobState.SUCCEEDED
        before = up()
        os.kill(before["cpu:1"], signal.SIGKILL)
        wait_until(lambda: up() == {"cpu:0": before["cpu:0"]}, "the death of one alone is seen")
        wait_until(lambda: len(up()) == 2, "it is begun anew")
    node.terminate()
    _, said = node.communicate(timeout=WAIT_S)
    assert (node.returncode, "cpu:1 was killed by signal 9" in said) == (0, True)
