"""The curve of a job that was resumed has each step once."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from oneflow.cluster.connection import Retries
from oneflow.cluster.job import Job, MetricPoint, curve_of
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.records import JobState


def curve(*steps: tuple[int, int]) -> list[MetricPoint]:
    """Points of (attempt, step)."""
    return [MetricPoint(i, attempt, step, 0.0, {}) for i, (attempt, step) in enumerate(steps)]


def kept(points: list[MetricPoint]) -> list[tuple[int, int]]:
    return [(point.attempt, point.step) for point in points]


def test_the_later_attempt_wins() -> None:
    points = curve((1, 1), (1, 2), (1, 4), (1, 5), (2, 3), (2, 4), (3, 4), (3, 6))
    assert kept(curve_of(points)) == [(1, 1), (1, 2), (2, 3), (3, 4), (3, 6)]
    assert kept(curve_of(curve((1, 1), (1, 2), (2, 1)))) == [(2, 1)]  # from the beginning
    assert curve_of([]) == []


def test_two_points_of_a_step_of_one_attempt_stay() -> None:
    points = curve((1, 1), (1, 1), (2, 2), (2, 2))
    assert curve_of(points) == points


class Connection:
    """Has some points, and gets more while somebody follows."""

    def __init__(self, known: list[tuple[int, int]], later: list[tuple[int, int]]) -> None:
        self.points, self.later = list(known), later

    def retries(self) -> Retries:
        return Retries(0.0)

    def stream(self, service: str, method: str, request: Any, *_: Any) -> Iterator[pb.MetricPoint]:
        begin = getattr(request, "from")
        if request.follow:
            self.points += self.later
        for index in range(begin, len(self.points)):
            attempt, step = self.points[index]
            yield pb.MetricPoint(index=index, attempt=attempt, step=step)


def test_what_comes_later_comes_as_it_is() -> None:
    known = [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)]
    connection: Any = Connection(known, [(2, 4), (3, 3)])
    job = Job(connection, "j1")
    assert kept(list(job.metrics(follow=False))) == [(1, 1), (2, 2), (2, 3)]
    job.status = lambda: SimpleNamespace(state=JobState.SUCCEEDED)  # type: ignore
    found = list(job.metrics())
    assert kept(found) == [(1, 1), (2, 2), (2, 3), (2, 4), (3, 3)]
    assert [point.index for point in found] == [0, 3, 4, 5, 6]
    assert kept(list(job.metrics(start=6))) == [(3, 3), (2, 4), (3, 3)]
