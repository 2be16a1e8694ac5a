"""Reports of a worker about its curve: all of it in few messages, or every k-th point with a
count.
"""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import Any

import pytest

from oneflow.jobs import reporting
from oneflow.jobs.reporting import Reporter
from oneflow.protos import cluster_pb2 as pb
from oneflow.services import curve as curves
from oneflow.services.curve import Curve
from tests.support.waiting import WAIT_S


class Daemon:
    """Takes messages; not while `reads` is not set."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.reads, self.is_asked = threading.Event(), threading.Event()

    def send(self, message: pb.WorkerMessage) -> None:
        self.is_asked.set()
        assert self.reads.wait(WAIT_S)
        if message.WhichOneof("kind") == "progress":
            self.told.append(message.progress)


def reporting_to(daemon: Any) -> Reporter:
    return Reporter(daemon, pb.AttemptId(job_id="j1"), 60)


@pytest.fixture
def daemon() -> Daemon:
    """One that reads."""
    found = Daemon()
    found.reads.set()
    return found


def test_a_curve_is_told_whole(daemon: Daemon) -> None:
    reporter = reporting_to(daemon)
    for step in range(1, 61):
        reporter.progress(step, {"loss": 1.0 / step})
    reporter.close()
    points = [point for progress in daemon.told for point in progress.points]
    assert [point.step for point in points] == list(range(1, 61))
    assert [point.metrics["loss"] for point in points] == [1.0 / step for step in range(1, 61)]
    assert {point.left_out for point in points} == {0}
    assert all(0 <= point.age_s < 60 for point in points)
    assert len(daemon.told) < 30
    assert daemon.told[-1].step == 60


def test_a_daemon_that_does_not_read_costs_points_and_no_memory() -> None:
    daemon = Daemon()
    reporter = reporting_to(daemon)
    reporter.progress(1, {"loss": 1.0})
    assert daemon.is_asked.wait(WAIT_S)
    for step in range(2, 100_001):
        reporter.progress(step, {"loss": 1.0})
    daemon.reads.set()
    reporter.close(WAIT_S)
    points = [point for progress in daemon.told for point in progress.points]
    assert len(points) <= 1 + curves.MAX_POINTS
    assert points[-1].step == 100_000
    assert len(points) + sum(point.left_out for point in points) == 100_000


@pytest.mark.parametrize("count", [1, 2, 99, 100, 101, 102, 103, 150, 201, 1000, 4097])
def test_every_kth_point_and_the_newest_are_kept(count: int) -> None:
    curve = Curve()
    for step in range(count):
        curve.add(step, {"loss": 0.0})
    steps = [point.step for point in curve.take()]
    assert len(steps) <= curves.MAX_POINTS
    assert steps[-1] == count - 1
    apart = {after - before for before, after in pairwise(steps[:-1])}
    assert len(apart) <= 1  # but for the newest
    assert curve.take() == []


def test_points_with_many_numbers_are_fewer() -> None:
    curve = Curve()
    for step in range(50):
        curve.add(step, {str(name): 0.0 for name in range(200)})
    points = curve.take()
    assert sum(len(point.metrics) for point in points) <= curves.MAX_VALUES
    assert (points[0].number, points[-1].number) == (0, 49)


def test_a_warning_is_said_until_a_checkpoint_is_complete(daemon: Daemon) -> None:
    reporter = reporting_to(daemon)
    reporter.progress(1, {"loss": 1.0})
    reporter.warn("no room " + "x" * 2000)
    while not daemon.told or not daemon.told[-1].warning:
        reporter.progress(2, {"loss": 1.0})
    assert len(daemon.told[-1].warning) == reporting.MAX_WARNING_CHARS
    reporter.checkpoint("step-3", 3)
    reporter.close()
    assert daemon.told[-1].warning == ""
