"""The page of a process's counters (metrics.py): Prometheus families, made when a scrape asks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oneflow import __version__
from oneflow.core.control_channel import PROTOCOL
from oneflow.core.metrics import METRICS, JobCounters, Metrics
from oneflow.core.metrics_families import Counts, Family, Histogram, Times

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


def make_registry(metrics: Metrics = METRICS, component: str = "rank") -> CollectorRegistry:
    """A registry of our own (never the global one) that shows `metrics`."""
    return registry_of(_Page(metrics, component).families)


def registry_of(families: Callable[[], Iterator[Metric]]) -> CollectorRegistry:
    """Make a registry that shows the families that `families` yields at each scrape."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(_Collector(families))
    return registry


class _Collector:
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self.collect = families

    def describe(self) -> list[Metric]:
        return []  # registering must not scrape


class _Page:
    """The page of a rank or a daemon."""

    def __init__(self, metrics: Metrics, component: str) -> None:
        self._metrics = metrics
        self._component = component

    def families(self) -> Iterator[Metric]:
        for refresh in self._metrics.gauges:
            refresh(self._metrics)
        others = list(self._without_jobs())
        yield from others
        yield from self._of_jobs(MAX_SERIES - sum(len(family.samples) for family in others))

    def _without_jobs(self) -> Iterator[Metric]:
        yield build_info(self._component)
        if self._component != "daemon":
            yield from families_of(self._metrics.scheduler)
        yield from families_of(self._metrics)
        for families in self._metrics.collectors:
            yield from families(self._metrics)

    def _of_jobs(self, room: int) -> Iterator[Metric]:
        """Yield at most `room` series of jobs."""
        m = self._metrics
        m.forget_ended()
        jobs = shown_jobs(m, room)
        for make, name, text, rows in JOB_FAMILIES:
            yield make(
                name,
                text,
                [
                    ({"job": job} | labels, value)
                    for job, c in jobs
                    for labels, value in rows(c, _rank(c.rank, m.rank))
                ],
            )


MAX_SERIES = 1500  # of a page


def build_info(component: str) -> Metric:
    labels = {
        "component": component,
        "version": __version__,
        "python": platform.python_version(),
        "protocol": str(PROTOCOL),
    }
    return gauge("oneflow_build_info", "What runs here.", [(labels, 1)])


def families_of(owner: object) -> Iterator[Metric]:
    """The families that are attributes of an object, in their order."""
    for found in list(vars(owner).values()):
        if isinstance(found, Family) and found.name:
            make: Callable[[str, str, Sequence[Any]], Metric] = gauge
            if isinstance(found, (Counts, Times)):
                make = counter if isinstance(found, Counts) else histogram
            rows = [(dict(zip(found.labels, key, strict=True)), n) for key, n in found.rows()]
            yield make(found.name, found.text, rows)


def gauge(name: str, text: str, rows: Sequence[Row]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _fill(GaugeMetricFamily(name, text), name, rows)


def counter(name: str, text: str, rows: Sequence[Row]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _fill(CounterMetricFamily(name, text), f"{name}_total", rows)


def _fill(family: Any, sample: str, rows: Sequence[Row]) -> Metric:
    for labels, value in rows:
        family.add_sample(sample, labels, value)
    filled: Metric = family
    return filled


def histogram(name: str, text: str, rows: Sequence[tuple[dict[str, str], Histogram]]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text)
    for labels, histogram in rows:
        buckets = histogram.cumulative()
        for bound, count in buckets:
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_count", labels, buckets[-1][1])
        family.add_sample(f"{name}_sum", labels, histogram.total_s)
    return family


def _rank(own: int | None, of_process: int | None) -> str:
    rank = of_process if own is None else own
    return "" if rank is None else str(rank)


def shown_jobs(m: Metrics, room: int) -> list[tuple[str, JobCounters]]:
    """Jobs that are on the page, in the order in which they came: those that go on, then the last
    ones that ended, as long as their series fit into `room`.
    """
    jobs = list(m.train.copy().items())
    shown = set()
    for job, c in sorted(reversed(jobs), key=lambda item: item[1].ended_at > 0):
        room -= sum(len(rows(c, "")) for *_, rows in JOB_FAMILIES)
        if room >= 0:
            shown.add(job)
    return [(job, c) for job, c in jobs if job in shown]


def _nonfinite(c: JobCounters) -> list[tuple[str, int]]:
    """Return the non-finite losses: from zero on while the job goes on, for an alert; later only if
    there is something.
    """
    is_shown = not c.ended_at or any(c.nonfinite.values())
    return list(c.nonfinite.copy().items()) if is_shown else []


Row = tuple[dict[str, str], float]
JobRows = Callable[[JobCounters, str], list[Row]]
JOB_FAMILIES: tuple[tuple[Callable[[str, str, Sequence[Row]], Metric], str, str, JobRows], ...] = (
    (counter, "oneflow_train_steps", "Optimizer steps.", lambda c, rank: [({}, c.steps)]),
    (counter, "oneflow_train_samples", "Samples seen.", lambda c, rank: [({}, c.samples)]),
    (
        gauge,
        "oneflow_train_running",
        "Whether the job goes on here; 0 for one that ended and is shown for a while.",
        lambda c, rank: [({}, float(not c.ended_at))],
    ),
    (
        gauge,
        "oneflow_train_last_step",
        "Index of the last finished step.",
        lambda c, rank: [({"rank": rank}, c.last_step)],
    ),
    (
        gauge,
        "oneflow_train_last_step_timestamp_seconds",
        "When the last step finished.",
        lambda c, rank: [({"rank": rank}, c.last_step_at)],
    ),
    (
        gauge,
        "oneflow_train_loss",
        "The last loss that was reported.",
        lambda c, rank: [] if c.loss is None else [({}, c.loss)],
    ),
    (
        counter,
        "oneflow_train_nonfinite",
        "Numbers of steps that were not finite.",
        lambda c, rank: [({"where": where}, n) for where, n in _nonfinite(c)],
    ),
    (
        gauge,
        "oneflow_checkpoint_last_step",
        "Step of the last complete checkpoint.",
        lambda c, rank: [({}, c.checkpoint_step)] if c.checkpoint_at else [],
    ),
    (
        gauge,
        "oneflow_checkpoint_last_success_timestamp_seconds",
        "When the last checkpoint was complete.",
        lambda c, rank: [({}, c.checkpoint_at)] if c.checkpoint_at else [],
    ),
)
