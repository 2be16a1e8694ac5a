"""Changes of jobs through the service: the roles that may ask for them, and the audit log's line of
each.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import JobSpecError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import auth
from oneflow.scheduler.cluster.auth import ROLES, Caller
from oneflow.scheduler.cluster.changes import Changes
from oneflow.scheduler.cluster.jobs_service import JobsService
from oneflow.scheduler.cluster.refusals import DeniedError, NotFoundError, RefusedError
from oneflow.scheduler.jobs.events import ChangeAsked, Rejected
from oneflow.scheduler.jobs.records import JobRecord, JobSpec

OWNER, OTHER = Caller("me", "submit", "here"), Caller("you", "submit", "there")
ADMIN = Caller("root", "admin", "there")


class Rig:
    """The service over a driver that writes down its events, and answers `refusal`."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.noted: list[tuple[Any, ...]] = []
        self.refusal: Rejected | None = None
        record = JobRecord("j1", JobSpec(argv=("x",)), owner="me")
        driver = SimpleNamespace(ask=self.ask, job={"j1": record}.__getitem__)
        state: Any = SimpleNamespace(driver=driver, audit=SimpleNamespace(note=self.note))
        self.service = JobsService.__new__(JobsService)
        self.service._changes = Changes(state)
        self.service._views = SimpleNamespace(shown=lambda record: record.id)  # type: ignore[assignment]

    async def ask(self, event: Any) -> Rejected | None:
        self.asked.append(event)
        return self.refusal

    def note(self, *words: Any, **details: Any) -> None:
        self.noted.append((*words, details["job"]))

    def change(self, who: Caller, **what: Any) -> object:
        async def call() -> object:
            auth.act_as(who)
            request = pb.ChangeRequest(job_id="j1", **what)
            return await self.service.Change(request, None)  # type: ignore[arg-type]

        return asyncio.run(call())


@pytest.mark.parametrize("who", [OWNER, ADMIN], ids=lambda who: who.name)
@pytest.mark.parametrize(
    ("what", "verb", "event"),
    [
        ({"is_held": True}, "hold", ChangeAsked("j1", is_held=True)),
        ({"is_held": False}, "release", ChangeAsked("j1", is_held=False)),
        ({"priority": 0}, "change", ChangeAsked("j1", priority=0)),
        ({"is_held": True, "priority": -9}, "hold", ChangeAsked("j1", True, -9)),
    ],
)
def test_owner_and_admin_change_a_job_and_each_is_noted(
    who: Caller, what: dict[str, Any], verb: str, event: ChangeAsked
) -> None:
    rig = Rig()
    assert rig.change(who, **what) == "j1"
    assert rig.asked == [event]
    assert rig.noted == [(verb, who.name, who.peer, "j1")]


def test_anothers_job_is_not_changed_nor_noted() -> None:
    rig = Rig()
    with pytest.raises(DeniedError, match="belongs to 'me': only that token or an admin may hold"):
        rig.change(OTHER, is_held=True)
    assert (rig.asked, rig.noted) == ([], [])
    assert ROLES["/oneflow.Jobs/Change"] == "submit"  # who may only look is refused before


def test_a_priority_that_cannot_be_is_refused_before_anything_else() -> None:
    rig = Rig()
    with pytest.raises(JobSpecError, match="priority=1001: must be -1000 to 1000"):
        rig.change(OWNER, priority=1001)
    assert (rig.asked, rig.noted) == ([], [])


@pytest.mark.parametrize(("reason", "error"), [("unknown", NotFoundError), ("", RefusedError)])
def test_what_the_table_refuses_is_told(reason: str, error: type[Exception]) -> None:
    rig = Rig()
    rig.refusal = Rejected(ChangeAsked("j1"), "job j1 has ended FAILED", reason)
    with pytest.raises(error, match="has ended FAILED"):
        rig.change(OWNER, is_held=True)
