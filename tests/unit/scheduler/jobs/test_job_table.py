"""The table of jobs: events in, actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oneflow.core.errors import ConfigError
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.causes import cause_line
from oneflow.scheduler.jobs.events import (
    CancelAsked,
    DaemonGone,
    DrainAsked,
    Rejected,
    RemoveAsked,
    RestartAsked,
    Save,
    SaveUse,
    Submitted,
    TellPrepare,
    Ticked,
)
from oneflow.scheduler.jobs.records import JobSpec, JobState
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.specs import record_from_proto, record_to_proto
from oneflow.scheduler.jobs.table import Table

from .table_rig import WALL, Rig, prepared

# ---- from submit to success ----------------------------------------------------------------------


def test_job_goes_from_submit_to_success() -> None:
    rig = Rig()
    record = rig.submit(devices=2)
    assert (record.state, record.attempt) == (JobState.STARTING, 1)
    assert rig.kinds() == ["Save", "SaveJournal", "Save", *["TellPrepare"] * 2]  # durable first
    rig.prepare()
    assert rig.kinds() == ["Save", "start", "start"]
    assert rig.saved["j1"].state is JobState.RUNNING
    assert {(s.master_addr, s.master_port) for s in rig.said("start")} == {("n0.local", 5000)}
    rig.progress(3)
    rig.exit(1, 0)
    assert rig.job().state is JobState.RUNNING
    rig.exit(0, 0)
    assert (rig.job().state, rig.job().reason, rig.job().exit_code) == ("SUCCEEDED", "NONE", 0)
    assert [noted.rank for noted in rig.said("noted")] == [0, 1]
    assert isinstance(rig.actions[0], Save)
    assert all(daemon.job == "" for daemon in rig.table.daemons.values())
    assert rig.job().finished_at and rig.job().first_step_at == WALL and rig.job().last_step == 3


def test_no_rank_starts_before_all_are_prepared() -> None:
    rig = Rig(3)
    rig.submit(devices=3)
    for rank in (0, 1):
        rig.hear(f"n0/cpu:{rank}", prepared=prepared(5000, rank))
        assert not rig.said("start")
    rig.hear("n0/cpu:2", prepared=prepared(rank=2))
    assert [start.id.rank for start in rig.said("start")] == [0, 1, 2]


def test_a_rank_that_is_ready_for_nobody_is_dropped() -> None:
    """It was asked for again while its refusal was on the way."""
    rig = Rig(1)
    rig.submit()
    rig.hear("n0/cpu:0", prepared=prepared(error="no room", reason="USER_ERROR"))
    assert rig.job().state is JobState.FAILED
    rig.hear("n0/cpu:0", prepared=prepared(5000))
    assert rig.kinds() == ["stop", "Rejected"]
    rig.exit(0, 143, "PREEMPTED")
    assert rig.kinds() == ["noted", "Rejected"]


@pytest.mark.parametrize(
    ("spec", "owner", "said"),
    [
        (JobSpec(argv=("other",)), "me", "which has other argv than"),
        (JobSpec(argv=("train",), archive="b" * 64), "me", "which has other files in its folder"),
        (JobSpec(argv=("train",)), "somebody", "of somebody else"),
    ],
)
def test_same_id_with_another_spec_or_owner_is_refused(
    spec: JobSpec, owner: str, said: str
) -> None:
    rig = Rig()
    before = rig.submit()
    assert rig.do(Submitted("j1", before.spec, "me", "other key", WALL + 5)) == []
    rig.do(Submitted("j1", spec, owner, "key", WALL))
    assert rig.kinds() == ["Rejected"]
    assert said in rig.told(Rejected)[0].message
    assert rig.job() == before


def test_a_token_may_queue_only_so_many_jobs() -> None:
    rig = Rig(0, settings=Settings(max_queued_per_owner=2))
    rig.submit("j1")
    rig.submit("j2")
    rig.do(Submitted("j3", JobSpec(argv=("x",)), "me", "key", WALL))
    assert "2 queued jobs" in rig.told(Rejected)[0].message
    rig.submit("j4", owner="other")
    assert "j4" in rig.table.jobs


# ---- waiting -------------------------------------------------------------------------------------


def test_pending_job_says_why() -> None:
    rig = Rig(4)
    rig.run("j12")
    rig.do(DrainAsked("n0/cpu:3", 100.0))
    record = rig.submit("j2", devices=4)
    assert record.pending == "needs 4 cpu devices: 2 free, 1 draining, 1 busy with job j12"
    assert record.state is JobState.QUEUED and record.reason == "NONE"


def test_a_cluster_that_grows_runs_what_did_not_fit() -> None:
    rig = Rig(1)
    assert "the cluster has only 1; it waits" in rig.submit(devices=2).pending
    rig.join("n0/cpu:1")
    assert rig.job().state is JobState.STARTING and rig.job().pending == ""


def test_cancelled_job_makes_way_at_once() -> None:
    rig = Rig(2)
    rig.run("j1")
    rig.submit("j2", devices=2)
    assert rig.submit("j3").state is JobState.QUEUED
    rig.do(CancelAsked("j2", "me", WALL))
    assert rig.job("j3").state is JobState.STARTING


def test_submit_is_about_its_own_job_alone() -> None:
    """So that it can be taken back whole if it cannot be saved, and its devices are free again."""
    rig = Rig(1)
    rig.submit("j1")
    rig.submit("j2")
    rig.submit("j3")
    rig.table.withdraw("j1")
    rig.submit("j4")
    assert {a.record.id for a in rig.told(Save)} == {"j4"}
    rig.pass_time(1)
    assert rig.job("j2").state is JobState.STARTING


def test_devices_are_free_again_only_when_all_ranks_have_ended() -> None:
    rig = Rig(2)
    rig.run(devices=2)
    rig.submit("j2")
    rig.exit(0, 0)
    assert rig.job("j2").state is JobState.QUEUED
    rig.exit(1, 0)
    assert rig.job("j2").state is JobState.STARTING


# ---- preparing -----------------------------------------------------------------------------------


def test_prepare_that_fails_stops_the_others_and_names_the_rank() -> None:
    rig = Rig(2)
    rig.submit(devices=2)
    rig.hear("n0/cpu:0", prepared=prepared(5000))
    refusal = prepared(rank=1, error="no such program: train", reason="USER_ERROR")
    rig.hear("n0/cpu:1", prepared=refusal)
    assert [stop.id.rank for stop in rig.said("stop")] == [0]
    rig.exit(0, 143, "PREEMPTED")
    record = rig.job()
    assert (record.state, record.reason, record.first_failed_rank) == ("FAILED", "USER_ERROR", 1)
    assert "no such program" in record.cause and record.host == "n0"


def test_a_refusal_that_comes_after_the_start_is_of_an_earlier_asking() -> None:
    rig = Rig(1)
    rig.run()
    late = rig.hear("n0/cpu:0", prepared=prepared(error="no room", reason="DISK_FULL"))
    assert [said.reason for said in late if isinstance(said, Rejected)] == ["duplicate"]
    assert rig.job().state == "RUNNING"
    rig.exit(0, 0)
    assert rig.job().state == "SUCCEEDED"


def test_prepare_that_takes_too_long_is_a_rendezvous_timeout() -> None:
    rig = Rig(2, settings=Settings(prepare_s=20.0))
    rig.submit(devices=2, restart_on=("USER_ERROR",))
    rig.hear("n0/cpu:0", prepared=prepared(5000))
    rig.pass_time(21)
    assert {stop.id.rank for stop in rig.said("stop")} == {0, 1}
    rig.exit(0, 143, "PREEMPTED")
    rig.exit(1, 143, "PREEMPTED")
    assert (rig.job().reason, rig.job().exit_code) == ("RENDEZVOUS_TIMEOUT", 84)
    assert "rank 1 (n0/cpu:1)" in rig.job().cause


def test_what_is_not_answered_is_told_again() -> None:
    rig = Rig(1)
    rig.submit()
    rig.pass_time(6)
    assert len(rig.told(TellPrepare)) == 1
    rig.prepare()
    rig.pass_time(6)
    assert len(rig.said("start")) == 1
    rig.progress(0)
    rig.pass_time(12)
    assert not rig.said("start")
    rig.do(CancelAsked("j1", "me", WALL))
    rig.pass_time(6)
    assert len(rig.said("stop")) == 1


# ---- failing -------------------------------------------------------------------------------------


def test_first_failure_wins_and_the_cause_line_is_complete() -> None:
    rig = Rig(3)
    rig.run(devices=3)
    rig.progress(1841, 1800)
    rig.exit(2, 7, cause="ValueError: bad\nbatch", last_step=1842)
    assert {stop.id.rank for stop in rig.said("stop")} == {0, 1}
    assert rig.said("stop")[0].grace_s == 10.0
    rig.exit(0, 1)
    rig.exit(1, 143, "PREEMPTED")
    assert cause_line(rig.job(), log="/l/rank2/stderr") == (
        "oneflow: job=j1 attempt=1 state=FAILED reason=USER_ERROR rank=2 host=n0 pid=42 exit=7 "
        'step=1842 ckpt=1800 log=/l/rank2/stderr cause="ValueError: bad batch"'
    )


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        pytest.param(
            [(0, 85, "PEER_LOST"), (2, 139, "SIGNAL"), (1, 85, "PEER_LOST")],
            ("SIGNAL", 2, 139),
            id="better-cause-follows",
        ),
        pytest.param(
            [(0, 85, "PEER_LOST"), 2, (1, 137, "PREEMPTED")],
            ("PEER_LOST", 0, 85),
            id="followers-alone",
        ),
        pytest.param(
            [(0, 85, "PEER_LOST"), (1, 0, "")], ("PEER_LOST", 1, 85), id="left-after-a-follower"
        ),
        pytest.param(
            [(1, 0, ""), (0, 85, "PEER_LOST"), 1], ("PEER_LOST", 1, 85), id="left-before-a-follower"
        ),
        pytest.param(
            [(0, 85, "PEER_LOST"), 2, (1, 0, "")], ("PEER_LOST", 0, 85), id="left-as-it-was-stopped"
        ),
    ],
)
def test_who_is_to_blame(
    ends: list[tuple[int, int, str] | int], blamed: tuple[str, int, int]
) -> None:
    """ends: rank, code and reason; or seconds, after which all that go on have been stopped."""
    ranks = {end[0] for end in ends if not isinstance(end, int)}
    rig = Rig(len(ranks))
    rig.run(devices=len(ranks))
    for end in ends:
        if isinstance(end, int):
            rig.pass_time(end)
            assert {stop.id.rank for stop in rig.said("stop")} == ranks
        else:
            ranks.discard(end[0])
            rig.exit(*end)
    record = rig.job()
    assert (record.reason, record.first_failed_rank, record.exit_code) == blamed


def test_who_fails_is_known_while_the_others_still_end() -> None:
    rig = Rig(3)
    rig.run(devices=3, max_restarts=1)
    rig.exit(2, 137, "SIGNAL", cause="killed by SIGKILL", is_failing=True)
    assert [stop.id.rank for stop in rig.said("stop")] == [0, 1]
    record = rig.job()
    assert (str(record.state), record.reason, record.first_failed_rank) == ("RUNNING", "SIGNAL", 2)
    assert (record.host, record.pid, record.exit_code) == ("n0", 42, 137)
    assert not rig.told(Save)  # the daemon tells it again, as long as the attempt goes on
    for rank, code in ((0, 143), (2, 137), (1, 143)):
        rig.exit(rank, code, "SIGNAL" if rank == 2 else "PREEMPTED")
    record = rig.job()
    assert (record.reason, record.first_failed_rank, record.attempt) == ("SIGNAL", 2, 2)


def test_who_stood_still_is_the_cause_although_it_was_stopped() -> None:
    rig = Rig(2)
    rig.run(devices=2)
    rig.exit(0, 85, "PEER_LOST")
    rig.pass_time(2)
    assert [stop.id.rank for stop in rig.said("stop")] == [1]
    assert (rig.job().reason, rig.job().first_failed_rank) == ("PEER_LOST", 0)
    rig.exit(1, 80, "HANG", is_failing=True)
    assert (rig.job().reason, rig.job().first_failed_rank) == ("HANG", 1)
    rig.exit(1, 80, "HANG")
    record = rig.job()
    assert (str(record.state), record.exit_code, record.reason) == ("FAILED", 80, "HANG")


def test_who_stands_still_while_a_user_cancels_is_cancelled() -> None:
    rig = Rig(2)
    rig.run(devices=2)
    rig.do(CancelAsked("j1", "me", WALL))
    rig.exit(0, 143, "PREEMPTED")
    rig.exit(1, 80, "HANG", is_failing=True)
    rig.exit(1, 80, "HANG")
    record = rig.job()
    assert (str(record.state), record.cause) == ("CANCELLED", "cancelled by me")


def test_exit_0_of_one_rank_while_others_go_on_is_no_success() -> None:
    rig = Rig(2)
    rig.run(devices=2)
    rig.exit(1, 0)
    rig.pass_time(9)
    assert not rig.said("stop")
    rig.pass_time(2)
    assert [stop.id.rank for stop in rig.said("stop")] == [0]
    rig.exit(0, 143, "PREEMPTED")
    record = rig.job()
    assert (record.reason, record.first_failed_rank) == ("PEER_LOST", 1)
    assert record.cause == "rank 1 exited 0 while its peers ran"


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (-9, "SIGNAL", (137, "SIGNAL")),
        (137, "OOM_HOST", (137, "OOM_HOST")),
        (3, "WHATEVER", (3, "USER_ERROR")),
        (82, "NONE", (82, "NONFINITE")),
        (9999, "USER_ERROR", (255, "USER_ERROR")),
        (139, "", (139, "USER_ERROR")),
    ],
)
def test_exit_codes_and_reasons(code: int, reason: str, expected: tuple[int, str]) -> None:
    rig = Rig(1)
    rig.run()
    rig.exit(0, code, reason)
    assert (rig.job().exit_code, rig.job().reason) == expected
    rig.submit("j2")
    id_ = pb.AttemptId(job_id="j2", attempt=1)
    refusal = pb.Prepared(id=id_, error="no", reason=reason or "USER_ERROR", exit_code=code)
    rig.hear("n0/cpu:0", prepared=refusal)
    assert rig.job("j2").exit_code == expected[0]


def test_final_states_never_change() -> None:
    rig = Rig(1)
    rig.run()
    rig.exit(0, 3)
    before = rig.job()
    rig.exit(0, 0)
    assert rig.kinds() == ["noted", "Rejected"]
    rig.do(CancelAsked("j1", "me", WALL))
    rig.pass_time(30)
    assert rig.job() == before


# ---- restarting ----------------------------------------------------------------------------------


def test_restart_goes_on_from_the_last_checkpoint_with_a_new_secret() -> None:
    rig = Rig(1)
    secret = rig.run(max_restarts=1).job_key
    rig.progress(12, 10)
    rig.exit(0, 3)
    record = rig.job()
    assert (record.state, record.attempt, record.restarts_spent) == ("STARTING", 2, 1)
    prepare = rig.told(TellPrepare)[0]
    assert prepare.resume_from == "step-10" and prepare.record.job_key not in ("", secret)
    rig.prepare()
    rig.exit(0, 3)
    assert (rig.job().state, rig.job().attempt) == ("FAILED", 2)


@pytest.mark.parametrize(
    ("rules", "code", "reason", "restarts"),
    [
        ((), 3, "USER_ERROR", True),
        (("3",), 3, "USER_ERROR", True),
        (("4",), 3, "USER_ERROR", False),
        (("OOM_HOST", "4"), 137, "OOM_HOST", True),
        (("OOM_HOST",), 137, "SIGNAL", False),
    ],
)
def test_restart_on(rules: tuple[str, ...], code: int, reason: str, restarts: bool) -> None:
    rig = Rig(1)
    rig.run(max_restarts=1, restart_on=rules)
    rig.exit(0, code, reason)
    assert (rig.job().state is JobState.STARTING) == restarts


def test_lost_nodes_spend_nothing_but_futile_restarts_end_it() -> None:
    rig = Rig(4)
    rig.submit(max_restarts=0)
    for attempt in range(1, 5):
        rig.prepare()
        daemon = rig.job().assignments[0].daemon
        assert rig.job().attempt == attempt
        rig.do(DaemonGone(daemon, rig.epoch(daemon), "died"))
    record = rig.job()
    assert (record.state, record.reason, record.restarts_spent) == ("FAILED", "NODE_LOST", 0)
    assert "no new checkpoint in 3 restarts" in record.cause


def test_a_new_checkpoint_makes_restarts_worth_while() -> None:
    rig = Rig(1)
    rig.submit(max_restarts=100)
    for attempt in range(1, 8):
        rig.prepare()
        rig.progress(attempt, attempt)
        rig.exit(0, 3)
    assert (rig.job().state, rig.job().attempt) == ("STARTING", 8)


def test_a_job_without_checkpoints_says_so_until_it_has_one() -> None:
    rig = Rig(2)
    rig.submit(devices=2)
    rig.prepare()
    rig.progress(5, warning="checkpoint of step 5\nwas not written")
    said = "checkpoint of step 5 was not written"
    assert rig.job().warning == said
    rig.progress(6, rank=1)  # who says nothing of it changes nothing
    assert rig.job().warning == said
    assert f'ckpt=0 warning="{said}"' in cause_line(rig.job())
    assert record_from_proto(record_to_proto(rig.job())).warning == said
    rig.progress(10, checkpoint=10)
    assert rig.job().warning == "" and "warning" not in cause_line(rig.job())


def test_user_restarts_a_job_that_ended() -> None:
    rig = Rig(1)
    rig.run()
    rig.do(RestartAsked("j1", "me", WALL))
    assert "cancel it first" in rig.told(Rejected)[0].message
    rig.progress(5, 5)
    rig.exit(0, 3)
    rig.do(RestartAsked("j1", "me", WALL))
    record = rig.job()
    assert (record.state, record.attempt, record.exit_code) == ("STARTING", 2, 0)
    assert rig.told(TellPrepare)[0].resume_from == "step-5"


def test_removed_job_is_forgotten_everywhere() -> None:
    rig = Rig(2)
    rig.run()
    rig.do(RemoveAsked("j1"))
    assert rig.told(Rejected)
    rig.exit(0, 0)
    rig.do(RemoveAsked("j1"))
    assert rig.kinds() == ["Remove", "forget", "forget"]
    assert not rig.table.jobs


# ---- cancelling and time limits ------------------------------------------------------------------


def test_queued_job_is_cancelled_at_once() -> None:
    rig = Rig(0)
    rig.submit()
    rig.do(CancelAsked("j1", "ann", WALL))
    assert (rig.job().state, rig.job().cause) == ("CANCELLED", "cancelled by ann")
    rig.do(CancelAsked("j9", "me", WALL))
    assert rig.told(Rejected)[0].message == "there is no job j9"


@pytest.mark.parametrize("prepared", [False, True])
def test_cancel_is_two_phase_and_idempotent(prepared: bool) -> None:
    rig = Rig(2)
    rig.submit(devices=2, max_restarts=5)
    if prepared:
        rig.prepare()
    rig.do(CancelAsked("j1", "me", WALL))
    assert rig.job().state is JobState.CANCELLING
    assert rig.kinds() == ["Save", "stop", "stop"]
    assert rig.do(CancelAsked("j1", "me", WALL)) == []
    rig.exit(0, 143, "PREEMPTED")
    assert rig.job().state is JobState.CANCELLING
    rig.exit(1, 0)
    assert (rig.job().state, rig.job().reason) == ("CANCELLED", "CANCELLED")


def test_daemon_that_cannot_end_a_rank_is_given_up() -> None:
    rig = Rig(1)
    rig.run()
    rig.do(CancelAsked("j1", "me", WALL))
    rig.pass_time(31)
    assert rig.job().state is JobState.CANCELLED
    assert rig.table.daemons["n0/cpu:0"].state == "lost"


@pytest.mark.parametrize(("of_the_job", "of_the_cluster"), [(5.0, 0.0), (0.0, 5.0), (9.0, 5.0)])
def test_time_limit_ends_the_job_with_124(of_the_job: float, of_the_cluster: float) -> None:
    rig = Rig(1, settings=Settings(max_time_limit_s=of_the_cluster))
    rig.run(time_limit_s=of_the_job, max_restarts=3)
    rig.pass_time(6)
    assert rig.said("stop")
    rig.exit(0, 143, "PREEMPTED")
    record = rig.job()
    assert (record.state, record.exit_code, record.reason) == ("TIMED_OUT", 124, "TIME_LIMIT")
    assert record.cause == "ran longer than its time limit of 5 s"


def test_time_of_earlier_attempts_counts_for_the_limit() -> None:
    rig = Rig(1)
    rig.run(time_limit_s=10.0, max_restarts=3)
    rig.pass_time(6)
    rig.exit(0, 3)
    rig.prepare()
    rig.pass_time(5)
    assert rig.said("stop")


def test_jumps_of_the_wall_clock_end_nothing() -> None:
    rig = Rig(1)
    rig.run(time_limit_s=60.0)
    rig.do(Ticked(WALL + 1e6), 1.0)
    rig.do(Ticked(WALL - 1e6), 1.0)
    assert rig.job().state is JobState.RUNNING and not rig.said("stop")


# ---- records -------------------------------------------------------------------------------------


def test_progress_is_saved_now_and_then_and_checkpoints_at_once() -> None:
    rig = Rig(1)
    rig.run()
    rig.progress(1)
    assert rig.told(Save)  # the first step
    rig.progress(2)
    assert not rig.told(Save) and rig.job().last_step == 2
    assert "j1" in rig.table.take_changed() and not rig.table.take_changed()
    rig.progress(3, 3)
    assert rig.told(Save)[0].record.last_checkpoint == "step-3"
    rig.pass_time(6)
    rig.progress(4)
    assert rig.told(Save)


def test_a_table_of_saved_records_is_the_same_table() -> None:
    rig = Rig(2)
    rig.run("j1", devices=2, max_restarts=1)
    rig.submit("j2")
    rig.exit(0, 3)
    rig.exit(1, 143, "PREEMPTED")
    again = Table(rig.saved.values(), rig.table.epoch)
    unpending = [replace(record, pending="") for record in rig.table.jobs.values()]
    assert [replace(record, pending="") for record in again.jobs.values()] == unpending


def test_times_that_do_not_grow_are_refused() -> None:
    with pytest.raises(ConfigError, match="times must grow"):
        Table([], 0, Settings(suspect_s=20.0))


def test_each_attempt_is_accounted_for_once() -> None:
    rig = Rig()
    rig.submit(devices=2, max_restarts=1, name="digits")
    rig.prepare()
    rig.now += 7
    rig.exit(0, 3)
    rig.exit(1, 3)
    (first,) = [use.use for use in rig.told(SaveUse)]
    assert (first.job_id, first.attempt, first.devices, first.name) == ("j1", 1, 2, "digits")
    assert (first.ran_s, first.device_type) == (pytest.approx(7), "cpu")
    assert first.started_at == rig.job().started_at
    assert rig.job().ran_s == first.ran_s
