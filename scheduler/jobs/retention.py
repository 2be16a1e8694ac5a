"""Retention of jobs that ended: by number and by age, both bounded, both to be switched off.

A job that did not succeed but has a checkpoint may still be restarted from it. Such jobs do not
count with the others, and have a longer time of their own, so that many short jobs do not push a
checkpoint out that somebody means to go on from.
"""

from __future__ import annotations

from collections.abc import Iterable

from oneflow.scheduler.jobs.records import JobRecord, JobState
from oneflow.scheduler.jobs.settings import Settings

MAX_REMOVED = 10_000  # ids of removed jobs that are remembered, for daemons that were away


def overdue(jobs: Iterable[JobRecord], settings: Settings, wall: float) -> dict[str, str]:
    """Ids of jobs that are not to be kept any longer, the oldest first, and why.

    wall: seconds since the epoch. Of both kinds of jobs as many are kept.
    """
    ended = sorted((j for j in jobs if j.state.is_final), key=lambda j: (j.finished_at, j.id))
    found: dict[str, str] = {}
    for is_of_use, keep_s in ((False, settings.keep_s), (True, settings.keep_failed_s)):
        kind = [job for job in ended if may_go_on(job) is is_of_use]
        surplus = len(kind) - settings.keep_jobs if settings.keep_jobs else 0
        for number, job in enumerate(kind):
            if number < surplus:
                found[job.id] = f"{settings.keep_jobs} newer jobs have ended"
            elif keep_s and job.finished_at and wall - job.finished_at > keep_s:
                found[job.id] = f"it ended more than {keep_s:g} s ago"
    return found


def may_go_on(job: JobRecord) -> bool:
    """Whether a restart would go on from a checkpoint."""
    return job.state is not JobState.SUCCEEDED and bool(job.last_checkpoint)
