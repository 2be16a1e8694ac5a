"""The things that the parts of the job table share within one step: time, records, and the actions
so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from oneflow.scheduler.jobs.events import Action, Remove, Save
from oneflow.scheduler.jobs.journal import Journal
from oneflow.scheduler.jobs.ledger import Ledger
from oneflow.scheduler.jobs.quotas import Quotas
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.retention import MAX_REMOVED
from oneflow.scheduler.jobs.settings import Settings


@dataclass
class StepContext:
    """Time, records and actions of one step.

    jobs: in the order they came. changed: ids of those whose record is another one now.

    removed: ids of jobs that were forgotten, the last of them, with the life of the last job of
    each: for daemons that were away then, and for the next job of that id.  foreign: the last lives
    of ids whose folders daemons keep and this journal has no job for.
    """

    settings: Settings
    jobs: dict[str, JobRecord]
    now: float = 0.0
    wall: float = 0.0
    actions: list[Action] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    is_queue_stale: bool = True  # devices or waiting jobs are not what they were
    removed: dict[str, int] = field(default_factory=dict)
    foreign: dict[str, int] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)
    ledger: Ledger = field(default_factory=Ledger)

    def quotas(self) -> Quotas:
        """Return the room in the queues as it is now."""
        return Quotas(self.settings.queues, self.ledger)

    def save(self, job_id: str, **changes: Any) -> JobRecord:
        """The job's new record, to be made durable."""
        record = self.note(job_id, **changes)
        self.actions.append(Save(record))
        return record

    def note(self, job_id: str, **changes: Any) -> JobRecord:
        """Note changes that need not survive."""
        before = self.jobs[job_id]
        if all(getattr(before, name) == value for name, value in changes.items()):
            return before
        record = self.jobs[job_id] = replace(before, **changes)
        self.is_queue_stale |= record.state is not before.state
        self.changed.add(job_id)
        return record

    def forget(self, job_id: str, why: str = "") -> None:
        """A job that ended is no more. why: nobody asked for it, but this."""
        life = self.jobs.pop(job_id).life
        self.is_queue_stale = True  # jobs may wait for this one
        self.changed.add(job_id)
        self.removed.pop(job_id, None)
        self.removed[job_id] = life
        if len(self.removed) > MAX_REMOVED:
            del self.removed[next(iter(self.removed))]
        self.actions.append(Remove(job_id, why, life))

    def next_life(self, job_id: str) -> int:
        """Life of a job that is submitted now."""
        last = max(self.removed.get(job_id, -1), self.foreign.get(job_id, -1))
        return max(last + 1, self.journal.number)

    def life_of_attempt(self, record: JobRecord) -> int:
        """Life of a job whose next attempt begins now. Attempts of it that the journal does not
        know, which may have run before it was restored, have the life that it had.
        """
        is_known = record.attempt and not self.is_restored(record.id)
        return record.life if is_known else max(record.life, self.next_life(record.id))

    def is_restored(self, job_id: str) -> bool:
        """Whether attempts of a job, or ends of them, may be missing in a restored journal."""
        return self.jobs[job_id].journal != self.journal.number

    def know(self, job_id: str) -> None:
        """No attempt of this job is missing in the journal, whenever that was restored."""
        if self.is_restored(job_id):
            self.save(job_id, journal=self.journal.number)

    def meet_folder(self, job_id: str, life: int) -> None:
        """Take note of a folder that a daemon keeps. One of a job that this journal never started
        is of another journal: a job of that id begins with a later life, which finds nothing of it.
        """
        job = self.jobs.get(job_id)
        last = self.removed.get(job_id, -1) if job is None else job.life - (not job.attempt)
        if life <= last:
            return
        self.foreign[job_id] = max(life, self.foreign.get(job_id, -1))

    def tell(self, action: Action) -> None:
        self.actions.append(action)
