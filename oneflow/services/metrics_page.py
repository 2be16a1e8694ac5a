"""The page of a process's counters (metrics.py): Prometheus families, made when a scrape asks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oneflow import __version__
from oneflow.core.control_channel import PROTOCOL
from oneflow.core.host_memory import own_memory
from oneflow.core.metrics import (
    METRICS,
    Counts,
    Gauges,
    Histogram,
    JobCounters,
    Metrics,
    Times,
)
from oneflow.core.metrics_families import FAMILIES, How

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric


def make_registry(metrics: Metrics = METRICS, component: str = "rank") -> CollectorRegistry:
    """A registry of our own (never the global one) that shows `metrics`."""
    return registry_of(_Page(metrics, component).families)


def registry_of(families: Callable[[], Iterator[Metric]]) -> CollectorRegistry:
    """A registry that shows what `families` yields at each scrape."""
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
        yield from self._rows()
        yield from self._others()
        for families in self._metrics.collectors:
            yield from families(self._metrics)

    def _rows(self) -> Iterator[Metric]:
        for family in FAMILIES:
            if family.shown:
                rows = [
                    (dict(zip(family.labels, labels, strict=True)), value)
                    for labels, value in family.read(self._metrics)
                ]
                yield _SHOW[family.how](family.shown, family.text, rows)

    def _others(self) -> Iterator[Metric]:
        m = self._metrics
        yield family_of(m.heartbeats)
        transports = list(m.transports.items())
        yield counter(
            "oneflow_messages_sent",
            "Messages sent.",
            [({"transport": k}, c.sent) for k, c in transports],
        )
        yield counter(
            "oneflow_messages_received",
            "Messages received.",
            [({"transport": k}, c.received) for k, c in transports],
        )
        yield gauge(
            "oneflow_mailbox_depth_max",
            "Most messages found waiting at once since the last scrape.",
            [({}, max((c.depth_max for _, c in transports), default=0))],
        )
        for _, counters in transports:
            counters.depth_max = 0
        yield gauge(
            "oneflow_device_memory_bytes",
            "Memory of this rank's device.",
            [({"kind": k}, v) for k, v in {**m.device_memory, **m.capacity()}.items()],
        )
        yield gauge(
            "oneflow_host_memory_bytes",
            "Host memory of this process and of the rank that it runs.",
            [({"kind": k}, v) for k, v in _host_memory(m).items()],
        )

    def _of_jobs(self, room: int) -> Iterator[Metric]:
        """Yield at most `room` series of jobs."""
        m = self._metrics
        m.forget_ended()
        jobs = shown_jobs(m, room)
        labels = [({"job": k, "rank": _rank(c.rank, m.rank)}, c) for k, c in jobs]
        yield counter(
            "oneflow_train_steps", "Optimizer steps.", [({"job": k}, c.steps) for k, c in jobs]
        )
        yield counter(
            "oneflow_train_samples", "Samples seen.", [({"job": k}, c.samples) for k, c in jobs]
        )
        yield gauge(
            "oneflow_train_last_step",
            "Index of the last finished step.",
            [(who, c.last_step) for who, c in labels],
        )
        yield gauge(
            "oneflow_train_last_step_timestamp_seconds",
            "When the last step finished.",
            [(who, c.last_step_at) for who, c in labels],
        )
        losses = [({"job": k}, c.loss) for k, c in jobs if c.loss is not None]
        yield gauge("oneflow_train_loss", "The last loss that was reported.", losses)
        yield counter(
            "oneflow_train_nonfinite",
            "Numbers of steps that were not finite.",
            [({"job": k, "where": w}, n) for k, c in jobs for w, n in _nonfinite(c)],
        )
        saved = [(k, c) for k, c in jobs if c.checkpoint_at]
        yield gauge(
            "oneflow_checkpoint_last_step",
            "Step of the last complete checkpoint.",
            [({"job": k}, c.checkpoint_step) for k, c in saved],
        )
        yield gauge(
            "oneflow_checkpoint_last_success_timestamp_seconds",
            "When the last checkpoint was complete.",
            [({"job": k}, c.checkpoint_at) for k, c in saved],
        )


Labels = dict[str, str]
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
        if isinstance(found, (Counts, Gauges, Times)):
            yield family_of(found)


def family_of(found: Counts | Gauges | Times) -> Metric:
    """One family with what it holds now."""
    make: Callable[[str, str, Sequence[Any]], Metric] = gauge
    if isinstance(found, (Counts, Times)):
        make = counter if isinstance(found, Counts) else histogram
    rows = [
        (dict(zip(found.labels, key if isinstance(key, tuple) else (key,), strict=True)), value)
        for key, value in list(found.items())
    ]
    return make(found.name, found.text, rows)


def gauge(name: str, text: str, rows: Sequence[tuple[Labels, float]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return _fill(GaugeMetricFamily(name, text), name, rows)


def counter(name: str, text: str, rows: Sequence[tuple[Labels, float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    return _fill(CounterMetricFamily(name, text), f"{name}_total", rows)


def _fill(family: Any, sample: str, rows: Sequence[tuple[Labels, float]]) -> Metric:
    for labels, value in rows:
        family.add_sample(sample, labels, value)
    filled: Metric = family
    return filled


def histogram(name: str, text: str, rows: Sequence[tuple[Labels, Histogram]]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, text)
    for labels, histogram in rows:
        buckets = histogram.cumulative()
        for bound, count in buckets:
            family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
        family.add_sample(f"{name}_count", labels, buckets[-1][1])
        family.add_sample(f"{name}_sum", labels, histogram.total_s)
    return family


_SHOW: dict[How, Callable[[str, str, Sequence[Any]], Metric]] = {
    How.COUNT: counter,
    How.TIMES: histogram,
    How.NOW: gauge,
    How.MOST: gauge,
}


def _rank(own: int | None, of_process: int | None) -> str:
    rank = of_process if own is None else own
    return "" if rank is None else str(rank)


def shown_jobs(m: Metrics, room: int) -> list[tuple[str, JobCounters]]:
    """Jobs that are on the page, in the order in which they came: those that go on, then the last
    ones that ended, as long as their series fit into `room`.
    """
    jobs = list(m.train.items())
    shown = set()
    for job, c in sorted(reversed(jobs), key=lambda item: item[1].ended_at > 0):
        room -= 4 + (c.loss is not None) + 2 * bool(c.checkpoint_at) + len(_nonfinite(c))
        if room >= 0:
            shown.add(job)
    return [(job, c) for job, c in jobs if job in shown]


def _nonfinite(c: JobCounters) -> list[tuple[str, int]]:
    """Return the non-finite losses: from zero on while the job goes on, for an alert; later only if
    there is something.
    """
    is_shown = not c.ended_at or any(c.nonfinite.values())
    return list(c.nonfinite.items()) if is_shown else []


def _host_memory(m: Metrics) -> dict[str, int]:
    found = {"pinned": 0, **own_memory()}
    return {kind: nbytes + m.host_memory.get(kind, 0) for kind, nbytes in found.items()}
