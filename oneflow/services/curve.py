"""Points of a job's curve that wait to be sent: all of them or, beyond a limit, every k-th."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

MAX_POINTS, MAX_VALUES = 100, 1000
"""Most points of the curve in one message: a thousand steps a second are told whole."""


@dataclass(frozen=True)
class CurvePoint:
    """The metrics of one step. number: of the point in its message's curve, from 0, those that are
    left out counted too. at: on the monotonic clock."""

    step: int
    metrics: Mapping[str, float]
    number: int
    at: float


class Curve:
    """Points that wait to be told: all of them or, beyond a limit, every k-th and the newest."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._points: list[CurvePoint] = []
        self._newest: CurvePoint | None = None
        self._every = 1

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        number = self._newest.number + 1 if self._newest is not None else 0
        self._newest = CurvePoint(step, metrics, number, time.monotonic())
        if number % self._every == 0:
            self._points.append(self._newest)
        if len(self._points) >= max(2, min(MAX_POINTS, MAX_VALUES // max(1, len(metrics)))):
            self._points, self._every = self._points[::2], 2 * self._every

    def take(self) -> list[CurvePoint]:
        found, newest = self._points, self._newest
        if newest is not None and newest.number > found[-1].number:
            found.append(newest)
        self._clear()
        return found


@dataclass(frozen=True)
class Report:
    """A point that a script reported. number: from 0, among those of its process that were kept.
    metrics: None for a number that is not finite, which JSON has not. at: seconds since the epoch.
    left_out: points before it that were not kept."""

    number: int
    step: int
    metrics: dict[str, float | None]
    at: float
    left_out: int = 0


class Reports:
    """The last reports of a script's process, to be read now and then. Any thread may add."""

    def __init__(self, kept: int = 3 * MAX_VALUES // 2) -> None:
        self._kept, self._values = kept, 0
        self._curve = Curve()
        self._reports: deque[Report] = deque()
        self._num_taken = 0
        self._lock = threading.Lock()

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        with self._lock:
            self._curve.add(step, metrics)

    def last(self) -> list[Report]:
        """Return the newest reports, as many as the numbers in them allow, oldest first."""
        with self._lock:
            elapsed, before = time.time() - time.monotonic(), -1
            for point in self._curve.take():
                left_out, before = point.number - before - 1, point.number
                metrics = {k: v if math.isfinite(v) else None for k, v in point.metrics.items()}
                at = point.at + elapsed
                report = Report(self._num_taken, point.step, metrics, at, left_out)
                self._num_taken += 1
                self._reports.append(report)
                self._values += len(report.metrics)
            while len(self._reports) > 1 and self._values > self._kept:
                self._values -= len(self._reports.popleft().metrics)
            return list(self._reports)


REPORTS = Reports()
"""Those of this process (`flow.report`)."""
