"""Graph and inference jobs on a daemon: its forked worker, progress, outputs, requests, stops."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.protos import cluster_pb2 as pb
from tests.support.cluster import (
    FORK_SERVER_WORDS,
    WORKER_NAME,
    Running,
    children,
    cmdline,
    name_of,
)
from tests.support.simulated.scheduler_peer import FakeScheduler, attempt, stop
from tests.support.waiting import CALL_S, wait_until


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


def publish(scheduler: FakeScheduler, path: Path) -> str:
    """Makes a file of a job one that daemons can fetch."""
    data = path.read_bytes()
    digest = blake2b(data, digest_size=32).hexdigest()
    scheduler.blobs[digest] = data
    return digest


def training(scheduler: FakeScheduler, folder: Path, steps: int) -> pb.JobSpec:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((40, 6)).astype(np.float32)
    data = flow.jobs.data.arrays(x=x, y=rng.integers(0, 3, 40)).batch(8).repeat()
    Train().export(folder / "train.job", data=data, steps=steps)
    digest = publish(scheduler, folder / "train.job")
    return pb.JobSpec(kind=pb.JobSpec.GRAPH, devices=1, device_type="cpu", graph=digest)


def read_file(scheduler: FakeScheduler, name: str, job: str = "j1") -> tuple[bytes, str]:
    """The bytes of an output, and what went wrong."""
    number, data, after = 7, b"", len(scheduler.heard)
    request = pb.ReadFile(request=number, job_id=job, name=name)
    scheduler.say(pb.SchedulerMessage(read_file=request))
    scheduler.wait("file", lambda f: f.is_last, after=after)
    for _, message in scheduler.heard[after:]:
        if message.WhichOneof("kind") == "file":
            data += message.file.data
    return data, message.file.error if message.HasField("file") else ""


def train_once(scheduler: FakeScheduler, id: pb.AttemptId, spec: pb.JobSpec) -> None:
    found = scheduler.prepare(id, spec, total_steps=6)
    assert not found.error
    started = time.monotonic()
    scheduler.start_rank(id, found.master_port)
    scheduler.wait("progress", lambda p: p.id == id and p.step > 0)
    print(f"first step {time.monotonic() - started:.3f} s after Start")
    end = scheduler.exited(id)
    assert (end.exit_code, end.reason, end.last_step) == (0, "NONE", 6), end.cause


def counters(url: str) -> dict[str, float]:
    """All numbers of a page that may only grow."""
    with urllib.request.urlopen(url, timeout=CALL_S) as page:
        text = page.read().decode()
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    grows = ("_total", "_bucket", "_count", "_sum")
    return {n: float(v) for n, _, v in lines if n.partition("{")[0].endswith(grows)}


def test_a_graph_job_trains_on_a_forked_worker(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon = start(warm=True, metrics_addr="127.0.0.1:0")
    spec = training(scheduler, tmp_path, steps=6)
    wait_until(lambda: "workers can be forked" in daemon.said())
    url, before = daemon.told(r"metrics on (http:\S+)"), dict[str, float]()
    for number in (1, 2):
        train_once(scheduler, attempt(number=number), spec)
        now = counters(url)
        assert now['oneflow_train_steps_total{job="j1"}'] == 6 * number
        assert now['oneflow_train_samples_total{job="j1"}'] == 48 * number
        assert now["oneflow_train_step_duration_seconds_count"] == 6 * number
        assert all(now[name] >= value for name, value in before.items())
        before = now
    assert len(before) > 150
    names, error = read_file(scheduler, "")
    assert (names, error) == (b"loss.safetensors\nmetrics.jsonl\nvariables.safetensors", "")
    curve, error = read_file(scheduler, "metrics.jsonl")
    assert [json.loads(line)["step"] for line in curve.splitlines()] == [1, 2, 3, 4, 5, 6]
    assert read_file(scheduler, "variables")[0][:8] != b""
    assert "there is none of that name" in read_file(scheduler, "../job")[1]


def test_a_fork_server_that_is_killed_is_started_again_and_its_worker_lives_on(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon = start(warm=True)
    spec, id = training(scheduler, tmp_path, steps=6), attempt()
    prepared = scheduler.prepare(id, spec, total_steps=6)
    found = [pid for pid in children(daemon.process.pid) if name_of(pid) == WORKER_NAME]
    server = next(p for p in children(daemon.process.pid) if FORK_SERVER_WORDS in cmdline(p))
    assert len(found) == 1 and os.getsid(found[0]) == found[0]
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: "the fork server failed, next one in 1 s" in daemon.said())
    scheduler.start_rank(id, prepared.master_port)
    assert scheduler.exited(id).exit_code == 0
    train_once(scheduler, attempt(number=2), spec)


def test_a_stopped_graph_job_ends_in_order(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    start(warm=True)
    spec = training(scheduler, tmp_path, steps=10_000_000)
    found = scheduler.prepare(attempt(), spec, total_steps=10_000_000)
    scheduler.start_rank(attempt(), found.master_port)
    scheduler.wait("progress", lambda p: p.step > 0)
    scheduler.say(stop(attempt(), 30.0, "drained"))
    end = scheduler.exited(attempt())
    assert (end.exit_code, end.reason) == (143, "PREEMPTED")
    assert end.cause.startswith("drained (")
    told = scheduler.wait("progress", lambda p: p.checkpoint != "")
    assert Path(told.checkpoint).exists()
    assert told.checkpoint_step <= end.last_step


def test_a_bad_job_file_is_the_cause(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    start(warm=True)
    (tmp_path / "bad.job").write_bytes(b"nothing of the kind")
    digest = publish(scheduler, tmp_path / "bad.job")
    scheduler.begin(attempt(), pb.JobSpec(kind=pb.JobSpec.GRAPH, devices=1, graph=digest))
    end = scheduler.exited(attempt())
    assert end.exit_code == 65
    assert digest in end.cause or "job file" in end.cause


def test_an_inference_job_answers_and_says_when_it_cannot(
    scheduler: FakeScheduler, start: Callable[..., Running], tmp_path: Path
) -> None:
    daemon = start(warm=True, metrics_addr="127.0.0.1:0")
    example = flow.tensor(np.zeros((4, 6), np.float32))
    Predict().export(tmp_path / "predict.job", inputs={"x": example})
    digest = publish(scheduler, tmp_path / "predict.job")
    spec = pb.JobSpec(kind=pb.JobSpec.INFERENCE, devices=1, device_type="cpu", graph=digest)
    scheduler.begin(attempt(), spec)
    x = np.ones((4, 6), np.float32)
    tensor = pb.Tensor(name="x", dtype="float32", shape=x.shape, data=x.tobytes())
    ask = pb.Infer(request=5, id=attempt(), inputs=[tensor])
    scheduler.say(pb.SchedulerMessage(infer=ask))
    answer = scheduler.wait("infer", lambda d: d.request == 5)
    assert answer.error == ""
    assert [(o.name, list(o.shape)) for o in answer.outputs] == [("scores", [4, 3])]
    scheduler.say(stop(attempt(), 10.0))
    scheduler.exited(attempt())
    now = counters(daemon.told(r"metrics on (http:\S+)"))
    assert now['oneflow_actor_acts_total{kind="segment"}'] > 0
    assert not [name for name in now if 'job="' in name]  # who answers makes no steps
    scheduler.say(pb.SchedulerMessage(infer=pb.Infer(request=6, id=attempt())))
    assert "does not run here" in scheduler.wait("infer", lambda d: d.request == 6).error
