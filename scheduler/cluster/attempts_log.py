"""A record of where each attempt of a job ran, kept as long as the job so that its logs are found.

The store keeps the last attempt's places; those before it are lines of
`<state>/jobs/<id>/attempts.jsonl`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from oneflow.core.errors import StoreError
from oneflow.scheduler.jobs.events import Remove, Save
from oneflow.scheduler.jobs.records import Assignment, JobRecord
from oneflow.scheduler.jobs.store import Change

FILE = "attempts.jsonl"


class AttemptsLog:
    """jobs: those of the store, whose last attempts are on record already."""

    def __init__(self, folder: Path, jobs: Iterable[JobRecord]) -> None:
        self._folder = folder
        self._last = {job.id: (job.attempt, job.assignments) for job in jobs}

    def note(self, changes: Iterable[Change]) -> None:
        """Durable before it returns; called in the store's thread. Raises StoreError."""
        for change in changes:
            try:
                match change:
                    case Save(record=record):
                        places = record.attempt, record.assignments
                        if record.assignments and self._last.get(record.id) != places:
                            self._append(record)
                            self._last[record.id] = places
                    case Remove(job_id=job_id):
                        shutil.rmtree(self._folder / job_id, ignore_errors=True)
                        self._last.pop(job_id, None)
            except OSError as error:
                raise StoreError(f"cannot write {self._folder}: {error.strerror}") from None

    def places(self, record: JobRecord, attempt: int) -> tuple[Assignment, ...]:
        """Return the devices of any attempt; () if the attempt is not known any more."""
        if attempt == record.attempt and record.assignments:
            return record.assignments
        try:
            lines = (self._folder / record.id / FILE).read_text(encoding="utf-8").splitlines()
        except OSError:
            return ()
        for line in reversed(lines):
            found = _parse(line)
            if found is not None and found[0] == attempt:
                return found[1]
        return ()

    def _append(self, record: JobRecord) -> None:
        folder = self._folder / record.id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ranks = [[a.rank, a.daemon, a.node, a.device, a.folder] for a in record.assignments]
        line = json.dumps({"attempt": record.attempt, "ranks": ranks}) + "\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(folder / FILE, flags, 0o600)
        try:
            os.write(fd, line.encode())
            os.fsync(fd)
        finally:
            os.close(fd)


def _parse(line: str) -> tuple[int, tuple[Assignment, ...]] | None:
    """None for the torn line of a crash."""
    try:
        found = json.loads(line)
        return int(found["attempt"]), tuple(Assignment(*rank) for rank in found["ranks"])
    except (ValueError, KeyError, TypeError):
        return None
