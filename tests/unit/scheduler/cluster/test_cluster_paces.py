"""The time at which a job will be through, as fast as it goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oneflow.scheduler.cluster.points import WINDOW, Paces
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
