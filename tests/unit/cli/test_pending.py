"""Clients that wait for a job are told why it does not run, and that Ctrl-C does not end it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from oneflow.cli.follow import goes_on
from oneflow.cli.main import cli
from oneflow.cli.pending import WhyPending
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState
from tests.support.waiting import WAIT_S

QUEUED = JobRecord("j1", JobSpec(), JobState.QUEUED, pending="needs 2 cpu devices: 1 free")
AGAIN = replace(QUEUED, state=JobState.RESTARTING, attempt=1, pending="needs 2 cpu devices: 0 free")
RUNNING = replace(QUEUED, state=JobState.RUNNING, attempt=1, pending="")
FULL = replace(RUNNING, pending="cannot write cluster.db: its disk is full")


class Job:
    id = "j1"

    def __init__(self, *records: JobRecord) -> None:
        self.records = list(records)
        self.is_over = threading.Event()

    def status(self) -> JobRecord:
        if len(self.records) == 1:
            self.is_over.set()
        return self.records.pop(0) if len(self.records) > 1 else self.records[0]


def test_each_reason_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    job: Any = Job()
    why = WhyPending(job)
    for record in (QUEUED, QUEUED, AGAIN, RUNNING, QUEUED, FULL, RUNNING):
        why.tell(record)
    assert capsys.readouterr().err.splitlines() == [
        "oneflow: job=j1 state=QUEUED needs 2 cpu devices: 1 free",
        "oneflow: job=j1 state=RESTARTING needs 2 cpu devices: 0 free",
        "oneflow: job=j1 state=RUNNING cannot write cluster.db: its disk is full",
    ]


def test_a_short_wait_is_not_worth_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    job: Any = Job()
    with WhyPending(job) as why:
        why.take(QUEUED)
        why._say_what_is_due(5.0)
    assert capsys.readouterr().err == ""


def test_it_looks_where_nobody_else_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOK_S", "IDLE_LOOK_S"):
        monkeypatch.setattr(f"oneflow.cli.pending.{name}", 0.0)
    job: Any = Job(RUNNING, *[QUEUED] * 100, RUNNING, RUNNING)
    with WhyPending(job, looks=True, after_s=0.001):
        assert job.is_over.wait(WAIT_S)
    assert "state=QUEUED needs 2 cpu devices" in capsys.readouterr().err


def test_what_has_begun_since_is_not_said_to_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """The line that is due is old; the job is looked at before it is said."""
    job: Any = Job(RUNNING)
    with WhyPending(job, looks=True, after_s=0.001) as why:
        why.take(QUEUED)
        assert job.is_over.wait(WAIT_S)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("verb", [["wait"], ["logs", "-f"], ["metrics", "-f"]])
def test_ctrl_c_says_that_the_job_goes_on(verb: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    job = SimpleNamespace(id="j1", status=lambda: RUNNING)
    job.wait = job.log_blocks = job.metrics = interrupted

    @contextmanager
    def connect(address: str | None) -> Iterator[Any]:
        yield SimpleNamespace(job=lambda _: job)

    monkeypatch.setattr("oneflow.cluster.client.connect", connect)
    result = CliRunner().invoke(cli, ["job", *verb, "j1"])
    assert result.exit_code == 130
    assert result.stderr.splitlines() == [
        "oneflow: job j1 goes on: `oneflow job logs -f j1`, `oneflow job cancel j1`"
    ]


def test_what_ends_well_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with goes_on("j1"):
        pass
    assert capsys.readouterr().err == ""
