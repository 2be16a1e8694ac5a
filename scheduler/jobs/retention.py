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

    wall: seconds since the epoch.
    """
    ended = sorted(
        (job for job in jobs if job.state.is_final), key=lambda job: (job.finished_at, job.id)
    )
    plain = [job for job in ended if not may_go_on(job)]
    failed = [job for job in ended if may_go_on(job)]
    return _of_class(plain, settings.keep_jobs, settings.keep_s, wall) | _of_class(
        failed, settings.keep_jobs, settings.keep_failed_s, wall
    )


def may_go_on(job: JobRecord) -> bool:
    """Whether a restart would go on from a checkpoint."""
    return job.state is not JobState.SUCCEEDED and bool(job.last_checkpoint)


def _of_class(jobs: list[JobRecord], keep: int, keep_s: float, wall: float) -> dict[str, str]:
    """Choose the jobs of one class that are to be forgotten.

    jobs: the oldest first. keep, keep_s: 0 is without a limit.
    """
    surplus = len(jobs) - keep if keep else 0
    found = {}
    for number, job in enumerate(jobs):
        if number < surplus:
            found[job.id] = f"{keep} newer jobs have ended"
        elif keep_s and job.finished_at and wall - job.finished_at > keep_s:
            found[job.id] = f"it ended more than {keep_s:g} s ago"
        else:
            break
    return found
