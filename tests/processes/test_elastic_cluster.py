"""Elastic jobs on a real cluster, whose daemons are killed and come back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.cluster.job import Job, curve_of
from oneflow.jobs.order import Batches, Cursor
from oneflow.scheduler.jobs.records import JobState
from tests.support.cluster import HASTY, PATIENT, ROOT, Rig, table
from tests.support.waiting import WAIT_S, wait_until

from . import test_elastic as scripts
from .test_launch import clean_env

ROWS, BATCH, STEPS = 60, 12, 1500


class Train(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.add_optimizer(flow.optim.Adam(self.model.parameters(), lr=0.01))

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


def rows() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, 6)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 3, ROWS)}


def losses_alone(steps: int) -> list[float]:
    """Losses of the same steps in this process, of one rank."""
    graph, data = Train(), rows()
    batches = Batches(ROWS, BATCH, seed=3, drop_last=False, epochs=0)
    cursor, found = Cursor(), []
    for _ in range(steps):
        chosen = batches.rows(cursor, 0, BATCH)
        found.append(graph(flow.tensor(data["x"][chosen]), flow.tensor(data["y"][chosen])).item())
        cursor = batches.after(cursor)
    return found


def wait_for(job: Job, size: int, more_steps: int) -> None:
    """Return when the job has run for some steps on that number of devices."""
    first: list[int] = []

    def there() -> bool:
        record = job.status()
        assert not record.state.is_final, record.cause
        if record.state is not JobState.RUNNING or len(record.assignments) != size:
            return False
        first.append(record.last_step)
        return record.last_step >= min(first) + more_steps

    wait_until(there, lambda: f"{size} devices: {job.status()}")


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "sizes"), [("1:2", (2, 1, 2)), ("3:4", (4, 3, 4))])
def test_a_graph_job_goes_on_smaller_and_larger_with_the_losses_of_one_run(
    devices: str, sizes: Sequence[int], tmp_path: Path
) -> None:
    names = tuple(f"cpu:{number}" for number in range(sizes[0]))
    rig = Rig(tmp_path, devices=names)
    rig.given["scheduler"] = {"table": table(HASTY) | {"grow_s": 0.5}}
    data = flow.jobs.data.arrays(**rows()).shuffle(3).batch(BATCH).repeat()
    with rig:
        wishes = {"devices": devices, "steps": STEPS, "checkpoint_every": 20}
        job = rig.client().submit(Train(), data=data, **wishes)
        wait_for(job, sizes[0], 30)
        rig.kill(names[-1])
        wait_for(job, sizes[1], 30)
        rig.revive(names[-1])
        wait_for(job, sizes[2], 10)
        job.cancel()
        record = job.wait(WAIT_S)
        assert (record.attempt, record.restarts_spent) == (3, 0), record
        points = curve_of(list(job.metrics(follow=False)))
    found = {point.step: point.values["loss"] for point in points}
    assert max(found) > 60
    expected = losses_alone(max(found))
    for step, loss in found.items():
        assert abs(loss - expected[step - 1]) < 2e-5, step


def test_a_job_gives_its_device_to_one_of_higher_priority_and_goes_on_as_if_undisturbed(
    tmp_path: Path,
) -> None:
    rig = Rig(tmp_path, devices=("cpu:0",), patience=PATIENT)
    rig.given["scheduler"] = {"table": table(PATIENT) | {"grace_s": 30.0}}  # time to save in
    data = flow.jobs.data.arrays(**rows()).shuffle(3).batch(BATCH).repeat()
    with rig:
        wishes = {"steps": 400, "checkpoint_every": 1000, "preemptible": True}
        low = rig.client().submit(Train(), data=data, **wishes)
        wait_for(low, 1, 20)
        high = rig.script("print('high')", priority=1)
        assert high.wait(WAIT_S).state is JobState.SUCCEEDED
        record = low.wait(WAIT_S)
        assert record.state is JobState.SUCCEEDED, record.cause
        assert (record.attempt, record.restarts_spent) == (2, 0), record
        curve = [json.loads(line) for line in low.output("metrics.jsonl").splitlines()]
        resumed = [point.step for point in low.metrics(follow=False) if point.attempt == 2]
    assert min(resumed) > 20, "it goes on from the checkpoint of its stop"
    found = [point["loss"] for point in curve]
    assert found == pytest.approx(losses_alone(400), abs=1e-6)


def test_a_script_goes_on_smaller_and_larger_with_the_losses_of_one_run(tmp_path: Path) -> None:
    scene = scripts.Scene("1:2", 1, (2, 1, 2))
    moments, alone = tmp_path / "moments", tmp_path / "alone"
    moments.mkdir()
    alone.mkdir()
    program = [sys.executable, "-m", scripts.PROGRAM]
    whole = [*program, str(tmp_path / "one"), str(alone), str(scripts.STEPS)]
    words = [*program, "state", str(moments), str(scripts.STEPS), "2:12", "1:24"]
    rig = Rig(tmp_path / "rig", armed=False, patience=PATIENT)
    rig.given["scheduler"] = {"table": table(PATIENT) | {"grow_s": 0.5}}
    undisturbed = subprocess.Popen(whole, env=clean_env(), text=True)
    with scripts.ended([undisturbed]), rig:
        wishes = {"devices": "1:2", "env": {"PYTHONPATH": str(ROOT)}}
        job = rig.client().submit_script(words, **wishes)
        scripts.wait_for(moments, 12, 2)
        rig.kill("cpu:1")
        scripts.wait_for(moments, 24, 1)
        rig.revive("cpu:1")
        record = job.wait(WAIT_S)
        assert undisturbed.wait(WAIT_S) == 0
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 3), record
    scripts.check(scene, scripts.said(moments), scripts.said(alone))
