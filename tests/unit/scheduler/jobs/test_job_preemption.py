"""Preemption: which running jobs are stopped for one of higher priority, and how they go on."""

from __future__ import annotations

from typing import Any

import pytest

from oneflow.scheduler.jobs.events import CancelAsked, ChangeAsked, Ticked
from oneflow.scheduler.jobs.quotas import Queue
from oneflow.scheduler.jobs.records import JobState
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.specs import spec_from_proto, spec_to_proto

from .table_rig import WALL, Rig

LOW: dict[str, Any] = {"preemptible": True}


def rig(devices: int, nodes: int = 1, **queues: Queue) -> Rig:
    return Rig(devices, nodes, settings=Settings(queues=queues, usage_half_life_s=0.0))


def stopped(found: Rig) -> list[str]:
    live = found.table.attempts.live
    return sorted(job_id for job_id, attempt in live.items() if attempt.is_stopping)


def end(found: Rig, job_id: str, code: int = 143) -> None:
    """All ranks of a job end as they were told to."""
    for rank in list(found.table.attempts.live[job_id].live_ranks()):
        found.exit(rank.number, code, "PREEMPTED" if code else "", job_id)


def submit(found: Rig, job_id: str, **spec: Any) -> None:
    """Submit a job, and let a moment pass: nobody is stopped for one that may not be durable."""
    found.submit(job_id, **spec)
    assert not found.said("stop")
    found.do(Ticked(WALL + found.now), 0.1)


def state(found: Rig, job_id: str) -> str:
    return str(found.job(job_id).state)


def test_a_job_of_higher_priority_takes_the_devices_and_gives_them_back() -> None:
    found = rig(2)
    found.run("low", devices=2, **LOW)
    found.progress(7, checkpoint=5, job_id="low")
    submit(found, "high", devices=2, priority=1)
    assert {stop.why for stop in found.said("stop")} == {"job high of priority 1 needs its devices"}
    assert found.job("high").pending == "needs 2 cpu devices: job low is being stopped"
    end(found, "low")
    record = found.job("low")
    assert (state(found, "low"), state(found, "high")) == ("RESTARTING", "STARTING")
    assert (record.reason, record.restarts_spent, record.futile_restarts) == ("PREEMPTED", 0, 0)
    assert record.cause == "job high of priority 1 needs its devices"
    found.prepare("high")
    end(found, "high", code=0)
    assert state(found, "low") == "STARTING"
    prepared = found.prepare("low")
    assert not prepared and found.job("low").last_checkpoint_step == 5


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ({}, {"priority": 5}),  # it does not allow it
        ({"preemptible": True, "priority": 5}, {"priority": 5}),  # not lower
        ({"preemptible": True}, {"priority": 5, "devices": 3}),  # not enough even then
        ({"preemptible": True}, {"priority": 5, "only_nodes": ("n1",), "devices": 2}),
    ],
)
def test_nobody_is_stopped_in_vain(low: dict[str, Any], high: dict[str, Any]) -> None:
    found = rig(2)
    found.run("low", **low)
    found.run("firm")
    submit(found, "high", **high)
    found.pass_time(3)
    assert stopped(found) == [] and state(found, "high") == "QUEUED"


def test_what_ends_anyway_is_waited_for() -> None:
    found = rig(2)
    found.run("low", **LOW)
    found.run("ending")
    found.do(CancelAsked("ending", "me", 0.0))
    submit(found, "high", priority=1)
    assert stopped(found) == ["ending"]
    assert found.job("high").pending == "needs 1 cpu device: job ending is being stopped"
    end(found, "ending")
    assert state(found, "high") == "STARTING" and stopped(found) == []


@pytest.mark.parametrize(
    ("running", "wish", "victims"),
    [
        # id, devices, priority; all began in this order
        ([("a", 1, 0), ("b", 1, 0), ("c", 1, 0)], 1, ["c"]),  # the youngest
        ([("a", 1, 1), ("b", 1, 0), ("c", 1, 1)], 1, ["b"]),  # the lowest priority
        ([("a", 1, 0), ("b", 2, 0), ("c", 1, 0)], 2, ["b"]),  # the fewest
        ([("a", 2, 1), ("b", 1, 0), ("c", 1, 0)], 2, ["b", "c"]),  # the lowest before the fewest
        ([("a", 2, 2), ("b", 1, 1), ("c", 1, 0)], 3, ["a", "c"]),
    ],
)
def test_the_fewest_youngest_of_the_lowest_priority_are_chosen(
    running: list[tuple[str, int, int]], wish: int, victims: list[str]
) -> None:
    found = rig(sum(devices for _, devices, _ in running))
    for number, (job_id, devices, priority) in enumerate(running):
        found.run(job_id, devices=devices, priority=priority, **LOW)
        found.pass_time(number + 1)
    submit(found, "high", devices=wish, priority=5)
    assert stopped(found) == victims


def test_only_rivals_on_nodes_that_help_are_stopped() -> None:
    found = rig(4, nodes=2)  # two devices on each of n0 and n1
    for number in range(4):
        found.run(f"low{number}", **LOW, only_nodes=(f"n{number % 2}",))
        found.pass_time(1)
    submit(found, "high", devices=2, nodes=1, priority=1)
    places = {a.node for name in stopped(found) for a in found.job(name).assignments}
    assert len(stopped(found)) == 2 and len(places) == 1


def test_nobody_is_stopped_twice_and_no_job_passes_the_one_that_waits() -> None:
    found = rig(2)
    found.run("low0", **LOW)
    found.run("low1", **LOW)
    submit(found, "high", devices=2, priority=1)
    submit(found, "later", priority=1)
    assert stopped(found) == ["low0", "low1"]
    end(found, "low0")
    assert (state(found, "high"), state(found, "later")) == ("QUEUED", "QUEUED")
    found.pass_time(3)
    end(found, "low1")
    assert (state(found, "high"), state(found, "later")) == ("STARTING", "QUEUED")
    assert [state(found, name) for name in ("low0", "low1")] == ["RESTARTING"] * 2


def test_a_job_that_was_stopped_often_is_not_given_up() -> None:
    found = rig(1)
    found.run("low", **LOW)
    for number in range(6):
        submit(found, f"high{number}", priority=1)
        end(found, "low")
        found.prepare(f"high{number}")
        end(found, f"high{number}", code=0)
        found.prepare("low")
    assert (state(found, "low"), found.job("low").attempt) == ("RUNNING", 7)


def test_a_raised_priority_counts_as_well() -> None:
    found = rig(1)
    found.run("low", **LOW)
    submit(found, "high")
    assert stopped(found) == []
    found.do(ChangeAsked("high", priority=2))
    assert stopped(found) == ["low"]


def test_a_queue_says_it_for_its_jobs_and_a_full_one_makes_room_in_itself() -> None:
    found = rig(4, q=Queue(devices=2, preemptible=True))
    found.run("other", **LOW)
    found.run("low0", queue="q")
    found.pass_time(1)
    found.run("low1", queue="q")
    submit(found, "high", queue="q", priority=1)
    assert stopped(found) == ["low1"], "of another queue it would be of no use"
    end(found, "low1")
    assert state(found, "high") == "STARTING"


def test_an_elastic_job_goes_on_smaller() -> None:
    found = rig(4)
    found.run("low", devices=1, max_devices=4, **LOW)
    submit(found, "high", devices=3, priority=1)
    end(found, "low")
    sizes = [len(found.job(name).assignments) for name in ("high", "low")]
    assert sizes == [3, 1] and found.job("low").state is JobState.STARTING


def test_it_survives_the_wire() -> None:
    found = rig(1)
    spec = found.submit("low", **LOW).spec
    assert spec.preemptible and spec_from_proto(spec_to_proto(spec)) == spec
