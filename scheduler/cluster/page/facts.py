"""Facts about jobs and daemons as JSON for the page, bounded in size."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.auth import caller
from oneflow.scheduler.cluster.changes import may_change
from oneflow.scheduler.cluster.driver import by_id
from oneflow.scheduler.cluster.points import RankWaits
from oneflow.scheduler.cluster.views import Views
from oneflow.scheduler.jobs.records import DaemonRecord, JobRecord

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State

MAX_JOBS = 500  # of a list
MAX_RANKS = 512  # of one job, the first of them
MAX_POINTS = 2000  # of a curve; a longer one is thinned out
MAX_QUERY_CHARS = 200
GROUPS = {"active": False, "ended": True}  # is_final of the states


class Facts:
    """The answers about one scheduler's state, as the caller may see it."""

    def __init__(self, state: State) -> None:
        self._driver, self._points, self._paces = state.driver, state.points, state.paces
        self._views, self._lines = Views(state), state.lines

    def cluster(self) -> dict[str, Any]:
        """Return the caller, and all daemons in the order of their names."""
        who, now = caller(), time.monotonic()
        daemons = sorted(self._driver.table.daemons.values(), key=lambda d: d.id)
        return {
            "me": {"name": who.name, "role": who.role},
            "trouble": self._driver.trouble,
            "daemons": [_daemon(daemon, now) for daemon in daemons],
            "uses": {node: _use(use) for node, use in self._lines.uses().items()},
        }

    def jobs(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the newest jobs that fit, those that have not ended before all others.

        query: `q`, words that all must be in a job's id, name, owner or kind; `state`, one of
        them, or a key of GROUPS.
        """
        words = query.get("q", "")[:MAX_QUERY_CHARS].casefold().split()
        state = query.get("state", "")
        everything = by_id(self._driver.jobs)
        fitting = [r for r in everything if _has_state(r, state) and _has_words(r, words)]
        fitting.sort(key=lambda record: record.state.is_final)  # stable: the newest first
        return {
            "now": time.time(),
            "counts": Counter(record.state.value for record in everything),
            "total": len(fitting),
            "jobs": [self._job(record) for record in fitting[:MAX_JOBS]],
        }

    def _job(self, record: JobRecord) -> dict[str, Any]:
        return {
            "id": record.id,
            "name": record.spec.name,
            "kind": record.spec.kind.value,
            "devices": f"{record.spec.size} {record.spec.device_type}",
            "state": record.state.value,
            "reason": record.reason,
            "cause": record.cause,
            "attempt": record.attempt,
            "step": record.last_step,
            "total_steps": record.total_steps,
            "steps_per_s": self._paces.steps_per_s(record),
            "eta_s": self._paces.eta_s(record),
            "pending": self._views.pending(record) or record.pending,
            "owner": record.owner,
            "submitted_at": record.submitted_at,
            "started_at": record.started_at,
            "finished_at": record.finished_at,
        }

    def whole_job(self, record: JobRecord) -> dict[str, Any]:
        """Return all that is known of one job; its command as the caller may see it."""
        shown = self._views.shown(record)
        return self._job(record) | {
            "command": list(shown.spec.argv),
            "exit_code": record.exit_code,
            "failed_rank": record.first_failed_rank,
            "host": record.host,
            "pid": record.pid,
            "restarts_spent": record.restarts_spent,
            "max_restarts": record.spec.max_restarts,
            "time_limit_s": record.spec.time_limit_s,
            "ran_s": record.ran_s,
            "attempt_started_at": record.attempt_started_at,
            "warning": record.warning,
            "checkpoint": record.last_checkpoint,
            "checkpoint_step": record.last_checkpoint_step,
            "metrics": finite(record.metrics),
            "num_ranks": len(record.assignments),
            "ranks": self._ranks(record),
            "may_change": caller().role != "view" and may_change(caller(), record),
        }

    def _ranks(self, record: JobRecord) -> list[dict[str, Any]]:
        attempt = self._driver.table.attempts.live.get(record.id)
        phases = {r.number: r.phase.value for r in attempt.ranks} if attempt is not None else {}
        waits = {w.rank: w for w in self._points.waits.of(record.id)}
        return [
            {"rank": a.rank, "node": a.node, "device": a.device}
            | {"phase": phases.get(a.rank, "over"), "failed": a.rank == record.first_failed_rank}
            | _waits(waits.get(a.rank))
            for a in record.assignments[:MAX_RANKS]
        ]

    async def curve(self, job_id: str, start: int) -> dict[str, Any]:
        """Return the points of a job from index `start` on, and the index to go on from."""
        self._driver.job(job_id)
        points = [p async for p in self._points.read(job_id, start, follow=False)]
        every = max(1, -(-len(points) // MAX_POINTS))
        kept = points[::every] + ([points[-1]] if points and (len(points) - 1) % every else [])
        following = points[-1].index + 1 if points else start
        return {"points": [_point(p) for p in kept], "next": following}


def _daemon(daemon: DaemonRecord, now: float) -> dict[str, Any]:
    return {
        "id": daemon.id,
        "node": daemon.node,
        "device": daemon.device,
        "state": str(daemon.state),
        "job": daemon.job,
        "version": daemon.version,
        "silent_s": round(max(0.0, now - daemon.heard_at), 1),
    }


def _use(use: pb.NodeUse) -> dict[str, float]:
    return {field.name: getattr(use, field.name) for field in use.DESCRIPTOR.fields}


def _has_state(record: JobRecord, wanted: str) -> bool:
    if wanted in GROUPS:
        return record.state.is_final is GROUPS[wanted]
    return not wanted or record.state.value == wanted.upper()


def _has_words(record: JobRecord, words: list[str]) -> bool:
    spec = record.spec
    text = f"{record.id}\n{spec.name}\n{record.owner}\n{spec.kind.value}".casefold()
    return all(word in text for word in words)


def _point(point: pb.MetricPoint) -> dict[str, Any]:
    place = {"step": point.step, "at": round(point.at, 3), "attempt": point.attempt}
    return place | {"values": finite(point.values)}


def _waits(found: RankWaits | None) -> dict[str, Any]:
    """Return the waits of a rank's actors, if the rank has told them."""
    if found is None:
        return {"waiting": "", "idle": {}}
    return {"waiting": found.waiting, "idle": finite(found.shares)}


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Replace NaN and infinity, which JSON does not have, by None."""
    return {k: v if v - v == 0 else None for k, v in values.items()}
