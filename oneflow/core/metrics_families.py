"""Families of counters: numbers of one name, by the values of their labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

FAST_BUCKETS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # seconds
WIDE_BUCKETS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)


class Histogram:
    """Counts of durations in fixed buckets."""

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, observations at or below it), as Prometheus wants them."""
        rows, running = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), float(running)))
        return rows


Key: TypeAlias = "str | tuple[str, ...]"
Buckets = tuple[int, ...]
Labels = tuple[str, ...]


class Family(dict[Any, Any], ABC):
    """Numbers of one name on a page, by their labels: a Key, () where there are none.

    labels: those whose values nobody knows.  known: the values of the others.  start: keys that are
    shown from zero on: a series that begins with its first 1 has not increased for an alert.
    """

    def __init__(
        self,
        name: str,
        text: str,
        *labels: str,
        start: Iterable[Key] = (),
        **known: Iterable[str],
    ) -> None:
        super().__init__()
        self.name, self.text, self.labels = name, text, (*labels, *known)
        self.known = {label: frozenset(values) for label, values in known.items()}
        for key in start:
            self[key] = self[key]

    def __missing__(self, key: Key) -> Any:
        return 0

    def rows(self) -> Iterator[tuple[Labels, Any]]:
        """Labels and number of each series now."""
        # A copy: other threads count on while this list of pairs is made.
        for key, value in self.copy().items():
            yield key if isinstance(key, tuple) else (key,), value

    def knows(self, labels: Labels) -> bool:
        """Whether they may come from another process: all have values that are known."""
        return len(labels) == len(self.labels) == len(self.known) and all(
            label in known for label, known in zip(labels, self.known.values(), strict=True)
        )

    def take(self, job: str, labels: Labels, value: float, buckets: Buckets) -> None:
        """Add a number from a rank of `job`: the growth of a count, or a value of this moment."""
        self._take(labels[0] if len(labels) == 1 else labels, value, buckets)

    @abstractmethod
    def _take(self, key: Key, value: float, buckets: Buckets) -> None: ...


class Counts(Family):
    """Numbers that only grow."""

    def _take(self, key: Key, value: float, buckets: Buckets) -> None:
        self[key] += value


class Gauges(Family):
    """Numbers that hold at this moment; of a rank that has ended they are 0.

    own: those that are looked up when somebody asks; they add to the values that others told.
    """

    own: Callable[[], Mapping[str, float]] | None = None

    def rows(self) -> Iterator[tuple[Labels, Any]]:
        found = dict(self)
        for key, value in (self.own() if self.own is not None else {}).items():
            found[key] = found.get(key, 0) + value
        for key, value in found.items():
            yield key if isinstance(key, tuple) else (key,), value

    def _take(self, key: Key, value: float, buckets: Buckets) -> None:
        self[key] = value


class Peaks(Family):
    """The most there was. forgets: since somebody asked last."""

    forgets = False

    def rows(self) -> Iterator[tuple[Labels, Any]]:
        found = list(super().rows())
        if self.forgets:
            self.update(dict.fromkeys(self, 0))
        yield from found

    def note(self, value: float, key: Key = ()) -> None:
        if value > self[key]:
            self[key] = value

    def _take(self, key: Key, value: float, buckets: Buckets) -> None:
        self.note(value, key)


class Times(Family):
    """Durations; the histogram of a key begins when it is first asked for."""

    def __init__(
        self,
        name: str,
        text: str,
        *labels: str,
        bounds: tuple[float, ...] = FAST_BUCKETS,
        start: Iterable[Key] = (),
        **known: Iterable[str],
    ) -> None:
        self.bounds = bounds
        super().__init__(name, text, *labels, start=start, **known)

    def __missing__(self, key: Key) -> Any:
        return self.setdefault(key, Histogram(self.bounds))

    def _take(self, key: Key, value: float, buckets: Buckets) -> None:
        histogram: Histogram = self[key]
        histogram.total_s += value
        for index, count in enumerate(buckets[: len(histogram.counts)]):
            histogram.counts[index] += count
