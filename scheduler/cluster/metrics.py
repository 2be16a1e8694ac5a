"""The counters of a cluster's scheduler, and how a scrape sees them.

They are plain numbers that the loop sets; states, which are no counts, are put together once
a tick. A scrape runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from oneflow.core.metrics import METRICS
from oneflow.core.metrics_families import Counts, Gauges, Times
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
from oneflow.services.metrics_page import build_info, families_of, registry_of

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

SLOW_BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
LAG_S = 0.1
AUTH_REASONS = ("missing", "bad", "expired", "role")
LOSSES = ("silent", "died", "left")
DETECTIONS = ("process", "heartbeat", "rank")
REJECTIONS = ("oversize", "malformed", "stale_epoch", "duplicate", "unknown")
SLOT_STATES = ("free", "used", "reserved", "unhealthy")
_WAITING = (JobState.QUEUED, JobState.RESTARTING)


class ClusterMetrics(Listener):
    """Everything the scheduler's process counts: families of its page, in their order."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self.jobs = Gauges("oneflow_scheduler_jobs", "Jobs.", "state")
        self.submitted = Counts(
            "oneflow_scheduler_jobs_submitted", "Jobs taken in.", "queue", start=DEVICE_TYPES
        )
        self.rejected_jobs = Counts(
            "oneflow_scheduler_jobs_rejected", "Jobs refused.", "reason", start=("spec", "refused")
        )
        self.finished = Counts(
            "oneflow_scheduler_jobs_finished", "Jobs that ended.", "state", "reason"
        )
        self.restarts = Counts(
            "oneflow_scheduler_job_restarts",
            "Attempts that ended and are made again.",
            "reason",
            start=sorted(REASONS),
        )
        self.queue_wait = _of_jobs("queue_wait", "From submission to devices.")
        self.starts = _of_jobs("start", "From devices until all ranks are told to start.")
        self.runs = _of_jobs("run", "From the first start to the end.")
        self.oldest = Gauges(
            "oneflow_scheduler_queue_oldest_age_seconds",
            "Age of the job that has waited for longest.",
            "queue",
        )
        self.daemons = Gauges("oneflow_scheduler_daemons", "Daemons.", "state")
        self.joined = Counts("oneflow_scheduler_daemons_joined", "Joinings.", start=[()])
        self.lost = Counts(
            "oneflow_scheduler_daemons_lost", "Daemons gone.", "reason", start=LOSSES
        )
        self.heartbeat_age = Gauges(
            "oneflow_scheduler_heartbeat_age_max_seconds",
            "Age of the oldest last heartbeat.",
            start=[()],
        )
        self.detection = Times(
            "oneflow_scheduler_failure_detection_seconds",
            "From a failure until it was noticed.",
            "kind",
            bounds=SLOW_BUCKETS,
            start=DETECTIONS,
        )
        self.slots = Gauges("oneflow_scheduler_slots", "Devices.", "device_type", "state")
        self.desired = Gauges(
            "oneflow_scheduler_slots_desired",
            "Devices that all jobs which are not over would use at once.",
            "device_type",
        )
        self.rpcs = Counts("oneflow_scheduler_rpc_requests", "Calls answered.", "method", "code")
        self.rpc_seconds = Times(
            "oneflow_scheduler_rpc_duration_seconds",
            "Time to answer a call that is not a stream.",
            "method",
        )
        self.auth_failures = Counts(
            "oneflow_scheduler_auth_failures", "Calls refused.", "reason", start=AUTH_REASONS
        )
        self.rejected = Counts(
            "oneflow_scheduler_messages_rejected", "Messages refused.", "reason", start=REJECTIONS
        )
        self.loop_lag = Times(
            "oneflow_scheduler_loop_lag_seconds", "How much later than asked the loop woke.",
            start=[()],
        )  # fmt: skip
        self.end_hooks = Counts(
            "oneflow_scheduler_end_hooks",
            "Runs of the command of --on-end.",
            "result",
            start=("ok", "failed", "late", "dropped"),
        )
        self.compiles = METRICS.scheduler.passes
        self.writes = Times(
            "oneflow_scheduler_journal_write_seconds",
            "Time to make a batch of changes durable.",
            start=[()],
        )
        self.journal_nbytes = Gauges(
            "oneflow_scheduler_journal_bytes", "Size of the database and its log.", start=[()]
        )
        self.recoveries = Counts(
            "oneflow_scheduler_recoveries",
            "What became of jobs that went on when the scheduler was restarted.",
            "result",
            start=("reattached", "requeued", "failed"),
        )
        self.certificates = Gauges(
            "oneflow_tls_certificate_expiry_timestamp_seconds",
            "When the certificate expires.",
            "component",
        )
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
            self.rpc_seconds[method].observe(seconds)

    def failure_detected(self, kind: str, seconds: float) -> None:
        """Count a failure and the seconds until it was noticed.

        kind: process (a daemon's is gone), heartbeat (a daemon is silent) or rank (a daemon saw
        that its rank fails).
        """
        self.detection[kind].observe(seconds)

    async def measure_lag(self) -> None:
        """Until cancelled: how much later than asked the loop wakes us."""
        while True:
            due = time.monotonic() + LAG_S
            await asyncio.sleep(LAG_S)
            self.loop_lag[()].observe(max(time.monotonic() - due, 0.0))

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
                    self.joined[()] += 1
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
        alike = Counter((d.device_type, d.state, d.job) for d in daemons)  # few of thousands differ
        heard_at = (d.heard_at for d in daemons if d.state is not DaemonState.LOST)
        self.jobs.update({str(s): 0 for s in JobState} | Counter(str(j.state) for j in jobs))
        states = dict.fromkeys(map(str, DaemonState), 0)
        slots = {(kind, state): 0 for kind in DEVICE_TYPES for state in SLOT_STATES}
        for (kind, state, job_id), count in alike.items():
            states[str(state)] += count
            slots[kind, _slot_state(state, table.jobs.get(job_id), job_id)] += count
        self.daemons.update(states)
        self.slots.update(slots)
        self.desired.update(_desired(jobs))
        self.oldest.update(_oldest(jobs, time.time()))
        self.heartbeat_age[()] = now - min(heard_at, default=now)
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

    def families(self) -> Iterator[Metric]:
        """The page, in a thread of its own."""
        self.journal_nbytes[()] = _nbytes(self._database)
        yield build_info("scheduler")
        yield from families_of(self)


def _of_jobs(name: str, text: str) -> Times:
    """Durations by queue; there is a queue for each type of device."""
    name = f"oneflow_scheduler_job_{name}_seconds"
    return Times(name, text, "queue", bounds=SLOW_BUCKETS, start=DEVICE_TYPES)


def _nbytes(database: Path) -> int:
    """The size of the database and its log."""
    total = 0
    for suffix in ("", "-wal"):
        with suppress(OSError):
            total += database.with_name(database.name + suffix).stat().st_size
    return total


def _reason(reason: str) -> str:
    return reason if reason in REASONS else "INTERNAL"


def _slot_state(state: DaemonState, job: JobRecord | None, job_id: str) -> str:
    if state in (DaemonState.LOST, DaemonState.SUSPECT):
        return "unhealthy"
    if job is not None:
        return "reserved" if job.state is JobState.STARTING else "used"
    return "free" if state is DaemonState.UP and not job_id else "reserved"


def _desired(jobs: Iterable[JobRecord]) -> dict[str, int]:
    """Devices that all jobs which are not over would use at once."""
    found = dict.fromkeys(DEVICE_TYPES, 0)
    for job in jobs:
        if not job.state.is_final:
            found[job.spec.device_type] += job.spec.most
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


def make_registry(metrics: ClusterMetrics) -> CollectorRegistry:
    """A registry of our own that shows `metrics`."""
    return registry_of(metrics.families)
