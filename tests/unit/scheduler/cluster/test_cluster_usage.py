"""Accounts of the use of jobs: which are seen by whom, over days, and while they run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import ProtocolError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import usage as usage_module
from oneflow.scheduler.cluster.auth import Caller
from oneflow.scheduler.cluster.usage import Usage, account
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, Use

DAY = 86_400.0
MIDNIGHT = 20_000 * DAY  # 2024-10-04
ADMIN, ADA = Caller("root", "admin", "peer"), Caller("ada", "view", "peer")
USES = [
    Use("j1", 0, 1, "ada", "digits", "cpu", 2, MIDNIGHT - 100, 300.0),
    Use("j1", 0, 2, "ada", "digits", "cpu", 2, MIDNIGHT + 300, 50.0),
    Use("j2", 0, 1, "bob", "", "cuda", 8, MIDNIGHT - 10, 5.0),
]


def rows(reply: pb.UsageReply) -> list[tuple[Any, ...]]:
    return [(*r.keys, r.device_type, r.jobs, r.attempts, r.device_s) for r in reply.rows]


class Scene:
    """A store with the attempts above; the first job's third attempt has run for 10 s."""

    def __init__(self) -> None:
        record = JobRecord(
            "j1", JobSpec(name="digits"), owner="ada", attempt=3, attempt_started_at=MIDNIGHT + 900,
            ran_s=350.0,
        )  # fmt: skip
        attempt = SimpleNamespace(
            is_started=True, number=3, ranks=[0, 0], ran_until=lambda at: 350.0 + at
        )
        self.asked: list[tuple[float, str | None]] = []
        driver: Any = SimpleNamespace(
            jobs={"j1": record},
            table=SimpleNamespace(attempts=SimpleNamespace(live={"j1": attempt})),
            store=SimpleNamespace(uses=self._uses),
            in_store=self._in_store,
        )
        self.usage = Usage(driver, lambda: 10.0)

    async def _in_store(self, call: Any) -> Any:
        return call()

    def _uses(self, since: float, owner: str | None) -> list[Use]:
        self.asked.append((since, owner))
        return [use for use in USES if owner in (None, use.owner)]

    def ask(self, who: Caller, *by: str, since: float = 0.0) -> list[tuple[Any, ...]]:
        return rows(asyncio.run(self.usage.of(who, pb.UsageRequest(by=by, since=since))))


def test_an_admin_sees_all_and_others_their_own() -> None:
    ada = ("ada", "cpu", 1, 3, 2 * (300.0 + 50 + 10))
    scene = Scene()
    assert scene.ask(ADMIN) == [ada, ("bob", "cuda", 1, 1, 40.0)]
    assert scene.ask(ADA) == [ada]
    assert scene.asked == [(0.0, None), (0.0, "ada")]


def test_an_attempt_over_midnight_is_of_both_days() -> None:
    found = rows(account(USES, ("day", "name"), 0.0))
    assert found == [
        ("2024-10-03", "", "cuda", 1, 1, 40.0),
        ("2024-10-03", "digits", "cpu", 1, 1, 200.0),
        ("2024-10-04", "digits", "cpu", 1, 2, 500.0),
    ]


def test_what_was_before_the_time_that_is_asked_for_is_left_out() -> None:
    assert rows(account(USES[:1], ("user",), MIDNIGHT)) == [("ada", "cpu", 1, 1, 400.0)]


def test_an_attempt_that_ends_meanwhile_counts_once() -> None:
    scene = Scene()
    USES.append(Use("j1", 0, 3, "ada", "digits", "cpu", 2, MIDNIGHT + 900, 11.0))
    try:
        assert scene.ask(ADA) == [("ada", "cpu", 1, 3, 2 * (300.0 + 50 + 11))]
    finally:
        USES.pop()


@pytest.mark.parametrize("by", [("owner",), ("user", "user"), ("user", "day", "name", "user")])
def test_nothing_else_can_be_asked(by: tuple[str, ...]) -> None:
    with pytest.raises(ProtocolError, match="user, day, name, queue"):
        Scene().ask(ADMIN, *by)
    with pytest.raises(ProtocolError, match="since"):
        Scene().ask(ADMIN, since=float("nan"))


def test_there_are_not_too_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_module, "MAX_ROWS", 1)
    with pytest.raises(ProtocolError, match="more than 1 rows"):
        account(USES, ("user",), 0.0)
