"""Progress of a job, and its curve: a line now and then, a bar on a terminal, nothing twice."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from typing import Any

import pytest

from oneflow.cli.progress import LINE_S, Progress, progress_line
from oneflow.cli.results import show_metrics, show_outputs
from oneflow.cluster.job import Job as ClusterJob
from oneflow.cluster.job import MetricPoint
from oneflow.core.errors import ClusterRequestError, ClusterUnreachableError
from oneflow.scheduler.jobs.records import JobKind, JobRecord, JobSpec, JobState
from tests.support.waiting import WAIT_S

SPEC = JobSpec(kind=JobKind.GRAPH)
RECORD = JobRecord("j1", SPEC, JobState.RUNNING, attempt=1, total_steps=500, eta_s=190.0)


class Job:
    """A job at another step whenever it is asked, then away."""

    id = "j1"

    def __init__(self, *steps: int) -> None:
        self.steps = list(steps)

    def status(self) -> JobRecord:
        if not self.steps:
            raise ClusterUnreachableError("away")
        step = self.steps.pop(0)
        return replace(RECORD, last_step=step, metrics={"acc": 0.5, "loss": 1 / (step + 1)})


def watched(job: Any, monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> str:
    err = io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", err)
    with Progress(job, every_s=0.01) as progress:
        progress._thread.join(WAIT_S)
        progress.show(replace(RECORD, last_step=500, state=JobState.SUCCEEDED))
        with progress.aside():
            pass
    return err.getvalue()


def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    said = watched(Job(0, 1, 1, 3), monkeypatch, is_terminal=False)
    assert said.splitlines() == [
        "oneflow: step=1/500 loss=0.5 acc=0.5 eta=3m10s",
        "oneflow: step=3/500 loss=0.25 acc=0.5 eta=3m10s",
        "oneflow: step=500/500",
    ]
    assert LINE_S == 30.0


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said = watched(Job(0, 250), monkeypatch, is_terminal=True)
    assert "j1:  50%" in said and "250/500" in said
    assert "loss=0.00398406 acc=0.5" in said
    assert "oneflow:" not in said


def test_numbers_are_few() -> None:
    many = replace(RECORD, last_step=1, metrics={f"m{i}": float("nan") for i in range(50)})
    assert progress_line(many).count("=nan") == 6


class Curve:
    """A job with a point left out."""

    id = "j1"

    def metrics(self, follow: bool) -> list[MetricPoint]:
        values = {"acc": 0.5, "loss": 0.25}
        return [MetricPoint(index, 1, index + 1, 0.5, values) for index in (0, 1, 3)]

    def output_names(self) -> list[str]:
        return ["loss.safetensors", "metrics.jsonl"]

    chosen_outputs: Any = ClusterJob.chosen_outputs


def test_a_curve_is_a_line_a_point(capsys: pytest.CaptureFixture[str]) -> None:
    job: Any = Curve()
    show_metrics(job, False, "table")
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"step={step} loss=0.25 acc=0.5" for step in (1, 2, 4)]
    assert "points of this curve are left out: 1;" in shown.err
    show_metrics(job, False, "json")
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["index"] == 3


def test_outputs_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    job: Any = Curve()
    show_outputs(job, (), None, "table")
    show_outputs(job, ("metrics.jsonl",), None, "json")
    listed, _, told = capsys.readouterr().out.partition("{")
    assert listed.split() == ["loss.safetensors", "metrics.jsonl"]
    assert json.loads("{" + told) == {"outputs": ["metrics.jsonl"]}
    with pytest.raises(ClusterRequestError, match=r"no output 'loss': it has loss\.safe"):
        show_outputs(job, ("loss",), None, "table")


def test_steps_that_were_done_again_are_not_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    points = [MetricPoint(i, a, s, 0.5, {}) for i, a, s in ((0, 1, 1), (3, 2, 2), (4, 2, 3))]
    job: Any = type("Resumed", (), {"metrics": lambda self, follow: points})()
    show_metrics(job, False, "table")
    shown = capsys.readouterr()
    assert shown.out.splitlines() == ["step=1", "step=2", "step=3"]
    assert shown.err == ""
