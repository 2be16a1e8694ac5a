"""Jobs that ended are kept for a while, not for good; their files go with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oneflow.core.errors import ConfigError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.causes import log_path
from oneflow.scheduler.jobs.events import (
    CancelAsked,
    Remove,
    RemoveAsked,
    SaveClock,
    Tell,
    TellPrepare,
    Ticked,
)
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.retention import MAX_REMOVED, overdue
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.store import SqliteStore

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
    assert not rig.told(Remove), "removed on the first look"
    rig.do(Ticked(WALL + 120), 60)
    assert [(a.job_id, bool(a.why)) for a in rig.told(Remove)] == [("j1", True)]
    assert {(t.daemon, t.message.retire) for t in rig.told(Tell)} == {
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
    assert rig.said("retire") == ["j1"]
    after = Rig(0, removed=[("j1", 0)])
    after.join("n1/cpu:0", kept=["j1"])
    assert after.said("retire") == ["j1"]
    after.submit("j1")  # another one of that name: its files must stay
    after.join("n2/cpu:0", kept=["j1", "j1~1", "j1~x"])
    assert after.said("retire") == ["j1"]


def test_a_restored_journal_gives_an_id_that_daemons_know_a_later_life() -> None:
    rig = Rig(0)
    rig.join("n1/cpu:0", kept=["j1", "j2~3", "j2~1"])
    assert (rig.submit("j1").life, rig.submit("j2").life, rig.submit("j3").life) == (1, 4, 0)


def test_a_queued_job_of_the_copy_that_has_run_since_gets_a_later_life() -> None:
    rig = Rig(0)
    rig.submit("j1")
    rig.join("n1/cpu:0", kept=["j1"])
    assert rig.saved["j1"].life == rig.table.jobs["j1"].life == 1
    (told,) = rig.told(TellPrepare)
    assert told.record.life == 1
    rig.hear("n1/cpu:0", exited=pb.Exited(id=pb.AttemptId(job_id="j1", attempt=1)))
    assert rig.table.jobs["j1"].state is JobState.STARTING, "the end was that of the other life"


def test_a_job_that_this_journal_started_keeps_its_life() -> None:
    rig = Rig(1)
    life = rig.run().life
    rig.join("n1/cpu:0", kept=["j1"])
    assert rig.table.jobs["j1"].life == life == 0


def looks(rig: Rig, ahead_s: float, for_s: float, every_s: float = 300.0) -> list[str]:
    """Let time pass with the wall clock ahead. Return the ids of jobs that are removed."""
    found = []
    for _ in range(round(for_s / every_s)):
        actions = rig.do(Ticked(WALL + rig.now + every_s + ahead_s), every_s)
        found += [a.job_id for a in actions if isinstance(a, Remove)]
    return found


@pytest.mark.parametrize("kept_wall", [0.0, WALL])
def test_a_clock_that_is_ahead_at_the_start_is_not_believed_at_once(kept_wall: float) -> None:
    settings = Settings(keep_s=30 * DAY)
    rig = Rig(0, settings=settings, now=0.0, records=[ended("j1", DAY)], wall=kept_wall)
    assert looks(rig, 100 * DAY, 3600 - 300) == []
    assert looks(rig, 0.0, 2 * 3600) == []
    assert list(rig.table.jobs) == ["j1"]


def test_a_clock_that_keeps_to_its_jump_is_believed_after_an_hour() -> None:
    """So does that of a scheduler that was away for long."""
    rig = Rig(0, settings=Settings(keep_s=30 * DAY), now=0.0, records=[ended("j1", 1)], wall=WALL)
    assert looks(rig, 100 * DAY, 3600) == []
    assert looks(rig, 100 * DAY, 600) == ["j1"]


def test_a_clock_that_jumps_to_and_fro_is_not_believed() -> None:
    rig = Rig(0, settings=Settings(keep_s=30 * DAY), now=0.0, records=[ended("j1", 1)], wall=WALL)
    for _ in range(4):
        assert looks(rig, 100 * DAY, 1800) == []
        assert looks(rig, 200 * DAY, 1800) == []
        assert looks(rig, -DAY, 600) == []


def test_the_believed_time_survives_the_scheduler(tmp_path: Path) -> None:
    """Records that a wrong clock wrote make no difference to the next scheduler's belief."""
    rig = Rig(0, now=0.0, wall=WALL)
    saved = [a.wall for a in rig.do(Ticked(WALL + 1), 1) if isinstance(a, SaveClock)]
    assert saved == []
    saved = [a.wall for a in rig.do(Ticked(WALL + 1990), 2000) if isinstance(a, SaveClock)]
    assert saved == [WALL + 1990]
    store = SqliteStore(tmp_path / "cluster.db")
    assert store.load().wall == 0.0
    store.write([SaveClock(wall) for wall in saved])
    store.close()
    again = SqliteStore(tmp_path / "cluster.db")
    assert again.load().wall == WALL + 1990
    again.close()
    false = ended("false", -100 * DAY)
    rig = Rig(0, now=0.0, records=[ended("j1", DAY), false], wall=WALL + 1990)
    assert looks(rig, 100 * DAY, 3000) == []


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
