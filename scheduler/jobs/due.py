"""The jobs that wait for devices and nothing else, and what the others wait for."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.scheduler.jobs.ending import end_cancelled
from oneflow.scheduler.jobs.records import Before, JobRecord, JobState
from oneflow.scheduler.jobs.step_context import StepContext

WAITING = (JobState.QUEUED, JobState.RESTARTING)
JOBS_NAMED = 3


def due_jobs(desk: StepContext) -> list[JobRecord]:
    """Jobs that may run as soon as there are devices, in the order they came. Those that come after
    a job that did not end as they need it are ended. A job is submitted after the ones that it
    names, so that a chain of them ends in one go.
    """
    waiting = [job.id for job in desk.jobs.values() if job.state in WAITING]
    return [desk.jobs[job_id] for job_id in waiting if _is_due(desk, job_id)]


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
