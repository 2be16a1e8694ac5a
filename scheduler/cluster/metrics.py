"""The counters of a cluster's scheduler, and how a scrape sees them.

Counters are plain numbers that the loop increments. Gauges are put together by the loop once a
tick (`Gauges`, replaced as a whole), so that a scrape, which runs in a thread of its own, never
looks at what is being changed.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from oneflow import __version__
from oneflow.core.control_channel import PROTOCOL
from oneflow.core.metrics import FAST_BUCKETS, METRICS, Histogram
from oneflow.scheduler.cluster.driver import Listener
from oneflow.scheduler.jobs.events import (
    Action,
    DaemonGone,
    DaemonJoined,
    Event,
    Heard,
    Rejected,
    Submitted,
    TellWelcome,
)
from oneflow.scheduler.jobs.limits import DEVICE_TYPES
from oneflow.scheduler.jobs.records import (
    REASONS,
    DaemonRecord,
    DaemonState,
    JobRecord,
    JobState,
)
from oneflow.scheduler.jobs.table import Table
from oneflow.services.metrics_page import counter, gauge, histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

SLOW_BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
LAG_S = 0.1
AUTH_REASONS = ("missing", "bad", "expired", "role")
LOSSES = ("silent", "died", "left")
REJECTIONS = ("oversize", "malformed", "stale_epoch", "duplicate", "unknown")
_WAITING = (JobState.QUEUED, JobState.RESTARTING)


@dataclass(frozen=True)
class Gauges:
    """All that is a state and not a count, at one moment."""

    jobs: Mapping[str, int] = field(default_factory=dict)
    daemons: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[tuple[str, str], int] = field(default_factory=dict)
    desired: Mapping[str, int] = field(default_factory=dict)
    oldest_s: Mapping[str, float] = field(default_factory=dict)
    heartbeat_age_s: float = 0.0


class ClusterMetrics(Listener):
    """Everything the scheduler's process counts."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self.gauges = Gauges()
        # From zero on: a series that begins with its first 1 has not increased for an alert.
        self.submitted: Counter[str] = Counter(dict.fromkeys(DEVICE_TYPES, 0))  # by queue
        self.rejected_jobs: Counter[str] = Counter(dict.fromkeys(("spec", "refused"), 0))
        self.finished: Counter[tuple[str, str]] = Counter()
        self.restarts: Counter[str] = Counter(dict.fromkeys(sorted(REASONS), 0))
        self.queue_wait = _histograms(SLOW_BUCKETS)
        self.starts = _histograms(SLOW_BUCKETS)
        self.runs = _histograms(SLOW_BUCKETS)
        self.joined = 0
        self.lost: Counter[str] = Counter(dict.fromkeys(LOSSES, 0))
        self.detection: dict[str, Histogram] = {}
        self.rpcs: Counter[tuple[str, str]] = Counter()
        self.rpc_seconds: dict[str, Histogram] = {}
        self.auth_failures: Counter[str] = Counter(dict.fromkeys(AUTH_REASONS, 0))
        self.rejected: Counter[str] = Counter(dict.fromkeys(REJECTIONS, 0))
        self.loop_lag = Histogram(FAST_BUCKETS)
        self.journal = Histogram(FAST_BUCKETS)
        self.recoveries: Counter[str] = Counter(
            dict.fromkeys(("reattached", "requeued", "failed"), 0)
        )
        self.certificates: dict[str, float] = {}  # component -> expiry, seconds since the epoch
        self._recovering: set[str] = set()
        self._lost: set[str] = set()
        self._placed_at: dict[str, float] = {}

    # -- counting ----------------------------------------------------------------------------------

    def message_rejected(self, reason: str) -> None:
        """reason: one of REJECTIONS."""
        self.rejected[reason] += 1

    def auth_failed(self, reason: str) -> None:
        """reason: one of AUTH_REASONS."""
        self.auth_failures[reason] += 1

    def rpc_done(self, method: str, code: str, seconds: float | None) -> None:
        """seconds: None for a stream, whose length says nothing."""
        self.rpcs[method, code] += 1
        if seconds is not None:
            self.rpc_seconds.setdefault(method, Histogram(FAST_BUCKETS)).observe(seconds)

    def failure_detected(self, kind: str, seconds: float) -> None:
        """Count a failure and the seconds until it was noticed.

        kind: process (a daemon's is gone), heartbeat (a daemon is silent) or rank (a daemon saw
        that its rank fails).
        """
        self.detection.setdefault(kind, Histogram(SLOW_BUCKETS)).observe(seconds)

    async def measure_lag(self) -> None:
        """Until cancelled: how much later than asked the loop wakes us."""
        while True:
            due = time.monotonic() + LAG_S
            await asyncio.sleep(LAG_S)
            self.loop_lag.observe(max(time.monotonic() - due, 0.0))

    # -- what the driver does ----------------------------------------------------------------------

    def recovering(self, jobs: Iterable[JobRecord]) -> None:
        """Jobs that were going on when the scheduler before this one ended."""
        going_on = (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)
        self._recovering = {job.id for job in jobs if job.state in going_on}

    def stepped(self, event: Event, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Rejected(reason=reason) if action.event is event and reason:
                    if not isinstance(event, DaemonGone):
                        self.rejected[reason if reason in REJECTIONS else "unknown"] += 1
                case Rejected() if isinstance(event, Submitted):
                    self.rejected_jobs["refused"] += 1
                case TellWelcome() if isinstance(event, DaemonJoined):
                    self.joined += 1
        if isinstance(event, Heard) and event.kind == "failing":
            self.failure_detected("rank", event.message.failing.seen_s)
        if isinstance(event, DaemonGone) and event.reason in ("left", "died"):
            self.lost[event.reason] += 1
            self._lost.add(event.daemon)  # counted: not once more as silent

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        if now is None:
            if before is not None:
                self._placed_at.pop(before.id, None)
            return
        queue = now.spec.device_type
        if before is None:
            self.submitted[queue] += 1
        if before is not None and before.state is now.state and before.attempt == now.attempt:
            return
        self._count_start(before, now, queue)
        if now.state is JobState.RESTARTING:
            self.restarts[_reason(now.reason)] += 1
        if now.state.is_final and (before is None or not before.state.is_final):
            self.finished[now.state.value, _reason(now.reason)] += 1
            self._placed_at.pop(now.id, None)
            if now.started_at:
                self.runs[queue].observe(max(now.finished_at - now.started_at, 0.0))

    def _count_start(self, before: JobRecord | None, now: JobRecord, queue: str) -> None:
        wall = time.time()
        if before is None or now.attempt > before.attempt:
            if now.attempt:
                self._placed_at[now.id] = wall
            if now.attempt == 1:
                self.queue_wait[queue].observe(max(wall - now.submitted_at, 0.0))
        placed_at = self._placed_at.get(now.id)
        if now.state is JobState.RUNNING and placed_at is not None:
            self.starts[queue].observe(max(wall - placed_at, 0.0))
            del self._placed_at[now.id]

    def refresh(self, table: Table, now: float) -> None:
        """Puts the gauges together; on the loop."""
        jobs, daemons = table.jobs.values(), list(table.daemons.values())
        live = [d for d in daemons if d.state is not DaemonState.LOST]
        self.gauges = Gauges(
            jobs={str(s): 0 for s in JobState} | Counter(str(job.state) for job in jobs),
            daemons={str(s): 0 for s in DaemonState} | Counter(str(d.state) for d in daemons),
            slots=_slots(daemons, table.jobs),
            desired=_desired(jobs),
            oldest_s=_oldest(jobs, time.time()),
            heartbeat_age_s=max((now - d.heard_at for d in live), default=0.0),
        )
        self._look_at_recovered(table)
        self._look_at_lost(daemons, now)

    def _look_at_lost(self, daemons: Sequence[DaemonRecord], now: float) -> None:
        lost = {d.id: now - d.heard_at for d in daemons if d.state is DaemonState.LOST}
        for daemon in lost.keys() - self._lost:
            self.lost["silent"] += 1
            self.failure_detected("heartbeat", lost[daemon])
        self._lost = set(lost)

    def _look_at_recovered(self, table: Table) -> None:
        for job_id in list(self._recovering):
            result = _recovered(table, job_id)
            if result:
                self._recovering.discard(job_id)
                if result != "removed":
                    self.recoveries[result] += 1

    def journal_nbytes(self) -> int:
        """Return the size of the database and its log."""
        total = 0
        for suffix in ("", "-wal"):
            try:
                total += self._database.with_name(self._database.name + suffix).stat().st_size
            except OSError:
                continue
        return total


def _histograms(bounds: tuple[float, ...]) -> dict[str, Histogram]:
    """One a queue; there is a queue for each type of device."""
    return {queue: Histogram(bounds) for queue in DEVICE_TYPES}


def _reason(reason: str) -> str:
    return reason if reason in REASONS else "INTERNAL"


def _slots(
    daemons: Sequence[DaemonRecord], jobs: Mapping[str, JobRecord]
) -> dict[tuple[str, str], int]:
    states = ("free", "used", "reserved", "unhealthy")
    found = {(kind, state): 0 for kind in DEVICE_TYPES for state in states}
    for daemon in daemons:
        found[daemon.device_type, _slot_state(daemon, jobs)] += 1
    return found


def _slot_state(daemon: DaemonRecord, jobs: Mapping[str, JobRecord]) -> str:
    job = jobs.get(daemon.job)
    if daemon.state in (DaemonState.LOST, DaemonState.SUSPECT):
        return "unhealthy"
    if job is not None:
        return "reserved" if job.state is JobState.STARTING else "used"
    return "free" if daemon.state is DaemonState.UP and not daemon.job else "reserved"


def _desired(jobs: Iterable[JobRecord]) -> dict[str, int]:
    """Devices that all jobs which are not over would use at once."""
    found = dict.fromkeys(DEVICE_TYPES, 0)
    for job in jobs:
        if not job.state.is_final:
            found[job.spec.device_type] += job.spec.devices
    return found


def _oldest(jobs: Iterable[JobRecord], wall: float) -> dict[str, float]:
    found = dict.fromkeys(DEVICE_TYPES, 0.0)
    for job in jobs:
        if job.state in _WAITING:
            queue = job.spec.device_type
            found[queue] = max(found[queue], wall - job.submitted_at)
    return found


def _recovered(table: Table, job_id: str) -> str:
    """Return the outcome of a job that went on after a failure; "" if that is not clear yet."""
    job = table.jobs.get(job_id)
    if job is None:
        return "removed"
    if job.state in _WAITING:
        return "requeued"
    if job.state.is_final:
        return "failed" if job.state is JobState.FAILED else "reattached"
    attempt = table.attempts.live.get(job_id)
    ranks = attempt.ranks if attempt is not None else []
    return "reattached" if ranks and all(r.is_confirmed or r.is_over for r in ranks) else ""


# ---- showing -------------------------------------------------------------------------------------


def make_registry(metrics: ClusterMetrics) -> CollectorRegistry:
    """A registry of our own that shows `metrics`."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    return registry


class _Collector:
    """Builds the families at each scrape."""

    def __init__(self, metrics: ClusterMetrics) -> None:
        self._metrics = metrics

    def describe(self) -> list[Metric]:
        return []  # registering must not scrape

    def collect(self) -> Iterator[Metric]:
        yield _build_info()
        yield from self._jobs()
        yield from self._fleet()
        yield from self._calls()
        yield from self._inside()

    def _jobs(self) -> Iterator[Metric]:
        m, g = self._metrics, self._metrics.gauges
        yield gauge("oneflow_scheduler_jobs", "Jobs.", _rows("state", g.jobs))
        yield counter(
            "oneflow_scheduler_jobs_submitted", "Jobs taken in.", _rows("queue", m.submitted)
        )
        yield counter(
            "oneflow_scheduler_jobs_rejected", "Jobs refused.", _rows("reason", m.rejected_jobs)
        )
        yield counter(
            "oneflow_scheduler_jobs_finished",
            "Jobs that ended.",
            [({"state": s, "reason": r}, n) for (s, r), n in list(m.finished.items())],
        )
        yield counter(
            "oneflow_scheduler_job_restarts",
            "Attempts that ended and are made again.",
            _rows("reason", m.restarts),
        )
        for name, text, kept in (
            ("queue_wait", "From submission to devices.", m.queue_wait),
            ("start", "From devices until all ranks are told to start.", m.starts),
            ("run", "From the first start to the end.", m.runs),
        ):
            rows = [({"queue": queue}, h) for queue, h in kept.items()]
            yield histogram(f"oneflow_scheduler_job_{name}_seconds", text, rows)
        yield gauge(
            "oneflow_scheduler_queue_oldest_age_seconds",
            "Age of the job that has waited for longest.",
            _rows("queue", g.oldest_s),
        )

    def _fleet(self) -> Iterator[Metric]:
        m, g = self._metrics, self._metrics.gauges
        yield gauge("oneflow_scheduler_daemons", "Daemons.", _rows("state", g.daemons))
        yield counter("oneflow_scheduler_daemons_joined", "Joinings.", [({}, m.joined)])
        yield counter("oneflow_scheduler_daemons_lost", "Daemons gone.", _rows("reason", m.lost))
        yield gauge(
            "oneflow_scheduler_heartbeat_age_max_seconds",
            "Age of the oldest last heartbeat.",
            [({}, g.heartbeat_age_s)],
        )
        yield histogram(
            "oneflow_scheduler_failure_detection_seconds",
            "From a failure until it was noticed.",
            [({"kind": kind}, h) for kind, h in list(m.detection.items())],
        )
        yield gauge(
            "oneflow_scheduler_slots",
            "Devices.",
            [({"device_type": d, "state": s}, n) for (d, s), n in g.slots.items()],
        )
        yield gauge(
            "oneflow_scheduler_slots_desired",
            "Devices that all jobs which are not over would use at once.",
            _rows("device_type", g.desired),
        )

    def _calls(self) -> Iterator[Metric]:
        m = self._metrics
        yield counter(
            "oneflow_scheduler_rpc_requests",
            "Calls answered.",
            [({"method": a, "code": b}, n) for (a, b), n in list(m.rpcs.items())],
        )
        yield histogram(
            "oneflow_scheduler_rpc_duration_seconds",
            "Time to answer a call that is not a stream.",
            [({"method": k}, h) for k, h in list(m.rpc_seconds.items())],
        )
        yield counter(
            "oneflow_scheduler_auth_failures", "Calls refused.", _rows("reason", m.auth_failures)
        )
        yield counter(
            "oneflow_scheduler_messages_rejected", "Messages refused.", _rows("reason", m.rejected)
        )

    def _inside(self) -> Iterator[Metric]:
        m = self._metrics
        yield histogram(
            "oneflow_scheduler_loop_lag_seconds",
            "How much later than asked the loop woke.",
            [({}, m.loop_lag)],
        )
        compiles = METRICS.scheduler
        passes = [({"pass": name}, h) for name, h in list(compiles.passes.items())]
        yield histogram(
            "oneflow_scheduler_compile_duration_seconds",
            "Time of compiles, by pass.",
            [({"pass": "all"}, compiles.compiles), *passes],
        )
        yield histogram(
            "oneflow_scheduler_journal_write_seconds",
            "Time to make a batch of changes durable.",
            [({}, m.journal)],
        )
        yield gauge(
            "oneflow_scheduler_journal_bytes",
            "Size of the database and its log.",
            [({}, m.journal_nbytes())],
        )
        yield counter(
            "oneflow_scheduler_recoveries",
            "What became of jobs that went on when the scheduler was restarted.",
            _rows("result", m.recoveries),
        )
        yield gauge(
            "oneflow_tls_certificate_expiry_timestamp_seconds",
            "When the certificate expires.",
            _rows("component", m.certificates),
        )


def _rows(label: str, values: Mapping[str, float]) -> list[tuple[dict[str, str], float]]:
    return [({label: key}, value) for key, value in list(values.items())]


def _build_info() -> Metric:
    labels = {
        "component": "scheduler",
        "version": __version__,
        "python": platform.python_version(),
        "protocol": str(PROTOCOL),
    }
    return gauge("oneflow_build_info", "What runs here.", [(labels, 1)])
