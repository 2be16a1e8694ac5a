"""A scheduler whose state was restored from a copy never mixes two lives of one job id."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import SaveJournal, TellPrepare, TellWelcome
from oneflow.scheduler.jobs.journal import Journal
from oneflow.scheduler.jobs.records import JobRecord, JobState

from .table_rig import Rig, running

NUMBER = 7000  # drawn by the restored scheduler's start


def mark(start: str = "lost", attempts: int = 1, journal: str = "ours") -> pb.JournalMark:
    return pb.JournalMark(journal=journal, start=start, attempts=attempts)


def restored(records: Iterable[JobRecord] = ()) -> Rig:
    """A scheduler that starts with a copy, in which `old` is the last start, of 2 attempts."""
    journal = Journal("ours", 0, {"old": 2}, "now", NUMBER)
    return Rig(0, records=list(records), journal=journal, epoch=9, now=5.0)


def copied(*jobs: str) -> list[JobRecord]:
    """Records of jobs that run, as they are in the copy."""
    rig = Rig(len(jobs))
    return [rig.run(job_id) for job_id in jobs]


def test_a_mark_that_the_journal_has_not_is_durable_before_the_welcome() -> None:
    rig = restored()
    rig.join("n0/cpu:0", mark=mark("old", 3))
    kinds = [type(action) for action in rig.actions]
    assert rig.told(SaveJournal) == [SaveJournal(NUMBER, "old", 3)]
    assert kinds.index(SaveJournal) < kinds.index(TellWelcome)
    assert rig.submit().life == NUMBER


def test_marks_that_the_journal_has_change_nothing() -> None:
    rig = restored(copied("j1"))
    for number, known in enumerate((mark("old", 2), mark("now", 0), mark("x", 9, "theirs"))):
        rig.join(f"n1/cpu:{number}", mark=known)
        assert not rig.told(SaveJournal)
    assert rig.submit("j2").life == 0


def test_the_number_is_drawn_once_in_a_start() -> None:
    rig = restored()
    rig.join("n0/cpu:0", mark=mark("lost", 5))
    rig.join("n0/cpu:1", mark=mark("lost", 4))
    assert not rig.told(SaveJournal)
    rig.join("n0/cpu:2", mark=mark("lost", 6))
    assert rig.told(SaveJournal) == [SaveJournal(NUMBER, "lost", 6)]


def test_an_end_of_a_lost_attempt_is_not_the_new_ones() -> None:
    rig = restored()
    rig.join("n0/cpu:0", mark=mark())
    rig.submit()
    rig.hear("n0/cpu:0", exited=pb.Exited(id=pb.AttemptId(job_id="j1", attempt=1)))
    assert rig.job().state is JobState.STARTING
    assert len(rig.said("noted")) == 1


def test_a_job_of_the_copy_goes_on_in_a_folder_of_its_own() -> None:
    """Attempts after the one in the copy may have left anything in the folder of before."""
    (record,) = copied("j1")
    rig = restored([record])
    rig.join("n0/cpu:0", mark=mark())
    rig.pass_time(60)
    assert (rig.job().state, rig.job().attempt, rig.job().life) == ("STARTING", 2, NUMBER)
    assert rig.job().submitted_at == record.submitted_at
    assert rig.job().is_same_as(record)


def test_a_job_that_still_runs_keeps_its_folder() -> None:
    rig = restored(copied("j1", "j2"))
    rig.join("n0/cpu:0", running=[running("running")], mark=mark("old", 2))
    rig.join("n0/cpu:1", running=[running("running", "j2")], mark=mark())
    for number, job_id in enumerate(("j1", "j2")):
        rig.exit(0, 137, "NODE_LOST", job_id)
        rig.pass_time(2)
        assert (rig.job(job_id).attempt, rig.job(job_id).life) == (2, 0), number


@pytest.mark.parametrize(
    "said, attempt, life",
    [
        pytest.param({"mark": mark()}, 2, NUMBER, id="ran_and_ended"),
        pytest.param({"mark": mark(), "running": [running("prepared")]}, 1, 0, id="prepared"),
        pytest.param({"mark": mark("old", 2)}, 1, 0, id="never_told"),
    ],
)
def test_an_attempt_that_was_starting_begins_only_once(
    said: dict[str, Any], attempt: int, life: int
) -> None:
    rig = restored([Rig(1).submit()])
    assert (rig.job().state, rig.job().attempt) == ("STARTING", 1)
    rig.join("n0/cpu:0", **said)
    rig.pass_time(2)
    assert (rig.job().attempt, rig.job().life) == (attempt, life)


def test_an_attempt_that_a_restored_scheduler_began_again_need_not_be_the_last() -> None:
    rig = restored([Rig(1).submit()])
    rig.join("n0/cpu:0")
    rig.prepare()
    rig.progress(1)
    rig.join("n0/cpu:1", mark=mark("old", 3))  # from a later attempt
    rig.exit(0, 137, "NODE_LOST")
    rig.pass_time(2)
    assert (rig.job().attempt, rig.job().life) == (2, NUMBER)


def test_a_lost_journal_is_one_that_was_restored() -> None:
    """An empty cluster.db has an id of its own, and no attempt."""
    rig = restored()
    rig.join("n0/cpu:0", mark=mark(journal="of before"))
    assert rig.submit().life == NUMBER


def test_a_prepare_carries_a_mark_that_is_durable() -> None:
    rig = restored()
    rig.join("n0/cpu:0")
    rig.submit()
    (change,), (told,) = rig.told(SaveJournal), rig.told(TellPrepare)
    assert change == SaveJournal(0, "now", 1)
    assert told.mark == mark("now", 1)
    assert rig.actions.index(change) < rig.actions.index(told)
