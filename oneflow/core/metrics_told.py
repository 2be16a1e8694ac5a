"""The counts that a rank's process tells its daemon, so that one page shows both.

A rank tells numbers since it began, the daemon adds what they have grown by: its own never go down
when one rank follows another. What is no count holds for as long as the rank lives. The families
are those of metrics_families.py; what comes from another process is checked against them: names,
labels, which all have few values that are known, and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from oneflow.core.metrics import Histogram, Metrics
from oneflow.core.metrics_families import BY_NAME, FAMILIES, Family, How, Labels

MAX_TOLD = 2000  # numbers in one message
MAX_VALUE = 1e18


@dataclass(frozen=True)
class Told:
    """One number. value: of a histogram the sum, whose observations by bucket are `buckets`."""

    name: str
    labels: Labels
    value: float
    buckets: tuple[int, ...] = ()


class Teller:
    """The end of a rank: it returns what has changed since it was asked last."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._said: dict[tuple[str, Labels], tuple[float, tuple[int, ...]]] = {}

    def news(self) -> list[Told]:
        """Brings gauges up to date first. Any thread but a busy one may call it, one at a time."""
        for refresh in self._metrics.gauges:
            refresh(self._metrics)
        return [told for family in FAMILIES for told in self._of(family)]

    def _of(self, family: Family) -> Iterator[Told]:
        for labels, found in family.read(self._metrics):
            now: tuple[float, tuple[int, ...]]
            if isinstance(found, Histogram):
                now = found.total_s, tuple(found.counts)
            else:
                now = found, ()
            key, (value, buckets) = (family.name, labels), now
            is_news = value > 0 if family.how is How.MOST else now != self._said.get(key)
            if is_news:
                self._said[key] = now
                yield Told(family.name, labels, value, buckets)


class Listener:
    """The end of a daemon: it adds what one rank of `job` tells to what this process shows."""

    def __init__(self, metrics: Metrics, job: str) -> None:
        self._metrics, self._job = metrics, job
        self._heard: dict[str, dict[Labels, tuple[float, tuple[int, ...]]]] = {}

    def take(self, told: Iterable[Told]) -> int:
        """Returns how many make no sense and were left out."""
        return sum(not self._take(number) for number in told)

    def ended(self) -> None:
        """Reset what held only while the rank lived."""
        for name, heard in self._heard.items():
            family = BY_NAME[name]
            if family.how is How.NOW:
                for labels in heard:
                    family.add(self._metrics, self._job, labels, 0.0, ())
        self._heard.clear()

    def _take(self, told: Told) -> bool:
        family = BY_NAME.get(told.name)
        if family is None or not family.knows(told.labels):
            return False
        if not all(0 <= number < MAX_VALUE for number in (told.value, *told.buckets)):
            return False
        heard = self._heard.setdefault(told.name, {})
        value, buckets = told.value, told.buckets
        if family.how in (How.COUNT, How.TIMES):
            value, buckets = _growth(heard.get(told.labels, (0.0, ())), told)
            if value < 0 or any(n < 0 for n in buckets):
                return False  # counts do not shrink
        heard[told.labels] = told.value, told.buckets
        family.add(self._metrics, self._job, told.labels, value, buckets)
        return True


def _growth(before: tuple[float, tuple[int, ...]], now: Told) -> tuple[float, tuple[int, ...]]:
    value, old = before
    padded = old + (0,) * (len(now.buckets) - len(old))
    grown = tuple(n - b for n, b in zip(now.buckets, padded, strict=False))
    return now.value - value, grown
