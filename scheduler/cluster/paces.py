"""The pace of running jobs, and from it when each will be through."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from oneflow.scheduler.jobs.events import Action, Event
from oneflow.scheduler.jobs.records import JobRecord, JobState

WINDOW = 32  # looks at a job's step that are remembered
EVERY_S = 1.0  # at least between them
MAX_ETA_S = 10 * 366 * 86400.0


@dataclass
class _Pace:
    attempt: int
    begun_at: float
    looks: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))


class Paces:
    """A `Listener` of the driver."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._paces: dict[str, _Pace] = {}

    def stepped(self, event: Event, actions: Sequence[Action]) -> None:
        """Steps are seen in the records."""

    def changed(self, before: JobRecord | None, now: JobRecord | None) -> None:
        if now is None or now.state is not JobState.RUNNING:
            if before is not None:
                self._paces.pop(before.id, None)
            return
        pace, at = self._paces.get(now.id), self._now()
        if pace is None or pace.attempt != now.attempt:
            if now.last_step and (before is None or now.last_step == before.last_step):
                return  # as it was stored: nobody has told this scheduler yet where the job is
            pace = self._paces[now.id] = _Pace(now.attempt, at)
        if at - pace.begun_at < EVERY_S:
            pace.looks.clear()  # what was done unheard comes in one burst
        elif now.last_step <= pace.looks[-1][1] or at - pace.looks[-1][0] < EVERY_S:
            return
        pace.looks.append((at, now.last_step))

    def eta_s(self, record: JobRecord) -> float:
        """Seconds until the last step of a job that runs, as fast as it went lately; 0.0: nobody
        knows.
        """
        pace = self._paces.get(record.id)
        if record.state is not JobState.RUNNING or pace is None or len(pace.looks) < 2:
            return 0.0
        (since, first), (until, last) = pace.looks[0], pace.looks[-1]
        left = record.total_steps - record.last_step
        if left <= 0 or last <= first or until <= since:
            return 0.0
        return min(left * (until - since) / (last - first), MAX_ETA_S)
