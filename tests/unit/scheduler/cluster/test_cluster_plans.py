"""Plans, made and judged one at a time, once for each way to run a file; owners take turns."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.core.errors import JobSpecError, PlacementError
from oneflow.core.job_config import Overrides
from oneflow.scheduler.cluster.blobs import Blobs
from oneflow.scheduler.cluster.plans import Plans, Turns
from oneflow.scheduler.cluster.refusals import UnavailableError
from oneflow.scheduler.cluster.settings import Limits
from oneflow.scheduler.jobs.events import TellPrepare
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobSpec
from tests.support.waiting import WAIT_S


def test_a_file_is_judged_once_for_each_way_to_run_it(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs", Limits(), list)
    spec = JobSpec(kind=JobKind.GRAPH, graph=blobs.put(b"a job"), devices=2)
    asked: list[Any] = []

    def check_fit(path: Path, *rest: Any) -> int:
        asked.append(rest)
        if rest[1] == 3:
            raise PlacementError(f"{path}: 64 rows cannot be split over 3 devices")
        return 10

    judge: Any = SimpleNamespace(check_fit=check_fit)
    plans = Plans(tmp_path, blobs, judge, print, print, bool, bool)
    for _ in range(3):
        asyncio.run(plans.check(spec, "me"))
    asyncio.run(
        plans.check(dataclasses.replace(spec, steps=10), "me")
    )  # as many as the file was said to
    assert [(devices, steps) for _, devices, _, steps in asked] == [(2, 0)]
    asyncio.run(plans.check(dataclasses.replace(spec, steps=11), "me"))
    assert [(devices, steps) for _, devices, _, steps in asked] == [(2, 0), (2, 11)]
    for _ in range(2):  # what does not fit is asked again: its words are not kept
        with pytest.raises(JobSpecError, match="cannot run: the job file: 64 rows"):
            asyncio.run(plans.check(dataclasses.replace(spec, devices=3), "me"))
    assert len(asked) == 4
    asyncio.run(plans.check(JobSpec(kind=JobKind.SCRIPT, argv=("x",)), "me"))
    assert len(asked) == 4
    plans.close()
    blobs.close()


class Slow:
    """A compiler that is at its first file until `go` is set."""

    def __init__(self, folder: Path) -> None:
        self.blobs = Blobs(folder / "blobs", Limits(), list)
        self.compiled: list[str] = []
        self.live = {"j0", "j1", "j2"}
        self.began, self.go = threading.Event(), threading.Event()
        self.plans = Plans(folder, self.blobs, self, print, print, bool, self.live.__contains__)

    def compile_plan(self, path: Path, *rest: Any) -> bytes:
        self.compiled.append(path.read_text())
        self.began.set()
        assert self.go.wait(WAIT_S)
        return b"plan"

    def check_fit(self, path: Path, *rest: Any) -> int:
        self.compile_plan(path)
        return 0

    def spec(self, text: str) -> JobSpec:
        return JobSpec(kind=JobKind.GRAPH, graph=self.blobs.put(text.encode()), devices=1)

    def prepare(self, job_id: str, text: str) -> None:
        self.plans.prepare(JobRecord(job_id, self.spec(text), owner=job_id))

    async def start(self) -> None:
        """Begins a file, which the compiler is at from now on."""
        self.prepare("j0", "first")
        assert await asyncio.to_thread(self.began.wait, WAIT_S)

    async def end(self) -> None:
        self.go.set()
        while self.plans._tasks:
            await asyncio.wait(set(self.plans._tasks), timeout=WAIT_S)

    def close(self) -> None:
        self.plans.close()
        self.blobs.close()


def test_a_file_is_compiled_for_each_of_its_overrides(tmp_path: Path) -> None:
    async def scene() -> list[Any]:
        slow, asked = Slow(tmp_path), []

        def compile_plan(path: Path, *rest: Any) -> bytes:
            asked.append(rest[-1])
            return str(rest[-1]).encode()

        slow.compile_plan = compile_plan  # type: ignore[method-assign]
        for options in ({}, {"zero": 2}, {"amp": "float16"}, {"auto_parallel": True}, {}):
            spec = dataclasses.replace(slow.spec("a"), **options)
            slow.plans.prepare(JobRecord("j0", spec, owner="me"))
            await slow.end()
        slow.close()
        return asked

    asked = asyncio.run(scene())
    assert asked == [
        Overrides(),
        Overrides(zero=2),
        Overrides(amp="float16"),
        Overrides(auto_parallel=True),
    ]


def test_what_nobody_wants_any_more_is_not_compiled(tmp_path: Path) -> None:
    async def scene() -> Slow:
        slow = Slow(tmp_path)
        await slow.start()
        slow.prepare("j1", "cancelled")
        slow.prepare("j1", "wanted by another")
        slow.prepare("j2", "wanted by another")
        await asyncio.sleep(0)
        slow.live.remove("j1")
        await slow.end()
        slow.live.add("j1")
        slow.prepare("j1", "cancelled")  # it was restarted
        await slow.end()
        return slow

    slow = asyncio.run(scene())
    assert slow.compiled == ["first", "wanted by another", "cancelled"]
    slow.close()


def test_who_waits_when_the_scheduler_stops_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> Slow:
        slow = Slow(tmp_path)
        await slow.start()
        slow.prepare("j1", "second")
        slow.began.clear()
        judged = asyncio.ensure_future(slow.plans.check(slow.spec("third"), "me"))
        assert await asyncio.to_thread(slow.began.wait, WAIT_S)
        waiting = asyncio.ensure_future(slow.plans.check(slow.spec("fourth"), "me"))
        await asyncio.sleep(0)
        slow.plans.close()
        await slow.end()
        await judged
        with pytest.raises(UnavailableError, match="the scheduler stops"):
            await waiting
        return slow

    with caplog.at_level(logging.WARNING):
        slow = asyncio.run(scene())
    assert sorted(slow.compiled) == ["first", "third"]
    assert not caplog.records
    slow.close()


def test_the_places_of_all_ranks_are_not_looked_at_for_each_of_them(tmp_path: Path) -> None:
    looks = 0

    class Places(tuple[Assignment, ...]):
        def __iter__(self) -> Iterator[Assignment]:
            nonlocal looks
            looks += 1
            return super().__iter__()

    async def scene() -> Slow:
        slow = Slow(tmp_path)
        places = Places(Assignment(r, f"n{r}/cpu:0", f"n{r}", "cpu:0") for r in range(8))
        record = JobRecord("j1", slow.spec("a"), assignments=places, attempt=1)
        for place in places[:]:
            slow.plans.tell_prepare(TellPrepare(place.daemon, record, place.rank, 0, 1, ""))
        await slow.end()
        return slow

    slow = asyncio.run(scene())
    assert slow.compiled == ["a"]
    assert looks <= 2  # to ask for the plan, and to compile it
    slow.close()


# ---- turns ---------------------------------------------------------------------------------------


async def come(turns: Turns, names: Iterable[str], order: list[str]) -> list[asyncio.Task[None]]:
    """Each stands in the line, in this order; the owner is the first letter."""

    async def one(name: str) -> None:
        async with turns.turn(name[0]):
            order.append(name)
            await asyncio.sleep(0)

    tasks = []
    for name in names:
        tasks.append(asyncio.ensure_future(one(name)))
        await asyncio.sleep(0)
    return tasks


def test_owners_take_turns_and_each_keeps_its_order() -> None:
    async def scene() -> list[str]:
        turns, order = Turns(), list[str]()
        async with turns.turn("x"):
            tasks = await come(turns, ("a1", "a2", "a3", "b1", "c1", "b2"), order)
        await asyncio.gather(*tasks)
        async with turns.turn("x", 0.0):  # free again
            return order

    assert asyncio.run(scene()) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_waits_no_more_is_left_out() -> None:
    async def scene() -> list[str]:
        turns, order = Turns(), list[str]()
        async with turns.turn("x"):
            tasks = await come(turns, ("a1", "a2", "b1"), order)
            tasks[0].cancel()
            with pytest.raises(asyncio.TimeoutError):
                async with turns.turn("b", 0.001):
                    order.append("never")
        tasks[1].cancel()  # just when its turn has come
        await asyncio.gather(*tasks, return_exceptions=True)
        async with turns.turn("x", 0.0):
            return order

    assert asyncio.run(scene()) == ["b1"]


def test_an_error_passes_it_on() -> None:
    async def scene() -> list[str]:
        turns, order = Turns(), list[str]()
        with pytest.raises(ValueError, match="mine"):
            async with turns.turn("x"):
                tasks = await come(turns, ("a1",), order)
                raise ValueError("mine")
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(scene()) == ["a1"]
