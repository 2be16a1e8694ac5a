"""Views of actors from outside, and the causes to which an idle rank puts its time down."""

from __future__ import annotations

import gc
import re
import weakref
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest

from oneflow.actors import running_jobs
from oneflow.actors.actor import Actor, Input, Output
from oneflow.actors.bind import BoundActor, bind
from oneflow.actors.bus import InProcessBus
from oneflow.actors.executor import Executor
from oneflow.actors.in_process import _Memory
from oneflow.actors.job import Job
from oneflow.actors.messages import KERNEL_DONE, Freed, Post, Ready, Send
from oneflow.core.errors import HangError
from oneflow.core.metrics import METRICS
from oneflow.kernels.hardware import Cpu

from .programs import Array, compile_text, initial, shards, two_layers

RATE = np.array(0.005, np.float64)


def feeds_and_variables(plan):
    arrays: dict[str, Array] = {**initial(), "lr": RATE}
    return shards(plan, "input", arrays), shards(plan, "variable", arrays)


def alone() -> tuple[Job, dict[str, Array]]:
    plan = compile_text(two_layers("cpu[0]", "cpu[0]", "B"), 1)
    feeds, variables = feeds_and_variables(plan)
    return Job(plan, 0, variables[0]), feeds[0]


class SlowBus(InProcessBus):
    """Nobody answers; each look takes a known time of a clock that only moves here."""

    def __init__(self, clock: list[float], rank: int) -> None:
        super().__init__(rank, {0: deque(), 1: deque()})
        self._clock = clock

    def wait(self, timeout_s: float) -> None:
        self._clock[0] += timeout_s


def stuck(monkeypatch: pytest.MonkeyPatch, rank: int, second: str, pieces: int = 1) -> Executor:
    """Rank `rank` of a pair whose other rank never does anything."""
    text = two_layers("cpu[0]", second, "B", pieces=pieces)
    plan = compile_text(text, 2)
    feeds, variables = feeds_and_variables(plan)
    clock = [100.0]
    monkeypatch.setattr("oneflow.actors.executor.perf_counter", lambda: clock[0])
    monkeypatch.setattr("oneflow.actors.executor.time.monotonic", lambda: clock[0])
    bound = bind(plan, rank, Cpu(), _Memory(plan), variables[rank])
    bound.feed.arrays = feeds[rank]
    return Executor(bound, SlowBus(clock, rank), timeout_s=10.0)


def waits() -> dict[tuple[str, str], float]:
    return {key: seconds for key, seconds in METRICS.wait_seconds.items() if seconds}


@pytest.fixture(autouse=True)
def fresh_counters(monkeypatch):
    monkeypatch.setattr(running_jobs, "_jobs", weakref.WeakSet())  # other tests may still hold some
    METRICS.reset()
    yield
    METRICS.reset()


def test_the_second_stage_waits_for_input(monkeypatch):
    executor = stuck(monkeypatch, 1, "cpu[1]")
    with pytest.raises(HangError):
        executor.run_step()
    found = waits()
    assert set(found) == {("boxing", "no_input")}  # not its segments: they wait for the boxing
    assert found["boxing", "no_input"] == pytest.approx(10.0, abs=0.2)


def test_the_first_stage_waits_for_free_slots_too(monkeypatch):
    executor = stuck(monkeypatch, 0, "cpu[1]", pieces=6)
    with pytest.raises(HangError):
        executor.run_step()
    found = waits()
    assert set(found) == {("unpack", "no_free_register"), ("boxing", "no_input")}
    assert all(seconds == pytest.approx(10.0, abs=0.2) for seconds in found.values())


def test_a_rank_that_never_waits_counts_no_waiting():
    job, feeds = alone()
    for _ in range(3):
        job.run(feeds)
    assert waits() == {}


def test_a_hang_names_rank_register_and_last_messages(monkeypatch):
    executor = stuck(monkeypatch, 1, "cpu[1]")
    with pytest.raises(HangError) as caught:
        executor.run_step()
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("rank 1: nothing moved for 10 s in step 0:")
    assert re.search(r"boxing\.\d+.*: 0 acts, waits for input r\d+ from rank 0; last", lines[1])
    assert any("last messages: Ready(channel=" in line for line in lines)


def test_a_long_report_is_cut_and_those_who_wait_for_others_come_first():
    actors = {}
    spec = compile_text(two_layers("cpu[0]", "cpu[0]", "B"), 1).actors[0]
    for i in range(40):
        source = 7 if i == 39 else -1
        actor = Actor(f"a{i}", [Input("r1", (Post(7, 0),), 1, source)], [])
        actor.quota = 1
        actors[i] = BoundActor(spec, actor, lambda a, b: None)
    bound = SimpleNamespace(actors=actors, codebook={}, rank=0, turns=None)
    report = Executor(bound, None).report().splitlines()  # type: ignore[arg-type]
    assert report[0] == "  a39: 0 acts, waits for input r1 from rank 7; last messages: none"
    assert report[-1] == "  and 16 more actors" and len(report) == 25


def test_what_an_actor_lacks():
    far = Input("r1", (Post(1, 0),), 1, 1)
    near = Input("r2", (Send(0, Freed(0, 0)),))
    out = Output("r3", ((Post(1, 4),),), 1, readers=(1,))
    actor = Actor("a", [far, near], [out])
    assert actor.lacks() == ""  # the near one is missing too
    actor.handle(Ready(1, 0))
    assert actor.lacks() == "no_input"
    actor.handle(Ready(0, 0))
    assert actor.lacks() == ""
    actor.allow(2)
    actor.handle(KERNEL_DONE)  # its only slot is full now
    actor.handle(Ready(0, 0))
    actor.handle(Ready(1, 0))
    assert actor.lacks() == "no_free_register"
    assert actor.waits_for() == "a free slot of r3, which rank 1 reads"


def test_registers_actors_and_memory_are_counted_when_asked_for():
    job, feeds = alone()
    running_jobs.refresh(METRICS)
    num_slots = sum(r.num_slots for r in job.bound.plan.registers)
    assert sum(METRICS.registers.values()) == num_slots
    assert all(not n or state == "free" for (_, state), n in METRICS.registers.items())
    assert METRICS.device_memory == {"reserved": job.bound.arena_nbytes, "used": 0}
    job.executor.bound.feed.arrays = feeds
    job.executor.begin_step()
    job.executor.advance(1)  # the first actor has filled a slot, the next is about to read it
    running_jobs.refresh(METRICS)
    assert sum(METRICS.registers.values()) == num_slots
    assert METRICS.registers["io", "filled"] == 1
    assert 0 < METRICS.device_memory["used"] <= job.bound.arena_nbytes
    assert METRICS.actor_states["segment", "running"] == 1
    assert "waits for" in running_jobs.report()
    job.close()
    running_jobs.refresh(METRICS)
    assert sum(METRICS.registers.values()) == 0 and METRICS.device_memory["reserved"] == 0


def test_progress_grows_within_a_step():
    job, feeds = alone()
    before = running_jobs.progress()
    job.executor.bound.feed.arrays = feeds
    job.executor.begin_step()
    job.executor.advance(1)
    assert running_jobs.progress() == before + 1
    while job.executor.advance(1):
        pass
    acts = sum(a.acts for a in job.bound.plan.actors)
    assert running_jobs.progress() == running_jobs.progress() == before + acts
    assert METRICS.acts["segment"] == sum(
        a.acts for a in job.bound.plan.actors if a.kind.name == "SEGMENT"
    )


def test_local_messages_are_counted_by_what_a_step_must_send():
    job, feeds = alone()
    delivered = 0
    for key, bound in job.bound.actors.items():
        handle = bound.actor.handle

        def counting(message, handle=handle):
            nonlocal delivered
            delivered += isinstance(message, (Ready, Freed))
            return handle(message)

        job.executor._handlers[key] = counting
    job.run(feeds)
    job.close()
    assert METRICS.messages_sent["local"] == delivered > 0


def test_a_job_that_goes_away_has_been_counted():
    gc.collect()  # or what other tests have left would be counted here
    METRICS.reset()
    job, feeds = alone()
    job.run(feeds)
    acts = sum(a.acts for a in job.bound.plan.actors)
    del job
    gc.collect()
    assert sum(METRICS.acts.values()) == acts
    assert running_jobs.jobs() == []
