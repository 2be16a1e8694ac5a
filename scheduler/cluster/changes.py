"""Changes of jobs by users: only their owner and admins may ask for them, and each is noted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from oneflow.scheduler.cluster.audit import Detail
from oneflow.scheduler.cluster.auth import Caller, caller
from oneflow.scheduler.cluster.refusals import DeniedError, NotFoundError, RefusedError
from oneflow.scheduler.jobs.events import CancelAsked, ChangeAsked, RemoveAsked, RestartAsked
from oneflow.scheduler.jobs.limits import check_priority
from oneflow.scheduler.jobs.records import JobRecord

if TYPE_CHECKING:
    from oneflow.scheduler.cluster.state import State


class Changes:
    """Changes that the caller of the call that is being answered asks for.

    All raise NotFoundError, DeniedError if the job is another's, or RefusedError.
    """

    def __init__(self, state: State) -> None:
        self._driver, self._audit = state.driver, state.audit

    async def cancel(self, job_id: str) -> JobRecord:
        """Stop a job in any state."""
        who = self.owner("cancel", job_id)
        await self._ask(CancelAsked(job_id, who.name, time.time()))
        return self._driver.job(job_id)

    async def restart(self, job_id: str) -> JobRecord:
        """Queue a job that has ended again; it goes on from its last checkpoint."""
        who = self.owner("restart", job_id)
        await self._ask(RestartAsked(job_id, who.name, time.time()))
        return self._driver.job(job_id)

    async def remove(self, job_id: str) -> None:
        """Forget a job that has ended, with its files."""
        self.owner("remove", job_id)
        await self._ask(RemoveAsked(job_id))

    async def change(self, job_id: str, is_held: bool | None, priority: int | None) -> JobRecord:
        """Hold or release a job that waits, or give it another priority. Raises JobSpecError."""
        if priority is not None:
            check_priority(priority)
        verb = "change" if is_held is None else "hold" if is_held else "release"
        self.owner(verb, job_id)
        await self._ask(ChangeAsked(job_id, is_held, priority))
        return self._driver.job(job_id)

    async def _ask(self, event: CancelAsked | RestartAsked | ChangeAsked | RemoveAsked) -> None:
        refusal = await self._driver.ask(event)
        if refusal is not None:
            kind = NotFoundError if refusal.reason == "unknown" else RefusedError
            raise kind(refusal.message)

    def owner(self, verb: str, job_id: str, **details: Detail) -> Caller:
        """Return the caller if its rights allow this change of the job, and audit it with its
        details.
        """
        who, record = caller(), self._driver.job(job_id)
        if not may_change(who, record):
            raise DeniedError(
                f"job {job_id} belongs to {record.owner!r}: only that token or an admin may "
                f"{verb} it"
            )
        self._audit.note(verb, who.name, who.peer, job=job_id, **details)
        return who


def may_change(who: Caller, record: JobRecord) -> bool:
    """Whether a caller may change a job, if its role may change any."""
    return who.is_admin or record.owner == who.name
