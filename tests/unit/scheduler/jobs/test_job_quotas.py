"""Queues: the devices that their jobs hold together, and the jobs that they take."""

from __future__ import annotations

from typing import Any

import pytest

from oneflow.core.errors import JobSpecError
from oneflow.scheduler.jobs.events import CancelAsked, ChangeAsked, DrainAsked, Rejected
from oneflow.scheduler.jobs.quotas import Queue, check_queue, find_queue
from oneflow.scheduler.jobs.records import JobSpec
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.specs import spec_from_proto, spec_to_proto

from .table_rig import WALL, Rig


def rig(devices: int, grow_s: float = 30.0, **queues: Queue) -> Rig:
    return Rig(devices, settings=Settings(queues=queues, grow_s=grow_s))


def going(found: Rig) -> list[str]:
    return sorted(found.table.attempts.live)


def end(found: Rig, job_id: str) -> None:
    found.prepare(job_id)
    for rank in range(len(found.job(job_id).assignments)):
        found.exit(rank, 0, job_id=job_id)


def test_jobs_of_a_queue_hold_no_more_devices_than_it_may_and_others_pass() -> None:
    found = rig(6, research=Queue(devices=3))
    for number in range(3):
        found.submit(f"j{number}", devices=2, queue="research")
    assert going(found) == ["j0"]
    said = "needs 2 cpu devices: queue research holds 2 of its 3 cpu devices"
    assert found.job("j1").pending == said
    assert found.job("j2").pending == f"{said}; after job j1, which is before it in the queue"
    found.submit("other", devices=2)
    found.submit("small", queue="research")
    assert going(found) == ["j0", "other"], "the last device of the queue is kept for j1"
    end(found, "j0")
    assert going(found) == ["j1", "other"]


def test_a_user_holds_no_more_than_its_part_of_the_queue() -> None:
    found = rig(6, research=Queue(devices=5, user_devices=2))
    for number in range(2):
        found.submit(f"a{number}", devices=2, queue="research", owner="ada")
    found.submit("b", devices=2, queue="research", owner="bob")
    assert going(found) == ["a0", "b"]
    assert found.job("a1").pending == (
        "needs 2 cpu devices: ada in research holds 2 of its 2 cpu devices"
    )
    found.do(CancelAsked("a0", "ada", WALL))
    for rank in range(2):
        found.exit(rank, 143, "PREEMPTED", "a0")
    assert going(found) == ["a1", "b"]


def test_a_job_that_waits_for_devices_keeps_its_part_of_the_queue_too() -> None:
    found = rig(4, research=Queue(devices=3))
    found.join("n9/cpu:0")
    found.submit("busy", devices=2, only_nodes=("n0",))
    found.submit("first", devices=3, queue="research", only_nodes=("n0",))
    found.submit("later", queue="research", only_nodes=("n9",))
    said = "needs 1 cpu device on n9: queue research holds 3 of its 3 cpu devices"
    assert going(found) == ["busy"] and found.job("later").pending == said
    found.submit("other", only_nodes=("n9",))
    assert going(found) == ["busy", "other"]


def test_one_too_large_for_the_devices_present_keeps_nobody_of_its_queue_back() -> None:
    found = rig(4, research=Queue(devices=8))
    found.submit("one", queue="research")
    found.submit("huge", devices=8, queue="research")
    found.submit("small", queue="research")
    assert going(found) == ["one", "small"]


def test_an_elastic_job_begins_and_grows_within_its_queue() -> None:
    found = rig(3, grow_s=0.0, research=Queue(devices=3))
    found.submit("held", queue="research")
    found.run("j1", devices=1, max_devices=4, queue="research")
    assert len(found.job("j1").assignments) == 2
    found.join("n0/cpu:3")
    found.pass_time(3)
    assert not found.table.attempts.live["j1"].is_stopping, "its queue holds 3 of 3"
    end(found, "held")
    found.pass_time(3)
    assert found.table.attempts.live["j1"].is_stopping


def test_devices_free_for_no_job_of_a_full_queue_are_taken_by_an_elastic_one() -> None:
    found = rig(3, grow_s=0.0, research=Queue(devices=1))
    found.run("j1", devices=1, max_devices=4)
    found.submit("r0", queue="research")
    found.do(CancelAsked("r0", "me", WALL))
    for name in ("n0/cpu:3", "n0/cpu:4"):
        found.join(name)
    found.submit("r1", queue="research")
    found.submit("r2", queue="research")
    assert going(found) == ["j1", "r1"]
    found.pass_time(3)
    assert found.table.attempts.live["j1"].is_stopping, "r2 waits for its queue, not for devices"


def test_what_a_queue_holds_is_known_after_a_crash_and_when_nothing_is_left_of_it() -> None:
    queues = {"research": Queue(devices=2)}
    found = rig(4, **queues)
    found.run("j1", devices=2, queue="research")
    found.submit("j2", queue="research")
    after = found.after_a_crash()
    after.join("n1/cpu:0")
    assert after.job("j2").pending.endswith("queue research holds 2 of its 2 cpu devices")
    end(found, "j1")
    end(found, "j2")
    assert found.table.held(("cpu", "research")) == 0
    found.submit("j3", devices=2, queue="research")
    found.table.withdraw("j3")
    assert found.table.held(("cpu", "research")) == 0


def test_a_queue_that_is_configured_no_more_lets_nothing_begin() -> None:
    found = rig(1, old=Queue())
    found.run("j1", queue="old")
    found.submit("j2", queue="old")
    found.settings = Settings()
    after = found.after_a_crash()
    after.join("n1/cpu:0")
    assert after.job("j2").pending == "needs 1 cpu device: queue old is not configured any more"
    assert str(after.job("j1").state) == "RUNNING"


def test_the_time_limit_of_a_queue_ends_its_jobs() -> None:
    found = rig(1, short=Queue(max_time_limit_s=5.0))
    found.run(queue="short")
    found.pass_time(6)
    assert {stop.why for stop in found.said("stop")} == {"its time limit of 5 s is over"}


def test_a_priority_above_that_of_the_queue_is_refused_later_too() -> None:
    found = rig(1, research=Queue(max_priority=3))
    found.do(DrainAsked("", 0.0))
    found.submit(queue="research")
    found.do(ChangeAsked("j1", priority=4))
    said = found.told(Rejected)[-1].message
    assert said == "priority=4: queue research allows priorities up to 3"
    found.do(ChangeAsked("j1", priority=3))
    assert found.job().priority == 3


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"queue": "reserch"}, "queue 'reserch': there is no such queue; there are default, one"),
        ({"devices": 9}, "devices=9: its jobs in queue research may hold 8 together"),
        ({"devices": 5, "queue": "one"}, "devices=5: the jobs of one user in queue one may hold 4"),
        ({"priority": 4}, "priority=4: queue research allows priorities up to 3"),
        ({"time_limit_s": 61.0}, "time_limit_s=61: queue research allows 60 seconds"),
    ],
)
def test_a_job_that_can_never_run_in_its_queue_is_refused(wish: dict[str, Any], said: str) -> None:
    queues = {
        "research": Queue(devices=8, max_priority=3, max_time_limit_s=60.0),
        "one": Queue(devices=8, user_devices=4),
    }
    good = {"devices": 8, "priority": 3, "time_limit_s": 60.0, "queue": "research"}
    check_queue(JobSpec(**good), queues)
    with pytest.raises(JobSpecError) as caught:
        check_queue(JobSpec(**{**good, **wish}), queues)
    assert str(caught.value).startswith(said)


def test_the_default_queue_is_there_until_an_operator_says_otherwise() -> None:
    assert find_queue({}, "") == find_queue({}, "default") == Queue()
    assert find_queue({"default": Queue(devices=2)}, "") == Queue(devices=2)
    assert find_queue({}, "research") is None
    assert Queue(users=("ada",)).admits("ada") and not Queue(users=()).admits("ada")


def test_the_queue_survives_the_wire() -> None:
    spec = JobSpec(argv=("x",), queue="research")
    assert spec_from_proto(spec_to_proto(spec)) == spec
