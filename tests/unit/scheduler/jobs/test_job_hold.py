"""A job that waits is held and released, and moved in the queue."""

from __future__ import annotations

import pytest

from oneflow.scheduler.jobs.events import CancelAsked, ChangeAsked, Rejected, RestartAsked
from oneflow.scheduler.jobs.records import JobSpec, JobState
from oneflow.scheduler.jobs.specs import (
    record_from_proto,
    record_to_proto,
    spec_from_proto,
    spec_to_proto,
)

from .table_rig import WALL, Rig


def states(rig: Rig) -> list[str]:
    return [str(job.state) for job in rig.table.jobs.values()]


def test_one_that_is_held_lets_others_pass_and_starts_when_it_is_released() -> None:
    rig = Rig(2)
    rig.submit("j1", hold=True)
    rig.submit("j2")
    assert states(rig) == ["QUEUED", "STARTING"]
    assert rig.job("j1").pending == "held, until `oneflow job release j1`"
    rig.do(ChangeAsked("j1", is_held=False))
    assert states(rig) == ["STARTING", "STARTING"] and not rig.saved["j1"].is_held


def test_a_hold_survives_a_crash_and_ends_with_a_cancel_or_a_restart() -> None:
    rig = Rig(1)
    rig.run("j1")
    rig.submit("j2")
    rig.do(ChangeAsked("j2", is_held=True))
    after = rig.after_a_crash()
    assert after.job("j2").is_held
    after.do(CancelAsked("j2", "me", WALL))
    assert after.job("j2").state is JobState.CANCELLED
    after.do(RestartAsked("j2", "me", WALL))
    assert after.job("j2").state is JobState.QUEUED and not after.job("j2").is_held


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (ChangeAsked("j1", is_held=True), "job j1 is RUNNING: only one that waits is held"),
        (ChangeAsked("j9", is_held=True), "there is no job j9"),
        (ChangeAsked("j2", priority=3), "job j2 has ended CANCELLED"),
    ],
)
def test_what_does_not_wait_is_not_changed(event: ChangeAsked, says: str) -> None:
    rig = Rig(1)
    rig.run("j1")
    rig.submit("j2")
    rig.do(CancelAsked("j2", "me", WALL))
    rig.do(event)
    assert rig.told(Rejected)[-1].message == says


def test_another_priority_is_another_place_in_the_queue() -> None:
    """The spec stays as it was submitted, so that the same submission is known again."""
    rig = Rig(1)
    rig.run("j1")
    rig.submit("j2", priority=2)
    rig.submit("j3")
    rig.do(ChangeAsked("j3", priority=5))
    assert (rig.saved["j3"].priority, rig.saved["j3"].spec.priority) == (5, 0)
    rig.exit(0, 0)
    assert states(rig) == ["SUCCEEDED", "QUEUED", "STARTING"]
    rig.submit("j3")
    assert len(rig.table.jobs) == 3


def test_both_survive_the_wire() -> None:
    spec = JobSpec(argv=("x",), hold=True)
    assert spec_from_proto(spec_to_proto(spec)) == spec
    rig = Rig(0)
    rig.submit("j1", hold=True, priority=1)
    rig.do(ChangeAsked("j1", priority=-4))
    found = record_from_proto(record_to_proto(rig.job("j1")))
    assert found.is_held and found.priority == -4
