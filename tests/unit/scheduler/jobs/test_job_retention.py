"""Jobs that ended are kept for a while, not for good; what they left goes with them."""

from __future__ import annotations

from typing import Any

import pytest

from oneflow.core.errors import ConfigError
from oneflow.scheduler.jobs.causes import log_path
from oneflow.scheduler.jobs.events import CancelAsked, Remove, RemoveAsked, Tell, Ticked
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.retention import MAX_REMOVED, overdue
from oneflow.scheduler.jobs.settings import Settings

from .table_rig import WALL, Rig

DAY = 86400.0


def ended(job_id: str, age_s: float, **fields: Any) -> JobRecord:
    fields = {"state": JobState.SUCCEEDED, "finished_at": WALL - age_s} | fields
    return JobRecord(job_id, JobSpec(argv=("x",)), **fields)


def failed(job_id: str, age_s: float) -> JobRecord:
    return ended(job_id, age_s, state=JobState.FAILED, last_checkpoint="step-9")


def test_the_newest_stay() -> None:
    jobs = [ended(f"j{age}", age) for age in (4, 1, 3, 2)]
    assert list(overdue(jobs, Settings(keep_jobs=2), WALL)) == ["j4", "j3"]
    assert not overdue(jobs, Settings(keep_jobs=0, keep_s=0.0), WALL)
    assert list(overdue(jobs, Settings(keep_jobs=0, keep_s=2.5), WALL)) == ["j4", "j3"]


def test_what_goes_on_is_never_touched() -> None:
    running = ended("j1", 1e9, state=JobState.RUNNING, finished_at=0.0)
    queued = ended("j2", 1e9, state=JobState.QUEUED, finished_at=0.0)
    assert not overdue([running, queued], Settings(keep_jobs=1, keep_s=1.0), WALL)


def test_failed_jobs_with_a_checkpoint_have_limits_of_their_own() -> None:
    settings = Settings(keep_jobs=1, keep_s=DAY, keep_failed_s=10 * DAY)
    jobs = [failed("old", 11 * DAY), failed("f", 9 * DAY), ended("s", 2 * DAY), ended("t", 1)]
    assert set(overdue(jobs, settings, WALL)) == {"old", "s"}
    plain = ended("no-checkpoint", 2 * DAY, state=JobState.FAILED)
    assert set(overdue([plain], settings, WALL)) == {"no-checkpoint"}


def test_the_table_forgets_them_at_the_daemons_too() -> None:
    rig = Rig(settings=Settings(keep_jobs=1))
    for name in ("j1", "j2"):
        rig.run(name)
        rig.exit(0, 0, job_id=name)
    rig.do(Ticked(WALL + 60), 60)
    assert [(a.job_id, bool(a.why)) for a in rig.told(Remove)] == [("j1", True)]
    assert {(t.daemon, t.message.forget) for t in rig.told(Tell)} == {
        ("n0/cpu:0", "j1"),
        ("n0/cpu:1", "j1"),
    }
    assert list(rig.table.jobs) == ["j2"]


def test_a_daemon_that_was_away_is_told_when_it_comes_back() -> None:
    rig = Rig(1)
    rig.run()
    rig.exit(0, 0)
    rig.do(RemoveAsked("j1"))
    rig.join("n1/cpu:0", kept=["j1", "another-clusters"])
    assert rig.said("forget") == ["j1"]
    after = Rig(0, removed=[("j1", 0)])
    after.join("n1/cpu:0", kept=["j1"])
    assert after.said("forget") == ["j1"]
    after.submit("j1")  # another one of that name: its files must stay
    after.join("n2/cpu:0", kept=["j1", "j1~1", "j1~x"])
    assert after.said("forget") == ["j1"]


def test_what_is_remembered_of_removed_jobs_is_bounded() -> None:
    rig = Rig(0, removed=[(f"r{n}", 0) for n in range(MAX_REMOVED)])
    rig.submit("j1")
    rig.do(CancelAsked("j1", "me", WALL))
    rig.do(RemoveAsked("j1"))
    removed = rig.table._desk.removed
    assert len(removed) == MAX_REMOVED and "j1" in removed and "r0" not in removed


def test_the_log_of_the_rank_that_failed_is_named() -> None:
    rig = Rig(2, nodes=2)
    rig.run(devices=2)
    rig.exit(1, 7)
    rig.exit(0, 143, "PREEMPTED")
    assert log_path(rig.job()) == "/n1/jobs/j1/1/rank1/stderr"


@pytest.mark.parametrize("limits", [{"keep_jobs": -1}, {"keep_s": -1.0}])
def test_limits_are_checked(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Settings(**limits).check()
