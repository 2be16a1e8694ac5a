"""Graph and inference jobs on a daemon: its forked worker, progress, outputs, requests."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.cluster.job import Job
from oneflow.core.errors import OneFlowError
from oneflow.scheduler.jobs.records import JobState
from oneflow.scheduler.ports import free_port
from tests.support.cluster import FORK_SERVER_WORDS, PATIENT, WORKER_NAME, Rig
from tests.support.processes import children, cmdline, has_ipv6_loopback, name_of
from tests.support.waiting import WAIT_S, wait_until


class Train(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(5)
        self.model = nn.Linear(6, 3)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(5)
        self.model = nn.Linear(6, 3)

    def build(self, x: Any) -> Any:
        return {"scores": self.model(x)}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A scheduler and one daemon, with failpoints, that meet over IPv6 where there is any."""
    found = Rig(tmp_path_factory.mktemp("rig"), devices=("cpu:0",), patience=PATIENT)
    found.given["cpu:0"] = {"metrics_addr": "127.0.0.1:0"}
    if has_ipv6_loopback():
        found.address = f"[::1]:{free_port('::1')}"
        found.given["cpu:0"] = {"metrics_addr": "[::1]:0"}
    with found:
        yield found


def train(rig: Rig) -> Job:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, 6)).astype(np.float32)
    data = flow.jobs.data.arrays(x=x, y=rng.integers(0, 3, 40)).batch(8).repeat()
    return rig.client().submit(Train(), data=data, steps=6)


def ended(job: Job, attempt: int = 1) -> None:
    """Waits until that attempt has made all its steps."""
    record = job.wait(WAIT_S)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, attempt), record.cause
    assert record.last_step == 6


def counters(rig: Rig) -> dict[str, float]:
    """All numbers of the daemon's page that may only grow."""
    grows = ("_total", "_bucket", "_count", "_sum")
    found = rig.metrics("cpu:0")
    return {name: v for name, v in found.items() if name.partition("{")[0].endswith(grows)}


def test_a_graph_job_trains_on_a_forked_worker(rig: Rig) -> None:
    job, before = train(rig), dict[str, float]()
    for attempt in (1, 2):
        ended(job, attempt)
        now = counters(rig)
        assert now[f'oneflow_train_steps_total{{job="{job.id}"}}'] == 6 * attempt
        assert now[f'oneflow_train_samples_total{{job="{job.id}"}}'] == 48 * attempt
        assert now["oneflow_train_step_duration_seconds_count"] == 6 * attempt
        assert all(now[name] >= value for name, value in before.items())
        before = now
        if attempt == 1:
            job.restart()
    assert len(before) > 150
    assert job.output_names() == ["loss.safetensors", "metrics.jsonl", "variables.safetensors"]
    curve = job.output("metrics.jsonl").splitlines()
    assert [json.loads(line)["step"] for line in curve] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(OneFlowError, match="there is none of that name"):
        job.output("../job")


def test_a_fork_server_that_is_killed_is_started_again_and_its_worker_lives_on(rig: Rig) -> None:
    rig.arm("worker.rendezvous")
    job, daemon = train(rig), rig.pid("cpu:0")
    worker = rig.held("worker.rendezvous")
    assert [pid for pid in children(daemon) if name_of(pid) == WORKER_NAME] == [worker]
    assert os.getsid(worker) == worker
    server = next(p for p in children(daemon) if FORK_SERVER_WORDS in cmdline(p))
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: "the fork server failed, next one in 1 s" in rig.log("cpu:0"))
    rig.release()
    ended(job)
    ended(train(rig))


def test_a_worker_is_forked_ahead_and_replaced_if_it_dies_before_its_job(rig: Rig) -> None:
    def waiting() -> list[int]:
        return [pid for pid in children(rig.pid("cpu:0")) if name_of(pid) == WORKER_NAME]

    wait_until(lambda: len(waiting()) == 1)
    first = waiting()
    rig.arm("worker.rendezvous")
    job = train(rig)
    assert [rig.held("worker.rendezvous")] == first
    rig.release()
    ended(job)
    wait_until(lambda: len(waiting()) == 1 and waiting() != first)
    second = waiting()[0]
    os.kill(second, signal.SIGKILL)
    ended(train(rig))


def test_an_inference_job_answers_and_says_when_it_cannot(rig: Rig) -> None:
    example = flow.tensor(np.zeros((4, 6), np.float32))
    job = rig.client().submit(Predict(), inputs={"x": example})
    wait_until(lambda: job.status().state is JobState.RUNNING)
    x = np.ones((4, 6), np.float32)
    found = job.run({"x": x})
    np.testing.assert_allclose(found["scores"], Predict().model(flow.tensor(x)).numpy(), atol=1e-6)
    job.cancel()
    job.wait(WAIT_S)
    now = counters(rig)
    assert now['oneflow_actor_acts_total{kind="segment"}'] > 0
    assert not [name for name in now if f'job="{job.id}"' in name]  # who answers makes no steps
    with pytest.raises(OneFlowError, match="CANCELLED"):
        job.run({"x": x})
