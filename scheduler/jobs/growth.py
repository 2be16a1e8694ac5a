"""Elastic jobs that run on fewer devices than they may have, when more are free.

A loss needs nothing here: the attempt ends as any that loses a rank, and the next one begins
on the devices that are left, if these are enough. Rules that the code cannot show:
* An attempt is stopped, in order, to start again on more devices once they have been free for
  grow_s, so that several that join together cost one stop.
* Nobody grows onto devices of a type for which a job waits that the cluster could run, and that
  its queue has room for; nor beyond the limits of its own queue.
* Neither counts as a restart of the program's, nor as one without progress (see ending.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from oneflow.scheduler.jobs.attempt import Attempt, Intent
from oneflow.scheduler.jobs.attempts import Attempts
from oneflow.scheduler.jobs.fleet import Fleet
from oneflow.scheduler.jobs.queue import allowed, largest
from oneflow.scheduler.jobs.quotas import Quotas
from oneflow.scheduler.jobs.records import DaemonRecord, DaemonState, JobRecord, JobState
from oneflow.scheduler.jobs.step_context import StepContext


class Growth:
    """waiting: asks for the jobs that wait for devices."""

    def __init__(
        self,
        desk: StepContext,
        fleet: Fleet,
        attempts: Attempts,
        waiting: Callable[[], Iterable[JobRecord]],
    ) -> None:
        self._desk, self._fleet, self._attempts = desk, fleet, attempts
        self._waiting = waiting
        self._since: dict[str, float] = {}  # by job: when it could first have had more devices

    def look(self) -> None:
        """Stop the attempts whose time to grow has come."""
        small = [a for a in self._attempts.live.values() if self._may_grow(a)]
        free, quotas = self._free() if small else {}, self._desk.quotas()
        could: dict[str, float] = {}
        for attempt in small:
            more = self._larger(attempt, free, quotas)
            if not more:
                continue
            since = could[attempt.job_id] = self._since.get(attempt.job_id, self._desk.now)
            if self._desk.now - since >= self._desk.settings.grow_s:
                why = f"goes on with {more} devices instead of {len(attempt.ranks)}"
                self._attempts.stop(attempt, Intent.RESCHEDULE, why)
        self._since = could

    def _may_grow(self, attempt: Attempt) -> bool:
        job = self._desk.jobs[attempt.job_id]
        is_running = job.state is JobState.RUNNING and not attempt.is_stopping
        return is_running and len(attempt.ranks) < job.spec.most

    def _free(self) -> dict[str, list[DaemonRecord]]:
        """Devices that nobody holds or waits for, by type."""
        daemons = self._fleet.daemons.values()
        present = [d for d in daemons if d.state in (DaemonState.UP, DaemonState.SUSPECT)]
        found: dict[str, list[DaemonRecord]] = {}
        for daemon in present:
            if self._is_up(daemon) and not daemon.job:
                found.setdefault(daemon.device_type, []).append(daemon)
        quotas = self._desk.quotas()
        for job in self._waiting():
            kind = job.spec.device_type
            if quotas.room(job) < job.spec.devices:
                continue
            if kind in found and largest(job.spec, [d for d in present if d.device_type == kind]):
                usable = {daemon.id for daemon in allowed(job.spec, found[kind])}
                found[kind] = [daemon for daemon in found[kind] if daemon.id not in usable]
        return found

    def _is_up(self, daemon: DaemonRecord) -> bool:
        return daemon.state is DaemonState.UP and daemon.id not in self._fleet.away

    def _larger(self, attempt: Attempt, free: dict[str, list[DaemonRecord]], quotas: Quotas) -> int:
        """The size in which a job could go on, whose devices are free for nobody else then; 0 if
        that is not larger.
        """
        job = self._desk.jobs[attempt.job_id]
        spec = job.spec
        own = [self._fleet.daemons.get(rank.daemon) for rank in attempt.ranks]
        known = [daemon for daemon in own if daemon is not None and self._is_up(daemon)]
        others = free.get(spec.device_type, [])
        if len(known) < len(own) or not others:
            return 0
        both = sorted([*known, *others], key=lambda d: (d.node, d.device_index, d.id))
        chosen = largest(spec, both, len(own) + quotas.left(job))
        if len(chosen) <= len(own):
            return 0
        quotas.take(job, len(chosen) - len(own))
        taken = {daemon.id for daemon in chosen}
        free[spec.device_type] = [daemon for daemon in others if daemon.id not in taken]
        return len(chosen)
