"""A submission waits for its file to be judged: facts of before may not be so any more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import AuthError, OneFlowError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster import auth
from oneflow.scheduler.cluster.auth import Caller
from oneflow.scheduler.cluster.refusals import DeniedError, RefusedError, UnavailableError
from oneflow.scheduler.cluster.submissions import Submissions
from oneflow.scheduler.jobs.events import Submitted
from oneflow.scheduler.jobs.quotas import Queue
from oneflow.scheduler.jobs.records import JobRecord

GRAPH = "a" * 64
ME, ADMIN = Caller("me", "submit", "here"), Caller("root", "admin", "here")


class Rig:
    """A service whose files take until `judged` is set to be judged."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self.blobs = {GRAPH}
        self.noted: list[str] = []
        self.checks = 0
        self.is_revoked = False
        self.asked, self.judged = asyncio.Event(), asyncio.Event()
        driver = SimpleNamespace(
            jobs=self.jobs,
            table=SimpleNamespace(jobs=self.jobs),
            ask=self.ask,
            job=self.jobs.__getitem__,
        )
        self.queues: dict[str, Queue] = {}
        limits = SimpleNamespace(max_time_limit_s=0.0, queues=self.queues)
        self.state: Any = SimpleNamespace(
            driver=driver,
            settings=SimpleNamespace(allow_scripts=False, table=limits),
            lines=SimpleNamespace(all=list),
            blobs=self.blobs,
            plans=SimpleNamespace(check=self.check, prepare=lambda record: None),
            metrics=SimpleNamespace(rejected_jobs=Counter()),
            audit=SimpleNamespace(note=self.note),
            is_stopping=False,
        )
        guard: Any = SimpleNamespace(check_still=self.check_still)
        self.submissions = Submissions(self.state, guard)

    async def ask(self, event: Submitted) -> None:
        await asyncio.sleep(0)
        if event.job_id not in self.jobs:
            self.jobs[event.job_id] = JobRecord(event.job_id, event.spec, owner=event.owner)

    async def check(self, spec: Any, owner: str) -> None:
        self.checks += 1
        self.asked.set()
        await self.judged.wait()

    def note(self, what: str, *who: str, **details: Any) -> None:
        self.noted.append(what)

    def check_still(self, method: str, who: Caller) -> None:
        assert method == "/oneflow.Jobs/Submit" and who.name in (ME.name, ADMIN.name)
        if self.is_revoked:
            raise AuthError("not valid any more")

    async def submit(self, who: Caller = ME) -> JobRecord:
        auth.act_as(who)
        spec = pb.JobSpec(kind=pb.JobSpec.GRAPH, graph=GRAPH, devices=1, device_type="cpu")
        return await self.submissions.take(pb.SubmitRequest(job_id="j1", spec=spec))


def revoke(rig: Rig) -> None:
    rig.is_revoked = True


def stop(rig: Rig) -> None:
    rig.state.is_stopping = True


def sweep(rig: Rig) -> None:
    rig.blobs.clear()


@pytest.mark.parametrize(
    ("happens", "error"),
    [(revoke, AuthError), (stop, UnavailableError), (sweep, RefusedError)],
)
def test_what_happens_while_a_file_is_judged_counts(
    happens: Callable[[Rig], None], error: type[OneFlowError]
) -> None:
    async def scene() -> Rig:
        rig = Rig()
        submitting = asyncio.ensure_future(rig.submit())
        await asyncio.wait_for(rig.asked.wait(), 3)
        happens(rig)
        rig.judged.set()
        with pytest.raises(error):
            await submitting
        return rig

    rig = asyncio.run(scene())
    assert rig.jobs == {} and rig.noted == []


def test_two_submissions_of_one_id_at_once_are_one() -> None:
    async def scene() -> Rig:
        rig = Rig()
        both = [asyncio.ensure_future(rig.submit()) for _ in range(2)]
        for _ in range(10):
            await asyncio.sleep(0)
        rig.judged.set()
        assert [record.id for record in await asyncio.gather(*both)] == ["j1", "j1"]
        return rig

    rig = asyncio.run(scene())
    assert rig.checks == 1
    assert rig.noted == ["submit"]


def test_who_waits_behind_one_that_is_refused_is_judged() -> None:
    async def scene() -> Rig:
        rig = Rig()
        first = asyncio.ensure_future(rig.submit())
        await asyncio.wait_for(rig.asked.wait(), 3)
        second = asyncio.ensure_future(rig.submit())
        await asyncio.sleep(0)
        first.cancel()
        rig.judged.set()
        await second
        return rig

    assert asyncio.run(scene()).checks == 2


@pytest.mark.parametrize("users", [(), ("me",)])
def test_a_queue_takes_jobs_of_the_users_it_names_and_of_admins(users: tuple[str, ...]) -> None:
    async def scene(who: Caller) -> None:
        rig = Rig()
        rig.queues["default"] = Queue(users=users)
        rig.judged.set()
        await rig.submit(who)

    asyncio.run(scene(ADMIN))
    if users:
        asyncio.run(scene(ME))
        return
    with pytest.raises(DeniedError, match="queue default: the token 'me' may not use it"):
        asyncio.run(scene(ME))
