"""The counts that a rank's process tells its daemon, so that one page shows both.

A rank tells numbers since it began, the daemon adds their growth: its own never go down when one
rank follows another. A number that is no count holds for as long as the rank lives. The families
are those of metrics.py; samples from another process are checked against them: names, labels, which
all have few values that are known, and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from oneflow.core.metrics import Metrics
from oneflow.core.metrics_families import Counts, Family, Gauges, Histogram, Labels, Peaks, Times

MAX_TOLD = 2000  # numbers in one message
MAX_VALUE = 1e18


@dataclass(frozen=True)
class Sample:
    """One number. value: of a histogram the sum, whose observations by bucket are `buckets`."""

    name: str
    labels: Labels
    value: float
    buckets: tuple[int, ...] = ()


class Exporter:
    """The end of a rank: it returns the metrics that changed since the last call."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._said: dict[tuple[str, Labels], tuple[float, tuple[int, ...]]] = {}

    def news(self) -> list[Sample]:
        """Brings gauges up to date first. Any thread but a busy one may call it, one at a time."""
        for refresh in self._metrics.gauges:
            refresh(self._metrics)
        return [n for name, family in self._metrics.told().items() for n in self._of(name, family)]

    def _of(self, name: str, family: Family) -> Iterator[Sample]:
        for labels, found in family.rows():
            is_times = isinstance(found, Histogram)
            now = (found.total_s, tuple(found.counts)) if is_times else (float(found), ())
            key, (value, buckets) = (name, labels), now
            is_news = value > 0 if isinstance(family, Peaks) else now != self._said.get(key)
            if is_news and family.knows(labels):
                self._said[key] = now
                yield Sample(name, labels, value, buckets)


class Aggregator:
    """The end of a daemon: it adds the samples of one rank of `job` to those of this process."""

    def __init__(self, metrics: Metrics, job: str) -> None:
        self._families, self._job = metrics.told(), job
        self._heard: dict[str, dict[Labels, tuple[float, tuple[int, ...]]]] = {}

    def take(self, told: Iterable[Sample]) -> int:
        """Returns how many make no sense and were left out."""
        return sum(not self._take(number) for number in told)

    def ended(self) -> None:
        """Reset the gauges, which held only while the rank lived."""
        for name, heard in self._heard.items():
            if isinstance(family := self._families[name], Gauges):
                for labels in heard:
                    family.take(self._job, labels, 0.0, ())
        self._heard.clear()

    def _take(self, told: Sample) -> bool:
        family = self._families.get(told.name)
        if family is None or not family.knows(told.labels):
            return False
        if not all(0 <= number < MAX_VALUE for number in (told.value, *told.buckets)):
            return False
        heard = self._heard.setdefault(told.name, {})
        value, buckets = told.value, told.buckets
        if isinstance(family, (Counts, Times)):
            value, buckets = _growth(heard.get(told.labels, (0.0, ())), told)
            if value < 0 or any(n < 0 for n in buckets):
                return False  # counts do not shrink
        heard[told.labels] = told.value, told.buckets
        family.take(self._job, told.labels, value, buckets)
        return True


def _growth(before: tuple[float, tuple[int, ...]], now: Sample) -> tuple[float, tuple[int, ...]]:
    value, old = before
    padded = old + (0,) * (len(now.buckets) - len(old))
    grown = tuple(n - b for n, b in zip(now.buckets, padded, strict=False))
    return now.value - value, grown
