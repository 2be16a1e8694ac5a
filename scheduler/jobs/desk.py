"""What the parts of the job table share within one step: time, records, and the actions so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from oneflow.scheduler.jobs.events import (
    Action,
    Remove,
    Save,
    TellForget,
    TellNoted,
    TellPrepare,
    TellStart,
    TellStop,
)
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.settings import Settings

_TOLD = (TellPrepare, TellStart, TellStop, TellNoted, TellForget, Remove)


@dataclass
class Desk:
    """jobs: in the order they came. changed: ids of those whose record is another one now."""

    settings: Settings
    jobs: dict[str, JobRecord]
    now: float = 0.0
    wall: float = 0.0
    actions: list[Action] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)
    is_queue_stale: bool = True  # devices or waiting jobs are not what they were

    def save(self, job_id: str, **changes: Any) -> JobRecord:
        """The job's new record, to be made durable."""
        record = self.note(job_id, **changes)
        self.actions.append(Save(record))
        return record

    def note(self, job_id: str, **changes: Any) -> JobRecord:
        """The same for what need not survive."""
        record = replace(self.jobs[job_id], **changes)
        if record != self.jobs[job_id]:
            self.jobs[job_id] = record
            self.changed.add(job_id)
        return record

    def tell(self, action: Action) -> None:
        self.actions.append(action)


def without_needless_saves(actions: Iterable[Action]) -> list[Action]:
    """A record that is saved again before anybody is told anything need not be saved twice."""
    result: list[Action] = []
    seen: set[str] = set()
    for action in reversed(list(actions)):
        if isinstance(action, _TOLD):
            seen.clear()
        if isinstance(action, Save):
            if action.record.id in seen:
                continue
            seen.add(action.record.id)
        result.append(action)
    return result[::-1]
