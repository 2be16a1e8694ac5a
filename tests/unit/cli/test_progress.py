"""How far a job is: a line now and then, a bar on a terminal, nothing twice."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import Any

import pytest

from oneflow.cli.progress import LINE_S, Progress, progress_line
from oneflow.core.errors import ClusterUnreachableError
from oneflow.scheduler.jobs.records import JobKind, JobRecord, JobSpec, JobState

SPEC = JobSpec(kind=JobKind.GRAPH)
RECORD = JobRecord("j1", SPEC, JobState.RUNNING, attempt=1, total_steps=500, eta_s=190.0)


class Job:
    """At another step whenever it is asked, then away."""

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
        progress._thread.join(30)
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
