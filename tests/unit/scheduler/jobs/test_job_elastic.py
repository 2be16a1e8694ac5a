"""Elastic jobs: they begin on the devices that there are, go on smaller after a loss and larger
after a join.
"""

from __future__ import annotations

from typing import Any

import pytest

from oneflow.cluster.submitting import make_spec
from oneflow.core.errors import JobSpecError
from oneflow.scheduler.jobs.events import DrainAsked, Ticked
from oneflow.scheduler.jobs.limits import check_spec
from oneflow.scheduler.jobs.records import JobKind, JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.specs import spec_from_proto, spec_to_proto

from .table_rig import WALL, Rig

GROW_S = 30.0
ELASTIC = {"devices": 3, "max_devices": 4}


def size(record: JobRecord) -> int:
    return len(record.assignments)


def rig(devices: int, **options: Any) -> Rig:
    return Rig(devices, settings=Settings(grow_s=GROW_S), **options)


def end_all(found: Rig, code: int = 143, job_id: str = "j1") -> None:
    """All ranks of the attempt that are left end as they were told to."""
    attempt = found.table.attempts.live[job_id]
    for rank in list(attempt.live_ranks()):
        found.exit(rank.number, code, "PREEMPTED", job_id, attempt=attempt.number)


@pytest.mark.parametrize(("present", "begun"), [(2, 0), (3, 3), (4, 4), (6, 4)])
def test_it_begins_on_as_many_devices_as_there_are_within_its_bounds(
    present: int, begun: int
) -> None:
    found = rig(present)
    record = found.submit(**ELASTIC)
    assert size(record) == begun
    if not begun:
        assert (
            record.pending
            == "needs 3:4 cpu devices: the cluster has only 2; it waits until more join"
        )


def test_it_goes_on_smaller_then_larger_and_spends_no_restart() -> None:
    found = rig(4)
    found.run(**ELASTIC)
    found.pass_time(GROW_S)
    found.silent.add("n0/cpu:3")
    found.pass_time(11)
    end_all(found)
    assert (found.job().state, size(found.job()), found.job().attempt) == (JobState.STARTING, 3, 2)
    found.prepare()
    found.silent.clear()
    found.join("n0/cpu:3", incarnation=999)
    found.pass_time(GROW_S - 1)
    assert found.job().state is JobState.RUNNING and not found.table.attempts.live["j1"].is_stopping
    found.pass_time(2)
    stops = {stop.why for stop in found.said("stop")}
    assert stops == {"goes on with 4 devices instead of 3"}
    end_all(found)
    record = found.job()
    assert (size(record), record.attempt, record.restarts_spent) == (4, 3, 0)
    assert record.futile_restarts == 0
    found.prepare()
    for rank in range(4):
        found.exit(rank, 0)
    assert found.job().state is JobState.SUCCEEDED


def test_ranks_that_exit_0_when_told_to_grow_have_not_finished() -> None:
    found = rig(3)
    found.run(**ELASTIC)
    found.join("n0/cpu:3")
    found.pass_time(GROW_S + 1)
    end_all(found, code=0)
    assert (found.job().state, size(found.job())) == (JobState.STARTING, 4)


def test_a_failure_while_it_is_stopped_to_grow_is_a_failure() -> None:
    found = rig(3)
    found.run(**ELASTIC)
    found.join("n0/cpu:3")
    found.pass_time(GROW_S + 1)
    found.exit(1, 3)
    end_all(found)
    assert (found.job().state, found.job().exit_code) == (JobState.FAILED, 3)


def test_devices_that_another_job_waits_for_or_can_use_are_not_taken() -> None:
    found = rig(3)
    found.run(**ELASTIC)
    found.submit("j2", devices=2)
    found.join("n0/cpu:3")
    found.pass_time(2 * GROW_S)
    assert found.job("j2").state is JobState.QUEUED, "it needs one more"
    assert not found.table.attempts.live["j1"].is_stopping
    found.join("n0/cpu:4")
    assert found.job("j2").state is JobState.STARTING


def test_a_job_that_no_cluster_of_this_size_can_run_keeps_nobody_from_growing() -> None:
    found = rig(3)
    found.run(**ELASTIC)
    found.submit("j2", devices=20)
    found.join("n0/cpu:3")
    found.pass_time(GROW_S + 1)
    assert found.table.attempts.live["j1"].is_stopping


def test_two_elastic_jobs_do_not_stop_for_the_same_device() -> None:
    found = rig(4)
    found.run(devices=2, max_devices=3)
    end = found.job().assignments
    assert len(end) == 3
    found.join("n0/cpu:4")
    found.run("j2", devices=2, max_devices=3)
    found.join("n0/cpu:5")
    found.pass_time(GROW_S + 1)
    assert not found.table.attempts.live["j1"].is_stopping
    assert found.table.attempts.live["j2"].is_stopping


def test_a_drained_device_is_left_and_the_job_goes_on_with_the_others() -> None:
    found = rig(4)
    found.run(**ELASTIC)
    found.do(DrainAsked("n0/cpu:1", 0.0))
    found.do(Ticked(WALL + found.now), 1.0)
    end_all(found)
    daemons = [place.daemon for place in found.job().assignments]
    assert daemons == ["n0/cpu:0", "n0/cpu:2", "n0/cpu:3"] and found.job().restarts_spent == 0


def test_losses_after_a_while_never_add_up_to_giving_it_up() -> None:
    found = rig(5)
    found.run(devices=2, max_devices=3)
    for number in range(6):
        found.pass_time(GROW_S)
        attempt = found.table.attempts.live["j1"]
        lost = attempt.ranks[0].daemon
        found.silent.add(lost)
        found.pass_time(11)
        end_all(found)
        found.silent.clear()
        found.join(lost, incarnation=1000 + number)
        assert found.job().state is JobState.STARTING, found.job().cause
        found.prepare()


def test_a_job_that_is_lost_at_once_each_time_is_given_up() -> None:
    found = rig(5)
    found.run(devices=2, max_devices=3)
    for number in range(4):
        lost = found.table.attempts.live["j1"].ranks[0].daemon
        found.silent.add(lost)
        found.pass_time(11)
        end_all(found)
        found.silent.clear()
        found.join(lost, incarnation=1000 + number)
        if found.job().state is JobState.STARTING:
            found.prepare()
    assert found.job().state is JobState.FAILED
    assert "given up: no new checkpoint in 3 restarts" in found.job().cause


def test_devices_are_a_number_or_a_range() -> None:
    script = {"argv": ("x",)}
    for asked, least, most in ((3, 3, 0), ("3", 3, 0), ("3:4", 3, 4)):
        spec = make_spec(JobKind.SCRIPT, {"devices": asked}, **script)
        assert (spec.devices, spec.max_devices) == (least, most)
        assert spec_from_proto(spec_to_proto(spec)) == spec
    assert (JobSpec(**ELASTIC).size, JobSpec(devices=2).size) == ("3:4", "2")
    with pytest.raises(JobSpecError, match="devices='3-4': must be a whole number, or MIN:MAX"):
        make_spec(JobKind.SCRIPT, {"devices": "3-4"}, **script)
    with pytest.raises(JobSpecError, match="devices=4:3: MIN must not be more than MAX"):
        check_spec(JobSpec(argv=("x",), devices=4, max_devices=3))
    graph = "a" * 64
    with pytest.raises(JobSpecError, match="for script and graph jobs; give one number"):
        check_spec(JobSpec(kind=JobKind.INFERENCE, graph=graph, **ELASTIC))
    with pytest.raises(JobSpecError, match="devices=1:65: a graph job may have at most 64 sizes"):
        check_spec(JobSpec(kind=JobKind.GRAPH, graph=graph, devices=1, max_devices=65))
