"""Retention of jobs that ended: by number and by age, both bounded, both to be switched off.

Ages are of the wall clock, which may be wrong: `WallClock` bounds how far it is believed.

A job that did not succeed but has a checkpoint may still be restarted from it. Such jobs do not
count with the others, and have a longer time of their own, so that many short jobs do not push a
checkpoint out that somebody means to go on from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oneflow.scheduler.jobs.records import JobRecord, JobState
from oneflow.scheduler.jobs.settings import Settings
from oneflow.services.quantities import exact_duration

MAX_REMOVED = 10_000  # ids of removed jobs that are remembered, for daemons that were away
JUMP_S = 60.0  # that the wall clock may run ahead between two looks
CONFIRM_S = 3600.0  # a jump is believed once the clock has kept to it for this long


@dataclass
class WallClock:
    """The wall clock as far as retention believes it.

    A machine without a battery may start decades ahead until it has asked for the time. So the
    believed time grows as the monotonic clock does; a jump ahead counts only after CONFIRM_S. A
    clock that goes back is believed at once: nothing is removed for that.

    Attributes:
        believed: Seconds since the epoch at the last look; at first those that the store kept,
            0 if it kept none.
    """

    believed: float = 0.0
    _looked_at: float | None = None
    _ahead: float = 0.0  # by how much the clock has jumped
    _ahead_at: float = 0.0

    def look(self, now: float, wall: float) -> bool:
        """Take a look at the clock. now: Monotonic seconds; wall: Seconds since the epoch.

        Returns:
            Whether there was a look before, so that something may be removed now.
        """
        is_first = self._looked_at is None
        if self._looked_at is not None:
            self.believed += now - self._looked_at
        self.believed = self.believed or wall
        self._looked_at = now
        ahead = wall - self.believed
        if ahead > JUMP_S:
            if abs(ahead - self._ahead) > JUMP_S:
                self._ahead, self._ahead_at = ahead, now
            if now - self._ahead_at < CONFIRM_S:
                return not is_first
        self.believed, self._ahead = wall, 0.0
        return not is_first


def overdue(jobs: Iterable[JobRecord], settings: Settings, wall: float) -> dict[str, str]:
    """Ids of jobs that are not to be kept any longer, the oldest first, and why.

    wall: seconds since the epoch, as believed. Of both kinds of jobs as many are kept.
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
                found[job.id] = f"it ended more than {exact_duration(keep_s)} ago"
    return found


def may_go_on(job: JobRecord) -> bool:
    """Whether a restart would go on from a checkpoint."""
    return job.state is not JobState.SUCCEEDED and bool(job.last_checkpoint)
