"""The driver: durable before said, and its ways while the disk is full."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from oneflow.core.errors import StoreError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.cluster.driver import Driver, tick
from oneflow.scheduler.cluster.refusals import NotFoundError
from oneflow.scheduler.jobs.events import (
    Action,
    CancelAsked,
    DaemonJoined,
    Heard,
    RemoveAsked,
    Save,
    Submitted,
    Tell,
    TellPrepare,
)
from oneflow.scheduler.jobs.records import DaemonState, JobSpec
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.store import Change, Loaded, SqliteStore
from oneflow.scheduler.jobs.table import Table
from tests.support.waiting import until

SPEC = JobSpec(argv=("true",))
RANK = pb.AttemptId(job_id="a", attempt=1)


class FullDisk(SqliteStore):
    """A real store whose disk may be full."""

    is_full = False
    writes = refused = 0

    def write(self, changes: Sequence[Change]) -> None:
        if self.is_full:
            self.refused += 1
            raise StoreError("the disk is full")
        self.writes += 1
        super().write(changes)


class Scene:
    """A driver with its task, and all that it did, in order."""

    def __init__(self, folder: Path) -> None:
        self.store = FullDisk(folder / "cluster.db")
        self.done: list[Action] = []
        self.driver = Driver(Table([], 0), self.store, self._perform)

    def _perform(self, action: Action) -> None:
        self.done.append(action)

    async def submit(self, job_id: str) -> None:
        assert await self.driver.ask(Submitted(job_id, SPEC, "me", "k", 1.0)) is None

    def join(self) -> None:
        hello = pb.Hello(daemon="n/cpu:0", node="n", device_type="cpu", incarnation=7)
        self.driver.tell(DaemonJoined(hello))

    def told(self, kind: str) -> list[Action]:
        return [a for a in self.done if isinstance(a, Tell) and a.message.HasField(kind)]

    def hear(self, **said: Any) -> None:
        self.driver.tell(Heard("n/cpu:0", pb.DaemonMessage(epoch=1, **said)))


def play(tmp_path: Path, act: Callable[[Scene], Coroutine[Any, Any, None]]) -> Loaded:
    """Acts, and returns the store's records afterwards."""

    async def scene() -> None:
        here = Scene(tmp_path)
        task = asyncio.ensure_future(here.driver.run())
        try:
            await act(here)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await here.driver.close()

    asyncio.run(scene())
    store = SqliteStore(tmp_path / "cluster.db")
    try:
        return store.load()
    finally:
        store.close()


def test_a_job_is_durable_when_its_submission_is_answered(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit("a")
        assert [job.id for job in scene.store.load().jobs] == ["a"]
        assert scene.driver.job("a").state == "QUEUED"
        with pytest.raises(NotFoundError):
            scene.driver.job("b")

    assert [job.id for job in play(tmp_path, act).jobs] == ["a"]


def test_what_comes_together_is_written_together(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await asyncio.gather(*(scene.submit(f"j{n}") for n in range(50)))
        assert scene.store.writes <= 2

    assert len(play(tmp_path, act).jobs) == 50


def test_while_the_disk_is_full_new_jobs_are_refused_and_others_go_on(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        driver = scene.driver
        scene.join()
        await scene.submit("a")
        await until(lambda: any(isinstance(a, TellPrepare) for a in scene.done))
        watching = driver.watch("a")
        assert (await anext(watching)).state == "STARTING"
        scene.store.is_full = True
        with pytest.raises(StoreError, match="full"):
            await scene.submit("b")
        scene.hear(prepared=pb.Prepared(id=RANK, master_port=4000))
        await until(lambda: scene.store.refused > 1)
        assert not scene.told("start")  # it would run before RUNNING is durable
        assert driver.job("a").state == "STARTING"
        assert "b" not in driver.table.jobs
        assert driver.trouble == "the disk is full"
        assert (await asyncio.wait_for(anext(watching), 30)).state == "STARTING"  # told at once
        scene.store.is_full = False
        await scene.submit("b")
        assert scene.told("start")
        assert (await asyncio.wait_for(anext(watching), 30)).state == "RUNNING"
        assert driver.trouble == ""
        await watching.aclose()
        scene.hear(exited=pb.Exited(id=RANK, reason="NONE"))
        await until(lambda: scene.told("noted"))
        assert driver.job("a").state == "SUCCEEDED"

    loaded = play(tmp_path, act)
    assert {job.id: job.state.value for job in loaded.jobs} == {"a": "SUCCEEDED", "b": "STARTING"}


def test_refusals_and_changes_are_told(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        driver = scene.driver
        refused = await driver.ask(CancelAsked("x", "me", 1.0))
        assert refused is not None
        assert refused.reason == "unknown"
        await scene.submit("a")
        watch = driver.watch("a")
        assert (await watch.__anext__()).state == "QUEUED"
        assert await driver.ask(CancelAsked("a", "me", 1.0)) is None
        assert (await watch.__anext__()).state == "CANCELLED"
        assert await driver.ask(RemoveAsked("a")) is None
        assert [record async for record in watch] == []

    assert play(tmp_path, act).jobs == ()


def test_records_are_shown_only_when_they_are_durable(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    class Listener:
        def __init__(self, scene: Scene) -> None:
            self.scene = scene

        def stepped(self, event: object, actions: Sequence[Action]) -> None:
            saves = [a.record for a in actions if isinstance(a, Save)]
            assert all(self.scene.driver.jobs.get(r.id) is not r for r in saves)

        def changed(self, before: Any, now: Any) -> None:
            stored = {job.id: job.state.value for job in self.scene.store.load().jobs}
            seen.append((now.state.value, stored[now.id]))

    async def act(scene: Scene) -> None:
        scene.driver.listeners = [Listener(scene)]
        await scene.submit("a")
        await scene.driver.ask(CancelAsked("a", "me", 1.0))

    play(tmp_path, act)
    assert seen == [("QUEUED", "QUEUED"), ("CANCELLED", "CANCELLED")]


def test_a_silent_daemon_is_given_up_in_time_though_ticks_are_rare(tmp_path: Path) -> None:
    async def nothing() -> None:
        return None

    async def act(scene: Scene) -> None:
        scene.driver.table = table = Table([], 0, Settings(suspect_s=0.1, act_s=0.3))
        assert table.due_at == math.inf
        scene.join()
        await until(lambda: table.daemons)
        assert table.due_at == pytest.approx(table.daemons["n/cpu:0"].heard_at + 0.3)
        ticking = asyncio.ensure_future(tick(scene.driver, 60.0, nothing))
        await until(lambda: table.daemons["n/cpu:0"].state is DaemonState.LOST)
        assert table.due_at == math.inf
        ticking.cancel()

    play(tmp_path, act)
