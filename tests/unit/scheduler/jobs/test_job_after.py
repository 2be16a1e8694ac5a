"""A job that comes after another one waits for its success, and ends with its failure."""

from __future__ import annotations

import pytest

from oneflow.core.errors import JobSpecError
from oneflow.scheduler.jobs.events import CancelAsked, Rejected, RemoveAsked, Submitted
from oneflow.scheduler.jobs.limits import check_spec
from oneflow.scheduler.jobs.records import JobSpec, JobState
from oneflow.scheduler.jobs.specs import spec_from_proto, spec_to_proto
from oneflow.scheduler.jobs.store import decode_record, encode_record

from .table_rig import WALL, Rig


def chain() -> Rig:
    """j1 runs, j2 comes after it, and j3 after j2; there are devices for all."""
    rig = Rig(3)
    rig.run("j1")
    rig.submit("j2", after="j1")
    rig.submit("j3", after="j2")
    return rig


def states(rig: Rig) -> list[str]:
    return [str(job.state) for job in rig.table.jobs.values()]


def test_it_waits_until_that_job_has_succeeded() -> None:
    rig = chain()
    assert states(rig) == ["RUNNING", "QUEUED", "QUEUED"]
    assert rig.job("j2").pending == "waits for job j1 to succeed"
    rig.exit(0, 0)
    assert states(rig) == ["SUCCEEDED", "STARTING", "QUEUED"]
    assert rig.saved["j2"].is_due and rig.job("j3").pending == "waits for job j2 to succeed"


def test_a_chain_ends_with_a_failure_and_says_why() -> None:
    rig = chain()
    rig.exit(0, 3)
    assert states(rig) == ["FAILED", "CANCELLED", "CANCELLED"]
    assert rig.saved["j2"].cause == "job j1, which it comes after, ended FAILED"
    assert rig.saved["j3"].cause == "job j2, which it comes after, ended CANCELLED"
    assert rig.saved["j3"].reason == "CANCELLED" and rig.saved["j3"].exit_code


def test_one_that_is_due_needs_that_job_no_more() -> None:
    """Its devices are taken; meanwhile the job before it is removed."""
    rig = Rig(1)
    rig.run("j1")
    rig.submit("other", priority=1)
    rig.submit("j2", after="j1")
    rig.exit(0, 0)
    assert states(rig) == ["SUCCEEDED", "STARTING", "QUEUED"]
    rig.do(RemoveAsked("j1"))
    rig.do(CancelAsked("other", "me", WALL))
    rig.exit(0, 143, "PREEMPTED", "other")
    assert rig.job("j2").state is JobState.STARTING


@pytest.mark.parametrize(
    ("after", "code", "state"),
    [("j1:any", 3, "STARTING"), ("j1:any", 0, "STARTING"), ("j1:ok", 3, "CANCELLED")],
)
def test_any_end_will_do_if_that_is_said(after: str, code: int, state: str) -> None:
    rig = Rig(2)
    rig.run("j1")
    rig.submit("j2", after=after)
    rig.exit(0, code)
    assert str(rig.job("j2").state) == state


def test_it_waits_for_all_that_it_names_and_one_is_enough_to_end_it() -> None:
    """An end counts from then on, also if that job is removed before the others have ended."""
    rig = Rig(4)
    rig.run("a")
    rig.run("b")
    rig.submit("both", after="a,b:any")
    rig.submit("never", after="b:any,a,both")
    assert rig.job("both").pending == "waits for job a to succeed, b to end"
    rig.exit(0, 0, job_id="a")
    rig.do(RemoveAsked("a"))
    assert rig.saved["both"].met == ("a",) and not rig.job("both").is_due
    assert rig.job("both").pending == "waits for job b to end"
    rig.exit(0, 5, job_id="b")
    assert rig.job("both").state is JobState.STARTING
    rig.do(CancelAsked("both", "me", WALL))
    rig.exit(0, 143, "PREEMPTED", "both")
    assert rig.job("never").cause == "job both, which it comes after, ended CANCELLED"


@pytest.mark.parametrize(
    ("after", "says"), [("j1:never", "ID:any"), ("j1,j1:any", "twice"), ("j1,", "job id")]
)
def test_a_wish_that_means_nothing_is_refused(after: str, says: str) -> None:
    with pytest.raises(JobSpecError, match=says):
        check_spec(JobSpec(argv=("x",), after=after))


def test_a_job_that_is_not_there_is_refused() -> None:
    rig = Rig(1)
    rig.do(Submitted("j2", JobSpec(argv=("x",), after="j1"), "me", "secret", WALL))
    (refused,) = rig.told(Rejected)
    assert refused.message == "after: there is no job j1" and not rig.table.jobs


def test_after_a_crash_it_still_waits() -> None:
    rig = chain().after_a_crash()
    rig.join("n0/cpu:1")
    assert [rig.job(job_id).state for job_id in ("j2", "j3")] == [JobState.QUEUED] * 2


def test_the_wish_survives_the_wire_and_the_journal() -> None:
    spec = JobSpec(argv=("x",), after="j1")
    check_spec(spec)
    assert spec_from_proto(spec_to_proto(spec)) == spec
    rig = Rig(0)
    rig.submit("j1")
    assert decode_record(encode_record(rig.submit("j2", after="j1"))).spec.after == "j1"
    with pytest.raises(JobSpecError, match="job id"):
        check_spec(JobSpec(argv=("x",), after="../j1"))
