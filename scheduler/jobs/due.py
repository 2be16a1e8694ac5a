"""The jobs that wait for devices and nothing else, and the waits of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from oneflow.scheduler.jobs.ending import end_cancelled
from oneflow.scheduler.jobs.records import Before, JobRecord, JobState
from oneflow.scheduler.jobs.shares import fair_order
from oneflow.scheduler.jobs.step_context import StepContext

WAITING = (JobState.QUEUED, JobState.RESTARTING)
GOING_ON = (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)
JOBS_NAMED = 3


def due_jobs(desk: StepContext) -> list[JobRecord]:
    """Jobs that may run as soon as there are devices, in the order of the queue. Those that come
    after a job that did not end as they need it are ended. A job is submitted after the ones that
    it names, so that a chain of them ends in one go.
    """
    waiting = [job.id for job in desk.jobs.values() if job.state in WAITING]
    due = [desk.jobs[job_id] for job_id in waiting if _is_due(desk, job_id)]
    return _within_arrays(desk, fair_order(due, desk.settings.queues, desk.ledger, desk.now))


def _within_arrays(desk: StepContext, due: Iterable[JobRecord]) -> list[JobRecord]:
    """Leave out the members of arrays that have as many others before them as may run at once."""
    due = list(due)
    if not any(job.spec.array_limit for job in due):
        return due
    running = Counter(_array_of(job) for job in desk.jobs.values() if job.state in GOING_ON)
    found = []
    for job in due:
        limit = job.spec.array_limit
        if limit and running[_array_of(job)] >= limit:
            most = f"{limit} job{'' if limit == 1 else 's'}"
            desk.note(job.id, pending=f"array {job.spec.array} runs at most {most} at once")
            continue
        running[_array_of(job)] += 1
        found.append(job)
    return found


def _array_of(job: JobRecord) -> tuple[str, str]:
    """Identify the array of a job; another user's array of the same id is another one."""
    return job.owner, job.spec.array


def _is_due(desk: StepContext, job_id: str) -> bool:
    job = desk.jobs[job_id]
    if job.is_held:
        desk.note(job_id, pending=f"held, until `oneflow job release {job_id}`")
        return False
    if job.is_due or not job.spec.after:
        return True
    met, left = list(job.met), []
    for before in job.spec.befores:
        found = desk.jobs.get(before.job_id)
        if before.job_id in met:
            continue
        if found is not None and not found.state.is_final:
            left.append(before)
        elif before.is_any or (found is not None and found.state is JobState.SUCCEEDED):
            met.append(before.job_id)
        else:
            became = "was removed" if found is None else f"ended {found.state}"
            desk.note(job_id, cause=f"job {before.job_id}, which it comes after, {became}")
            end_cancelled(desk, job_id)
            return False
    if len(met) > len(job.met):
        desk.save(job_id, met=tuple(met), is_due=not left, pending="")
    if left:
        desk.note(job_id, pending=_waits_for(left))
    return not left


def _waits_for(left: Sequence[Before]) -> str:
    parts = [f"{b.job_id} to {'end' if b.is_any else 'succeed'}" for b in left[:JOBS_NAMED]]
    more = f" and {len(left) - JOBS_NAMED} more" if len(left) > JOBS_NAMED else ""
    return f"waits for job {', '.join(parts)}{more}"
