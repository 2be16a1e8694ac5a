"""Daemons on a real Ray cluster of this machine (`make neighbours ONLY=ray`)."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from tests.support.local_cluster import LocalTest, last_line, submit
from tests.support.processes import alive
from tests.support.waiting import wait_until

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'oneflow-actors[ray]'")


class Train(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(6, 4)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9))

    def build(self, x: Any) -> Any:
        loss = self.model(x).square().mean()
        loss.backward()
        return loss


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def _mend(local: LocalTest, asked: list[str]) -> None:
    """Kill daemons, and the scheduler: all comes back, by itself or by the same command."""
    script = local.script("slow.py", "time.sleep(12); print('through', rank)")
    job_id = submit(local, script).stdout.strip()
    wait_until(lambda: _state(local, job_id) == "RUNNING")
    (killed, *_) = daemons_of(local)
    os.kill(killed, signal.SIGKILL)
    done = local.run("job", "wait", job_id, timeout_s=120)
    assert done.returncode == 0, done.stderr
    os.kill(local.record.scheduler.pid, signal.SIGKILL)
    again = local.run(*asked, timeout_s=180)
    assert again.returncode == 0, again.stderr
    assert "whole again: scheduler" in again.stdout
    twice = local.run(*asked, timeout_s=180)
    assert twice.returncode == 0 and "runs already" in twice.stdout
    done = submit(local, local.script("ok.py", "print('rank', rank)"), "--wait")
    assert done.returncode == 0, done.stderr


def _state(local: LocalTest, job_id: str) -> str:
    (record,) = [
        r
        for r in json.loads(local.run("job", "list", "-o", "json").stdout)["jobs"]
        if r["id"] == job_id
    ]
    return str(record["state"])


def daemons_of(local: LocalTest) -> list[int]:
    """Pids of the daemons of a cluster."""
    return alive("--scheduler", local.record.address)


@pytest.mark.neighbour
@pytest.mark.filterwarnings("ignore")
def test_two_clusters_share_a_ray_cluster(tmp_path: Path, address: str) -> None:
    asked = ["cluster", "up", "--on", address, "--daemons", "1", "--device-type", "cpu"]
    first, second, third = (LocalTest(tmp_path / name) for name in ("a", "b", "c"))
    try:
        assert first.run(*asked, timeout_s=180).returncode == 0
        done = second.run(*asked, timeout_s=180)
        assert done.returncode == 0, done.stderr
        full = third.run(*asked, timeout_s=180)
        assert full.returncode == 78 and "Ray has no room" in full.stderr, full
        assert "Traceback" not in full.stderr
        assert second.run("cluster", "down", timeout_s=120).returncode == 0
        (daemon,) = json.loads(first.run("cluster", "nodes", "-o", "json").stdout)["daemons"]
        assert daemon["state"] == "up"
    finally:
        for local in (first, second, third):
            local.run("cluster", "down", timeout_s=120)


@pytest.mark.neighbour
@pytest.mark.filterwarnings("ignore")
def test_daemons_are_placed_by_ray(tmp_path: Path, address: str) -> None:
    local = LocalTest(tmp_path)
    asked = ["cluster", "up", "--on", address, "--daemons", "2", "--device-type", "cpu"]
    done = local.run(*asked, "--allow-scripts", timeout_s=180)
    assert done.returncode == 0, done.stderr
    try:
        assert "cpu:0 cpu:1" in done.stdout
        done = submit(local, local.script("ok.py", "print('rank', rank)"), "--wait")
        assert done.returncode == 0, done.stderr
        assert "state=SUCCEEDED" in last_line(done)
        done = submit(local, local.script("bad.py", "sys.exit(5)"), "--wait")
        assert done.returncode == 5
        too_many = local.run("cluster", "up", "--on", address, "--daemons", "1")
        assert too_many.returncode == 78
        _mend(local, asked)
    finally:
        down = local.run("cluster", "down", timeout_s=120)
    assert down.returncode == 0, down.stderr
    assert not alive(str(tmp_path), "daemon", sys.executable)


@pytest.mark.neighbour
@pytest.mark.filterwarnings("ignore")
def test_a_graph_job_on_two_daemons_saves_and_goes_on(tmp_path: Path, address: str) -> None:
    """They are on one host, so they have one folder; the files of a job outlive the cluster."""
    path = tmp_path / "train.job"
    x = np.ones((40, 6), np.float32)
    data = flow.jobs.data.arrays(x=x).batch(8).repeat()
    Train().export(path, data=data, steps=30, checkpoint_every=10)
    local = LocalTest(tmp_path)
    asked = ["cluster", "up", "--on", address, "--daemons", "2", "--device-type", "cpu"]
    done = local.run(*asked, timeout_s=180)
    assert done.returncode == 0, done.stderr
    assert "--data-root" not in done.stderr  # one host needs none
    try:
        words = ("job", "submit", "--devices", "2", "--wait")
        done = local.run(*words, str(path), "--job-id", "first", timeout_s=120)
        assert done.returncode == 0, done.stderr
        assert "step=30 ckpt=30" in last_line(done)
        (record,) = json.loads(local.run("job", "list", "-o", "json").stdout)["jobs"]
        saved = Path(record["last_checkpoint"])
        more = ("--job-id", "second", "--resume-from", str(saved.parent))
        done = local.run(*words, str(path), *more, timeout_s=120)
        assert done.returncode == 0, done.stderr
    finally:
        down = local.run("cluster", "down", timeout_s=120)
    assert down.returncode == 0, down.stderr
    assert saved.name == "step-30" and list(saved.glob("shard-*-00001.safetensors"))
    job = saved.parents[1]
    assert (job / "outputs" / "metrics.jsonl").read_text().count("\n") == 30
    assert list(job.glob("1/rank*/stderr*"))
