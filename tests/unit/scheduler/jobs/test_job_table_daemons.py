"""The table of jobs and its daemons: lost, replaced, drained, fenced; a scheduler that is back."""

from __future__ import annotations

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import (
    CancelAsked,
    DaemonGone,
    DrainAsked,
    Rejected,
    SaveEpoch,
    Tell,
    TellFenced,
    TellPrepare,
    TellWelcome,
    Ticked,
    UndrainAsked,
)
from oneflow.scheduler.jobs.records import DaemonState, JobState

from .table_rig import WALL, Rig, prepared, running

# ---- liveness ------------------------------------------------------------------------------------


def test_every_joining_gets_a_new_durable_epoch() -> None:
    rig = Rig(0)
    for epoch in (1, 2, 3):
        rig.join("n0/cpu:0", incarnation=7)
        assert rig.actions[:2] == [SaveEpoch(epoch), TellWelcome("n0/cpu:0", epoch, 7)]


def test_silent_daemon_is_suspect_then_lost() -> None:
    rig = Rig(2)
    rig.run(devices=2)
    rig.silent.add("n0/cpu:1")
    rig.pass_time(4)
    assert rig.table.daemons["n0/cpu:1"].state is DaemonState.SUSPECT
    rig.pass_time(7)
    assert rig.table.daemons["n0/cpu:1"].state is DaemonState.LOST
    assert [stop.id.rank for stop in rig.said("stop")] == [0]
    rig.exit(0, 85, "PEER_LOST")
    record = rig.job()
    assert (record.state, record.reason) == ("RESTARTING", "NODE_LOST")
    assert record.cause == "daemon n0/cpu:1 was not heard for 9.2 s"
    assert (record.first_failed_rank, record.host) == (1, "n0")


def test_daemon_that_is_heard_again_in_time_is_as_before() -> None:
    rig = Rig(1)
    rig.run()
    rig.silent.add("n0/cpu:0")
    rig.pass_time(8)
    rig.silent.clear()
    rig.pass_time(2)
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.UP
    assert rig.job().state is JobState.RUNNING


def test_lost_daemon_is_fenced_and_its_word_counts_no_more() -> None:
    rig = Rig(1)
    rig.run(restart_on=("3",))
    rig.silent.add("n0/cpu:0")
    rig.pass_time(11)
    assert len(rig.told(TellFenced)) == 1
    assert rig.job().reason == "NODE_LOST"
    rig.exit(0, 0)
    assert [r.reason for r in rig.told(Rejected)] == ["stale_epoch"]
    assert rig.told(TellFenced)
    rig.join("n0/cpu:0", 100, [running("running")])
    assert rig.kinds() == ["TellFenced"]
    rig.join("n0/cpu:0", 100)
    assert rig.told(TellWelcome)


def test_older_epoch_is_refused() -> None:
    rig = Rig(1)
    rig.run()
    rig.join("n0/cpu:0", 100, [running("running")])
    rig.exit(0, 3, epoch=1)
    assert [r.reason for r in rig.told(Rejected)] == ["stale_epoch"]
    assert rig.job().state is JobState.RUNNING


def test_broken_connection_alone_ends_nothing() -> None:
    rig = Rig(1)
    rig.run()
    rig.do(DaemonGone("n0/cpu:0", 1, "lost"))
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.SUSPECT
    rig.silent.add("n0/cpu:0")
    rig.pass_time(5)
    rig.join("n0/cpu:0", 100, [running("running", last_step=12)])
    assert not rig.said("stop") and not rig.told(TellPrepare)
    rig.do(DaemonGone("n0/cpu:0", 1, "lost"))  # of the old connection, late
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.UP
    rig.exit(0, 0)
    assert (rig.job().state, rig.job().attempt) == ("SUCCEEDED", 1)


@pytest.mark.parametrize("reason", ["died", "left"])
def test_daemon_that_is_known_to_be_gone_is_not_waited_for(reason: str) -> None:
    rig = Rig(2)
    rig.run(devices=2)
    rig.do(DaemonGone("n0/cpu:1", 2, reason))
    assert [stop.id.rank for stop in rig.said("stop")] == [0]
    rig.exit(0, 85, "PEER_LOST")
    assert rig.job().reason == "NODE_LOST"
    known = rig.table.daemons.get("n0/cpu:1")
    assert (known is None) if reason == "left" else known.state is DaemonState.LOST


def test_daemon_whose_process_died_is_shown_until_it_is_back_or_drained() -> None:
    rig = Rig(2)
    for daemon, epoch in (("n0/cpu:0", 1), ("n0/cpu:1", 2)):
        rig.do(DaemonGone(daemon, epoch, "died"))
    rig.pass_time(3600)
    assert [d.state for d in rig.table.daemons.values()] == [DaemonState.LOST] * 2
    rig.join("n0/cpu:0", incarnation=999)
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.UP
    rig.do(DrainAsked("n0/cpu:1", 0.0))
    assert list(rig.table.daemons) == ["n0/cpu:0"]
    rig.do(DrainAsked("n0", 0.0))  # the other way round
    rig.do(DaemonGone("n0/cpu:0", rig.epoch("n0/cpu:0"), "died"))
    assert not rig.table.daemons


def test_new_process_of_a_daemon_takes_the_place_of_one_that_is_gone() -> None:
    rig = Rig(1)
    rig.run()
    rig.do(DaemonGone("n0/cpu:0", 1, "lost"))
    rig.join("n0/cpu:0", incarnation=999)
    record = rig.job()
    assert record.cause == "daemon n0/cpu:0 ended and was started anew"
    assert (record.state, record.attempt) == ("STARTING", 2)
    assert rig.told(TellPrepare)[0].epoch == 2


def test_second_daemon_of_the_same_name_is_sent_away() -> None:
    rig = Rig(1)
    rig.join("n0/cpu:0", incarnation=999)
    assert rig.kinds() == ["TellFenced", "Rejected"]
    assert rig.told(TellFenced)[0].incarnation == 999
    assert rig.epoch("n0/cpu:0") == 1


def test_device_stays_with_its_attempt_until_that_is_over() -> None:
    rig = Rig(2)
    rig.run(devices=2)
    rig.do(DaemonGone("n0/cpu:1", 2, "lost"))
    rig.join("n0/cpu:1", incarnation=999)
    rig.submit("j2", priority=9)
    assert rig.job("j2").state is JobState.QUEUED
    rig.exit(0, 85, "PEER_LOST")
    assert rig.job("j2").state is JobState.STARTING


def test_scheduler_that_slept_blames_nobody() -> None:
    rig = Rig(1)
    rig.run()
    rig.do(Ticked(WALL), 60.0)
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.UP
    assert rig.job().state is JobState.RUNNING


def test_lost_daemon_is_shown_for_a_while() -> None:
    rig = Rig(1)
    rig.silent.add("n0/cpu:0")
    rig.pass_time(20)
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.LOST
    rig.pass_time(24 * 3600 + 1)
    assert not rig.table.daemons


# ---- coming back ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_prepared", "again"), [(False, "TellPrepare"), (True, "start")])
def test_what_is_lost_with_the_connection_is_told_again(is_prepared: bool, again: str) -> None:
    rig = Rig(1)
    rig.submit()
    if is_prepared:
        rig.prepare()
    rig.do(DaemonGone("n0/cpu:0", 1, "lost"))
    rig.join("n0/cpu:0", 100, [running("prepared")] if is_prepared else [])
    assert rig.kinds()[-1] == again
    assert [t.epoch for t in rig.told(Tell)] + [t.epoch for t in rig.told(TellPrepare)] == [2]


def test_exit_lost_with_the_connection_may_follow_the_hello() -> None:
    rig = Rig(1)
    rig.run()
    rig.do(DaemonGone("n0/cpu:0", 1, "lost"))
    rig.join("n0/cpu:0", 100)
    rig.exit(0, 0)
    assert rig.job().state is JobState.SUCCEEDED and rig.said("noted")


def test_daemon_that_comes_back_without_its_rank_lost_it() -> None:
    rig = Rig(1)
    rig.run(restart_on=("3",))
    rig.do(DaemonGone("n0/cpu:0", 1, "lost"))
    rig.join("n0/cpu:0", 100)
    rig.pass_time(4)
    assert rig.job().cause == "daemon n0/cpu:0 came back without its rank"


def test_daemon_with_work_that_nobody_wants_is_fenced() -> None:
    rig = Rig(0)
    rig.join("n0/cpu:0", 5, [running("running", "j77", attempt=3)])
    assert rig.kinds() == ["TellFenced"]
    assert not rig.table.daemons


# ---- draining ------------------------------------------------------------------------------------


def test_draining_node_takes_no_new_work_and_its_job_moves_on() -> None:
    rig = Rig(4, nodes=2)
    rig.run(devices=2)
    rig.progress(9, 8)
    node = rig.job().assignments[0].node
    rig.do(DrainAsked(node, 5.0))
    assert len(rig.said("drain")) == 2 and not rig.said("stop")
    rig.pass_time(6)
    assert len(rig.said("stop")) == 2
    rig.exit(0, 143, "PREEMPTED")
    rig.exit(1, 143, "PREEMPTED")
    record = rig.job()
    assert (record.state, record.attempt, record.reason) == ("STARTING", 2, "PREEMPTED")
    assert {a.node for a in record.assignments} == {"n0", "n1"} - {node}
    assert rig.told(TellPrepare)[0].resume_from == "step-8"


def test_job_may_finish_within_the_grace_of_a_drain() -> None:
    rig = Rig(1)
    rig.run()
    rig.do(DrainAsked("", 60.0))
    rig.pass_time(30)
    rig.exit(0, 0)
    assert rig.job().state is JobState.SUCCEEDED
    rig.submit("j2")
    assert rig.job("j2").pending == "needs 1 cpu device: 0 free, 1 draining"


def test_rank_that_exits_0_because_it_was_preempted_did_not_succeed() -> None:
    rig = Rig(1)
    rig.run()
    rig.do(DrainAsked("n0", 0.0))
    rig.exit(0, 0, "PREEMPTED")
    assert (rig.job().state, rig.job().reason) == ("RESTARTING", "PREEMPTED")


def test_drain_survives_the_connection_but_not_the_process() -> None:
    rig = Rig(1)
    rig.do(DrainAsked("n0", 5.0))
    rig.do(DaemonGone("n0/cpu:0", 1, "lost"))
    rig.join("n0/cpu:0", 100)
    assert rig.said("drain")
    rig.do(DaemonGone("n0/cpu:0", 2, "lost"))
    rig.join("n0/cpu:0", 101)
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.UP


def test_a_drain_is_undone() -> None:
    rig = Rig(2, nodes=2)
    rig.run()
    rig.do(DrainAsked("", 5.0))
    rig.do(UndrainAsked("n0"))
    assert [(t.daemon, t.message.drain) for t in rig.drains()] == [("n0/cpu:0", False)]
    states = {d.node: d.state for d in rig.table.daemons.values()}
    assert states == {"n0": DaemonState.UP, "n1": DaemonState.DRAINING}
    rig.pass_time(6)
    assert not [t for t in rig.told(Tell) if t.message.HasField("stop") and t.daemon == "n0/cpu:0"]
    rig.do(UndrainAsked(""))
    assert {d.state for d in rig.table.daemons.values()} == {DaemonState.UP}
    for asked in (DrainAsked("n7", 5.0), UndrainAsked("n7")):
        rig.do(asked)
        assert rig.told(Rejected)[0].message == "no daemon is on a node 'n7'"


def test_who_was_away_when_its_drain_was_undone_works_again() -> None:
    rig = Rig(1)
    rig.do(DrainAsked("", 5.0))
    rig.do(DaemonGone("n0/cpu:0", 1, "lost"))
    rig.do(UndrainAsked("n0"))
    rig.join("n0/cpu:0", 100)
    assert not rig.said("drain")  # a Welcome ends it
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.UP
    rig.do(DrainAsked("n0", 5.0))
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.DRAINING


def test_drains_and_their_undoing_outlive_the_scheduler() -> None:
    before = Rig(4, nodes=4)
    before.do(DrainAsked("", 5.0))
    before.do(UndrainAsked("n0"))
    rig = before.after_a_crash()
    rig.do(UndrainAsked("n3"))  # it is not here yet
    assert not rig.told(Rejected)
    for number, node in enumerate(("n0", "n1", "n2", "n3")):
        is_new = node == "n2"
        rig.join(f"{node}/cpu:0", 200 if is_new else 100 + number)
        assert rig.said("drain") == ([True] if node == "n1" else [])
    states = {d.node: d.state.value for d in rig.table.daemons.values()}
    assert states == {"n0": "up", "n1": "draining", "n2": "up", "n3": "up"}
    assert {daemon for daemon, drained in rig.drained.items() if drained} == {"n1/cpu:0"}


def test_newcomers_are_drained_as_long_as_all_are() -> None:
    rig = Rig(1)
    rig.do(DrainAsked("", 5.0))
    rig.do(UndrainAsked("n7"))  # nobody is there
    rig.join("n1/cpu:0", 7)
    assert rig.table.daemons["n1/cpu:0"].state is DaemonState.DRAINING
    rig.do(UndrainAsked(""))
    rig.join("n2/cpu:0", 8)
    assert {d.state for d in rig.table.daemons.values()} == {DaemonState.UP}


def test_daemon_says_that_it_drains() -> None:
    rig = Rig(0)
    rig.join("n0/cpu:0", 5, draining=True)
    assert rig.table.daemons["n0/cpu:0"].state is DaemonState.DRAINING


def test_daemon_that_refuses_because_it_leaves_gets_nothing_more() -> None:
    rig = Rig(2)
    rig.submit()
    rig.hear("n0/cpu:0", 1, prepared=prepared(error="shutting down", reason="PREEMPTED"))
    assert rig.job().assignments[0].daemon == "n0/cpu:1" and rig.job().attempt == 2


# ---- the scheduler comes back --------------------------------------------------------------------


def test_running_job_is_found_again_after_a_restart_of_the_scheduler() -> None:
    before = Rig(2)
    before.run(devices=2)
    rig = before.after_a_crash()
    rig.do(Ticked(WALL))
    rig.join("n0/cpu:0", 100, [running("running")])
    rig.join("n0/cpu:1", 101, [running("running", rank=1)])
    assert rig.epoch("n0/cpu:1") == 4  # larger than all before it
    rig.pass_time(20)
    assert (rig.job().state, rig.job().attempt) == ("RUNNING", 1)
    rig.exit(0, 0)
    rig.exit(1, 0)
    assert rig.job().state is JobState.SUCCEEDED


def test_daemon_that_does_not_come_back_after_a_restart_is_lost() -> None:
    before = Rig(2)
    before.run(devices=2)
    rig = before.after_a_crash()
    rig.join("n0/cpu:0", 100, [running("running")])
    rig.pass_time(9)
    assert rig.job().state is JobState.RUNNING
    rig.pass_time(3)
    assert [stop.id.rank for stop in rig.said("stop")] == [0]
    rig.exit(0, 143, "PREEMPTED")
    assert (rig.job().state, rig.job().reason) == ("RESTARTING", "NODE_LOST")


def test_attempt_that_was_never_started_is_prepared_again() -> None:
    before = Rig(2)
    before.submit(devices=2)
    rig = before.after_a_crash()
    rig.join("n0/cpu:0", 100, [running("prepared")])
    rig.join("n0/cpu:1", 101)
    assert [prepare.record.attempt for prepare in rig.told(TellPrepare)] == [1]
    rig.prepare()
    assert (rig.job().state, rig.job().attempt) == ("RUNNING", 1)
    assert len(rig.said("start")) == 2


def test_start_that_was_not_told_before_the_crash_is_told_after_it() -> None:
    before = Rig(2)
    before.run(devices=2)
    rig = before.after_a_crash()
    rig.join("n0/cpu:1", 101, [running("prepared", rank=1)])
    rig.join("n0/cpu:0", 100, [running("running")])
    assert rig.told(TellPrepare)  # asks rank 0 for its port again
    rig.hear("n0/cpu:0", prepared=prepared(6000))
    assert [(s.id.rank, s.master_port) for s in rig.said("start")] == [(1, 6000)]


def test_cancelling_goes_on_after_a_restart_of_the_scheduler() -> None:
    before = Rig(2)
    before.run(devices=2)
    before.do(CancelAsked("j1", "me", WALL))
    rig = before.after_a_crash()
    rig.join("n0/cpu:0", 100, [running("stopping")])
    assert [stop.id.rank for stop in rig.said("stop")] == [0]
    rig.exit(0, 143, "PREEMPTED")
    rig.pass_time(12)
    assert rig.job().state is JobState.CANCELLED


def test_queued_jobs_keep_their_order_over_a_restart() -> None:
    before = Rig(0)
    for name in ("j1", "j2", "j3"):
        before.submit(name)
    rig = before.after_a_crash()
    rig.join("n0/cpu:0", 100)
    assert rig.job("j1").state is JobState.STARTING


def test_time_limit_goes_on_over_a_restart_of_the_scheduler() -> None:
    before = Rig(1)
    before.do(Ticked(WALL))
    before.run(time_limit_s=100.0)
    rig = before.after_a_crash()
    rig.do(Ticked(WALL + 98))
    rig.join("n0/cpu:0", 100, [running("running")])
    rig.hear("n0/cpu:0", after_s=1.0, beat=pb.DaemonBeat())
    rig.do(Ticked(WALL + 101), 1.0)
    assert rig.said("stop")


@pytest.mark.parametrize("is_new", [False, True])
def test_the_time_before_an_end_was_told_is_no_time_that_the_job_ran(is_new: bool) -> None:
    rig = Rig(1)
    rig.do(Ticked(WALL))
    rig.run()
    if is_new:  # the scheduler dies, and is back a little later than the daemon's line would be
        rig = rig.after_a_crash()
        rig.do(Ticked(WALL + 100))
    else:
        rig.do(DaemonGone("n0/cpu:0", 1, "lost"))
    rig.silent.add("n0/cpu:0")
    rig.join("n0/cpu:0", 100)
    rig.now += 2.0
    rig.exit(0, 0, seen_s=1.5 if not is_new else 90.0)
    ran_s, took_s = rig.job().ran_s, rig.job().finished_at - rig.job().started_at
    assert rig.job().state is JobState.SUCCEEDED
    assert (ran_s, took_s) == pytest.approx((12.0, 12.0) if is_new else (0.5, 0.5))
