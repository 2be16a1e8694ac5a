"""Beats of a large cluster: each daemon sends fewer, and may be silent for longer."""

from __future__ import annotations

import pytest

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import (
    DaemonGone,
    DaemonJoined,
    LineBeat,
    Rejected,
    TellPace,
    TellWelcome,
    Ticked,
)
from oneflow.scheduler.jobs.records import DaemonState
from oneflow.scheduler.jobs.settings import BEATS_PER_S, LEAST_SLOW_S, Settings, Silence

from .table_rig import WALL, Rig

FEW = Settings(fast_daemons=2)


def test_a_small_cluster_is_as_quick_as_ever() -> None:
    settings = Settings()
    assert {settings.slow_s(n) for n in (1, 8, 200)} == {0.0}
    assert settings.silence(0.0) == (settings.suspect_s, settings.act_s)


@pytest.mark.parametrize("num_daemons", [201, 300, 1250, 4096, 10_000])
def test_all_daemons_together_beat_no_oftener_than_the_scheduler_can_answer(
    num_daemons: int,
) -> None:
    settings, heartbeat_s = Settings(), 0.5
    slow_s = settings.slow_s(num_daemons)
    assert num_daemons / (heartbeat_s + slow_s) <= BEATS_PER_S
    assert slow_s <= max(LEAST_SLOW_S, 1.2 * num_daemons / BEATS_PER_S)  # and not much slower
    suspect_s, act_s = settings.silence(slow_s)
    assert heartbeat_s + slow_s < suspect_s < act_s
    assert act_s >= 4 * (heartbeat_s + slow_s)


def test_a_daemon_is_told_the_pace_of_its_cluster_when_it_joins_and_when_it_is_heard() -> None:
    rig = Rig(2, settings=FEW)
    rig.join("n1/cpu:0")
    (welcome,) = rig.told(TellWelcome)
    assert welcome.slow_s == LEAST_SLOW_S
    rig.hear("n0/cpu:0", beat=pb.DaemonBeat())
    assert rig.told(TellPace) == [TellPace("n0/cpu:0", LEAST_SLOW_S, rig.epoch("n0/cpu:0"))]
    rig.hear("n0/cpu:0", beat=pb.DaemonBeat())
    assert not rig.told(TellPace)  # once is enough
    rig.hear("n1/cpu:0", leaving=pb.Empty())
    rig.hear("n0/cpu:0", beat=pb.DaemonBeat())
    assert [told.slow_s for told in rig.told(TellPace)] == [0.0]


def test_daemons_that_share_a_line_slow_it_down_no_more_than_one() -> None:
    rig = Rig(2, settings=FEW)  # two lines
    for number in range(3):
        hello = pb.Hello(daemon=f"n1/cpu:{number}", node="n1", incarnation=7)
        rig.do(DaemonJoined(hello, line="n1"))
        assert [told.slow_s for told in rig.told(TellWelcome)] == [LEAST_SLOW_S]
    for number in range(3):
        rig.hear(f"n1/cpu:{number}", leaving=pb.Empty())
        rig.hear("n0/cpu:0", beat=pb.DaemonBeat())
        paces = [told.slow_s for told in rig.told(TellPace)]
        assert paces == ([LEAST_SLOW_S] if number == 0 else [0.0] if number == 2 else [])


def test_a_pace_is_told_once_a_line_and_again_if_it_may_have_been_lost() -> None:
    rig = Rig(2, settings=FEW)  # two lines
    for number in range(3):
        rig.do(DaemonJoined(pb.Hello(daemon=f"n1/cpu:{number}", node="n1", incarnation=7), "n1"))
    rig.hear("n0/cpu:0", leaving=pb.Empty())
    names = [f"n1/cpu:{number}" for number in range(3)]
    beat = LineBeat(tuple((name, rig.epoch(name)) for name in names))
    rig.do(beat)
    assert rig.told(TellPace) == [TellPace("n1/cpu:0", 0.0, rig.epoch("n1/cpu:0"))]
    rig.do(beat)
    assert not rig.told(TellPace)
    rig.do(DaemonJoined(pb.Hello(daemon="n1/cpu:0", node="n1", incarnation=7), "n1"))
    rig.hear("n1/cpu:1", beat=pb.DaemonBeat())
    assert [told.daemon for told in rig.told(TellPace)] == ["n1/cpu:1"]
    rig.do(DaemonJoined(pb.Hello(daemon="n2/cpu:0", node="n2", incarnation=7)))
    rig.do(DaemonJoined(pb.Hello(daemon="n1/cpu:3", node="n1", incarnation=7), "n1"))
    assert [told.slow_s for told in rig.told(TellWelcome)] == [0.0]  # as fast as its line is
    rig.hear("n1/cpu:3", beat=pb.DaemonBeat())
    assert [told.slow_s for told in rig.told(TellPace)] == [LEAST_SLOW_S]


def test_the_next_silence_is_found_by_looking_at_each_line_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, asked, silence = Rig(0), [], Settings.silence
    for number in range(30):
        node = f"n{number % 3}"
        hello = pb.Hello(daemon=f"{node}/cpu:{number}", node=node, incarnation=7)
        rig.do(DaemonJoined(hello, node), 0.01)

    def counted(settings: Settings, slow_s: float) -> Silence:
        asked.append(slow_s)
        return silence(settings, slow_s)

    monkeypatch.setattr(Settings, "silence", counted)
    assert rig.table.due_at == pytest.approx(1000.01 + rig.settings.act_s)
    assert asked == [0.0] * 3


def test_one_beat_is_heard_of_all_who_share_the_line_but_for_old_epochs() -> None:
    rig = Rig(3)
    first, second, old = (f"n0/cpu:{number}" for number in range(3))
    rig.do(LineBeat(((first, rig.epoch(first)), (second, rig.epoch(second)), (old, 99))), 2.5)
    heard = [rig.table.daemons[name].heard_at == rig.now for name in (first, second, old)]
    assert heard == [True, True, False]
    (refused,) = rig.told(Rejected)
    assert refused.reason == "stale_epoch" and f"daemon {old} has epoch 99" in refused.message


def test_silence_is_judged_by_the_pace_that_a_daemon_was_told() -> None:
    rig = Rig(3, settings=FEW)  # of which the first two were told that they are few
    fast, slow = "n0/cpu:1", "n0/cpu:2"
    rig.silent = {fast, slow}
    long = FEW.silence(LEAST_SLOW_S)
    seen = []
    for until_s in (FEW.suspect_s, long.suspect_s, FEW.act_s, long.act_s):
        while rig.now < 1000.0 + until_s:
            rig.do(Ticked(WALL), min(1.0, 1000.0 + until_s - rig.now))
        seen.append([rig.table.daemons[name].state for name in (fast, slow)])
    up, suspect, lost = DaemonState.UP, DaemonState.SUSPECT, DaemonState.LOST
    assert seen == [[suspect, up], [suspect, suspect], [lost, suspect], [lost, lost]]


def lost_line(rig: Rig, daemon: str) -> None:
    rig.do(DaemonGone(daemon, rig.epoch(daemon), "lost"))


def test_who_was_put_off_is_not_given_up_for_that() -> None:
    rig = Rig(2)
    rig.run(devices=2)
    lost_line(rig, "n0/cpu:1")
    for _ in range(60):
        rig.hear("n0/cpu:0", beat=pb.DaemonBeat())
        rig.do(Ticked(WALL, is_crowded=True), 1.0)
    assert rig.table.daemons["n0/cpu:1"].state is DaemonState.SUSPECT
    for _ in range(10):
        rig.hear("n0/cpu:0", beat=pb.DaemonBeat())
        rig.do(Ticked(WALL), 1.0)
    assert rig.table.daemons["n0/cpu:1"].state is DaemonState.LOST


@pytest.mark.parametrize("is_crowded", [True, False])
def test_a_job_waits_for_daemons_that_a_new_scheduler_has_put_off(is_crowded: bool) -> None:
    before = Rig(1)
    before.run(devices=1)
    rig = Rig(0, records=[before.job()], epoch=before.table.epoch, now=5000.0)
    for _ in range(60):
        rig.do(Ticked(WALL, is_crowded=is_crowded), 1.0)
    assert bool(rig.table.attempts.live) == is_crowded
