"""Thousands of ranks: work that is the same for all of them is done once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import metrics as metrics_module
from oneflow.scheduler.cluster import server as server_module
from oneflow.scheduler.cluster import state as state_module
from oneflow.scheduler.cluster.lines import Line, Lines
from oneflow.scheduler.cluster.metrics import ClusterMetrics
from oneflow.scheduler.cluster.server import MANY_JOINED, Scheduler
from oneflow.scheduler.cluster.settings import SchedulerSettings
from oneflow.scheduler.cluster.state import Performer, State
from oneflow.scheduler.jobs.events import DaemonJoined, TellPrepare
from oneflow.scheduler.jobs.records import Assignment, JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.table import Table

MANY = 1000
NAMES = [f"n{number}/cpu:0" for number in range(MANY)]
PLACES = tuple(Assignment(r, name, f"n{r}", "cpu:0") for r, name in enumerate(NAMES))
DIGEST = "d" * 64


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """The calls of a function, by their arguments."""
    calls: list[Any] = []
    work = getattr(module, name)

    def call(*given: Any) -> Any:
        calls.append(given)
        return work(*given)

    monkeypatch.setattr(module, name, call)
    return calls


def lines_of_all(token: str) -> Lines:
    lines = Lines()
    for number, name in enumerate(NAMES):
        line = Line(pb.Hello(daemon=name, node=f"n{number}", incarnation=1), "", None)
        line.token = token
        lines.add(line)
        lines.welcome(name, 1, number + 1)
    return lines


def test_the_spec_of_a_job_is_encoded_once_for_all_its_ranks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = counted(monkeypatch, state_module, "spec_to_proto")
    lines = lines_of_all("daemons")
    performer = Performer(lines, SchedulerSettings(tmp_path))
    jobs = [JobRecord(name, JobSpec(argv=(name,)), attempt=1, assignments=PLACES) for name in "ab"]
    for job in jobs:
        for rank, daemon in enumerate(NAMES):
            told = TellPrepare(daemon, job, rank, 0, 1, "", rank + 1)
            performer.send_prepare(told, "")
    assert len(calls) == 2
    mails = [line.mail for line in lines.all()]
    argvs = {tuple(mail.get_nowait().prepare.spec.argv) for mail in mails for _ in "ab"}
    assert argvs == {("a",), ("b",)}


@pytest.mark.parametrize("kind", ["archive", "graph", "requirements"])
@pytest.mark.parametrize(("token", "is_needed"), [("daemons", True), ("others", False)])
def test_a_rank_that_fetches_a_file_does_not_look_at_all_daemons(
    monkeypatch: pytest.MonkeyPatch, token: str, is_needed: bool, kind: str
) -> None:
    lines = lines_of_all("daemons")
    calls = counted(monkeypatch, lines, "current")
    spec: Any = replace(JobSpec(), **{kind: DIGEST})
    job = JobRecord("a", spec, state=JobState.STARTING, assignments=PLACES)
    table = SimpleNamespace(jobs={"a": job}, attempts=SimpleNamespace(live={"a": None}))
    plans = SimpleNamespace(graphs_of=lambda plan: set())
    state: Any = SimpleNamespace(driver=SimpleNamespace(table=table), lines=lines, plans=plans)
    assert State.is_needed(state, DIGEST, token) is is_needed
    assert len(calls) == (1 if is_needed else MANY)
    calls.clear()
    assert not State.is_needed(state, "e" * 64, token)
    assert not calls


def test_the_garbage_collector_passes_over_daemons_once_many_have_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    steps = {name: partial(said.append, name) for name in ("unfreeze", "collect", "freeze")}
    monkeypatch.setattr(server_module, "gc", SimpleNamespace(**steps))
    table = SimpleNamespace(epoch=7)
    state = SimpleNamespace(driver=SimpleNamespace(table=table))
    scheduler: Any = SimpleNamespace(state=state, _epoch=7, _kept_epoch=7)
    for epoch in (MANY_JOINED, MANY_JOINED + 7):  # they still come
        table.epoch = epoch
        Scheduler._keep_fleet(scheduler)
    assert not said
    for _ in range(3):
        Scheduler._keep_fleet(scheduler)
    assert said == ["unfreeze", "collect", "freeze"]


def test_devices_that_are_alike_are_counted_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table, metrics = Table([], 0), ClusterMetrics(tmp_path / "db")
    for number, name in enumerate(NAMES):
        hello = pb.Hello(daemon=name, node=f"n{number}", device_type="cpu", incarnation=1)
        table.step(DaemonJoined(hello), 1.0)
    calls = counted(monkeypatch, metrics_module, "_slot_state")
    metrics.refresh(table, 3.0)
    assert (metrics.slots["cpu", "free"], metrics.daemons["up"]) == (MANY, MANY)
    assert metrics.heartbeat_age[()] == 2.0
    assert len(calls) == 1
