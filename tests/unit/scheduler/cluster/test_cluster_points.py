"""Reports of running jobs: when they will be through, and the waits of their actors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from oneflow.core.errors import StoreError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.driver import Driver
from oneflow.scheduler.cluster.points import MAX_SHARES, WINDOW, ActorWaits, Paces, Points
from oneflow.scheduler.jobs.events import CurvePoint
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState

RUNNING = JobRecord("j1", JobSpec(), JobState.RUNNING, attempt=1, total_steps=1000)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_is_the_rest_at_the_pace_of_now() -> None:
    clock = Clock()
    paces = Paces(clock)
    record = RUNNING
    for step in range(0, 400, 10):  # slow at first: forgotten by and by
        record = replace(record, last_step=step)
        paces.changed(None, record)
        clock.now += 20.0 if step < 50 else 2.0
    assert paces.eta_s(record) == pytest.approx((1000 - 390) * 0.2)
    assert len(paces._paces["j1"].looks) == WINDOW


def test_nobody_knows_before_there_are_steps_and_after_the_end() -> None:
    clock = Clock()
    paces = Paces(clock)
    paces.changed(None, RUNNING)
    assert paces.eta_s(RUNNING) == 0.0
    clock.now += 5
    later = replace(RUNNING, last_step=500)
    paces.changed(RUNNING, later)
    assert paces.eta_s(later) == pytest.approx(5.0)
    restarted = replace(later, attempt=2, last_step=400)
    paces.changed(later, restarted)
    assert paces.eta_s(restarted) == 0.0  # the pace of another attempt says nothing
    ended = replace(restarted, state=JobState.SUCCEEDED)
    paces.changed(restarted, ended)
    assert paces.eta_s(ended) == 0.0 and not paces._paces


def test_without_a_last_step_there_is_no_end() -> None:
    clock = Clock()
    paces = Paces(clock)
    for step in (1, 2):
        record = replace(RUNNING, total_steps=0, last_step=step)
        paces.changed(None, record)
        clock.now += 1
    assert paces.eta_s(record) == 0.0


def test_what_was_done_while_no_scheduler_heard_is_no_pace() -> None:
    clock = Clock()
    paces = Paces(clock)
    stored = replace(RUNNING, last_step=100)
    paces.changed(None, stored)
    before = replace(stored, restarts_spent=1)
    paces.changed(stored, before)
    for step in (110, 300, 500):  # told again, one after the other
        clock.now += 0.3
        now = replace(before, last_step=step)
        paces.changed(before, now)
        before = now
    for step in (510, 520, 530):
        clock.now += 1.0
        now = replace(before, last_step=step)
        paces.changed(before, now)
        before = now
    assert paces.eta_s(before) == pytest.approx(47.0)


# ---- waits of actors -----------------------------------------------------------------------------


Waits = tuple[tuple[str, float, float], ...]


def report(
    rank: int, at: float, waits: Waits, attempt: int = 1, waiting: str = ""
) -> tuple[pb.Progress, float]:
    id_ = pb.AttemptId(job_id="j1", attempt=attempt, rank=rank)
    names = ("kind", "no_input_s", "no_free_register_s")
    actors = [pb.ActorCounts(**dict(zip(names, wait, strict=True))) for wait in waits]
    return pb.Progress(id=id_, step=5, waiting=waiting, actors=actors), at


def test_shares_are_of_the_time_since_the_report_before() -> None:
    waits = ActorWaits()
    waits.note(*report(0, 100.0, (("boxing", 3.0, 1.0),)))
    assert [w.shares for w in waits.of("j1")] == [{}]
    waits.note(*report(1, 101.0, (("segment", 0.0, 0.0),), waiting="segment.2: no_input"))
    waits.note(*report(0, 102.0, (("boxing", 3.5, 1.0), ("segment", 0.0, 1.0))))
    first, second = waits.of("j1")
    assert first.shares == {"segment no_free_register": 0.5, "boxing no_input": 0.25}
    assert (second.rank, second.waiting) == (1, "segment.2: no_input")
    waits.note(*report(0, 102.5, ()))  # says nothing of actors
    assert waits.of("j1")[0] == first


def test_another_attempt_begins_anew_and_the_end_forgets() -> None:
    waits = ActorWaits()
    waits.note(*report(0, 1.0, (("boxing", 9.0, 0.0),)))
    waits.note(*report(0, 2.0, (("boxing", 0.5, 0.0),), attempt=2))
    assert waits.of("j1")[0].shares == {}
    waits.forget("j1")
    assert waits.of("j1") == []


def test_what_a_daemon_makes_up_stays_small() -> None:
    waits = ActorWaits()
    odd = float("nan"), float("inf")
    kinds = [f"kind{n}" for n in range(30)]
    waits.note(*report(0, 1.0, tuple((kind, 0.0, 0.0) for kind in kinds)))
    waits.note(*report(0, 2.0, tuple((kind, *odd) for kind in kinds)))
    shares = waits.of("j1")[0].shares
    assert len(shares) <= MAX_SHARES
    assert all(0 <= share <= 1 for share in shares.values())


class FullStore:
    """A store whose disk is full at first."""

    def __init__(self) -> None:
        self.is_full, self.steps = True, list[int]()

    def add_points(self, job_id: str, points: list[tuple[int, CurvePoint]], life: int) -> None:
        if self.is_full:
            raise StoreError("cannot write cluster.db: its disk is full")
        self.steps += [point.step for _, point in points]


class FullDriver:
    def __init__(self) -> None:
        self.store = FullStore()
        self.jobs = {"j1": JobRecord("j1", JobSpec(argv=("x",)), state=JobState.RUNNING)}

    async def in_store(self, call: Callable[[], object]) -> object:
        return call()


def test_points_wait_for_room_on_the_disk(caplog: pytest.LogCaptureFixture) -> None:
    driver = FullDriver()
    points = Points(cast("Driver", driver))
    for step in range(5):
        points._add("j1", 1, CurvePoint(step, 0.0, {"loss": 1.0}))
        asyncio.run(points.flush())
    assert driver.store.steps == []
    assert len([r for r in caplog.records if "wait in memory" in r.message]) == 1
    driver.store.is_full = False
    points._add("j1", 1, CurvePoint(5, 0.0, {"loss": 1.0}))
    asyncio.run(points.flush())
    assert driver.store.steps == list(range(6))
    assert points._num_new == 0
