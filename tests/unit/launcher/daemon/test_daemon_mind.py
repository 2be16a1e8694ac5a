"""A daemon's mind: events in, actions out; then many seeded lives that must all end well."""

from __future__ import annotations

import random

import pytest

from oneflow.launcher.daemon.daemon import Daemon, Phase, Times
from oneflow.launcher.daemon.events import (
    Action,
    AttemptKey,
    Disconnected,
    DrainTold,
    Drop,
    EndTree,
    Event,
    Fenced,
    Gather,
    Gathered,
    Launch,
    Launched,
    Leave,
    LeftoversGone,
    NotedTold,
    NotGathered,
    PrepareTold,
    ProcessExited,
    Progressed,
    Rejoin,
    Running,
    SayExited,
    SayFailing,
    SayPrepared,
    SayProgress,
    ShutdownAsked,
    StartTold,
    StoodStill,
    StopTold,
    Ticked,
    TreeEnded,
    Welcomed,
)

KEY = AttemptKey("j1", 1, 0)
OTHER = AttemptKey("j2", 1, 0)


def live(daemon: Daemon, *events: Event, now: float = 0.0) -> list[Action]:
    """The actions of the last event."""
    actions: list[Action] = []
    for event in events:
        actions = daemon.step(event, now)
    return actions


def running(key: AttemptKey = KEY, times: Times | None = None) -> Daemon:
    daemon = Daemon(times)
    start = PrepareTold(key, "work"), Gathered(key, 700), StartTold(key, "h", 700)
    live(daemon, Welcomed(1), *start, Launched(key, 42))
    assert daemon.phase is Phase.RUNNING
    return daemon


def exited(code: int = 0, reason: str = "NONE", cause: str = "") -> ProcessExited:
    return ProcessExited(KEY, code, reason, cause, 42)


def test_a_rank_from_prepare_to_its_end() -> None:
    daemon = Daemon()
    assert live(daemon, Welcomed(1)) == []
    assert live(daemon, PrepareTold(KEY, "work")) == [Gather(KEY, "work")]
    assert live(daemon, Gathered(KEY, 700)) == [SayPrepared(KEY, 700)]
    assert live(daemon, StartTold(KEY, "h", 700)) == [Launch(KEY, "h", 700)]
    assert live(daemon, Launched(KEY, 42)) == [SayProgress(KEY)]
    progress = Progressed(KEY, 3, 10, {"loss": 0.5})
    assert live(daemon, progress) == [SayProgress(KEY, 3, 10, {"loss": 0.5})]
    assert daemon.running() == [Running(KEY, "running", 42, 3)]
    assert live(daemon, exited()) == [EndTree(KEY, 1.0)]
    end = SayExited(KEY, 0, "NONE", "", 3, 42)
    assert live(daemon, TreeEnded(KEY)) == [end]
    assert daemon.phase is Phase.IDLE
    assert live(daemon, Disconnected(), Welcomed(2)) == [end]
    assert live(daemon, NotedTold(KEY), Disconnected(), Welcomed(3)) == []


def test_what_is_told_twice_is_done_once() -> None:
    daemon = Daemon()
    live(daemon, Welcomed(1), PrepareTold(KEY, "work"))
    assert live(daemon, PrepareTold(KEY, "work")) == []
    live(daemon, Gathered(KEY, 700))
    assert live(daemon, PrepareTold(KEY, "work")) == [SayPrepared(KEY, 700)]
    live(daemon, StartTold(KEY, "h", 700))
    assert live(daemon, StartTold(KEY, "h", 700)) == [SayProgress(KEY)]
    assert live(daemon, PrepareTold(KEY, "work")) == [SayPrepared(KEY, 700)]
    end = live(daemon, Launched(KEY, 42), exited(7, "USER_ERROR", "c"), TreeEnded(KEY))
    for told in (PrepareTold(KEY, "w"), StartTold(KEY, "h", 1), StopTold(KEY, 1.0, "x")):
        assert live(daemon, told) == end == [SayExited(KEY, 7, "USER_ERROR", "c", 0, 42)]


def test_that_a_rank_fails_is_told_before_its_end() -> None:
    daemon = running()
    failing, end = live(daemon, exited(7, "USER_ERROR", "c"), now=30.0)
    said = SayExited(KEY, 7, "USER_ERROR", "c", 0, 42, failed_at=30.0)
    assert [failing, end] == [SayFailing(said), EndTree(KEY, 1.0)]
    assert live(daemon, TreeEnded(KEY), now=31.0) == [said]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_rank_that_stands_still_is_ended_and_why_is_told_at_once(is_stopped: bool) -> None:
    daemon = running()
    if is_stopped:  # its peers have lost it, and the others are stopped
        live(daemon, StopTold(KEY, 10.0, "a rank ended because others did"))
    still = StoodStill(KEY, 80, "HANG", "stuck", 42, since_s=14.0)
    failing, end = live(daemon, still, now=30.0)
    said = SayExited(KEY, 80, "HANG", "stuck", 0, 42, failed_at=16.0)
    assert [failing, end] == [SayFailing(said), EndTree(KEY, 0.0)]
    assert live(daemon, still) == []
    assert live(daemon, exited(137, "SIGNAL", "killed by SIGKILL")) == [EndTree(KEY, 1.0)]
    assert live(daemon, TreeEnded(KEY)) == [said]


def test_what_was_never_heard_of_is_stopped_and_never_begun() -> None:
    daemon = Daemon()
    (end,) = live(daemon, Welcomed(1), StopTold(KEY, 1.0, "cancelled"))
    cause = "cancelled; it was never begun here"
    assert end == SayExited(KEY, 143, "PREEMPTED", cause)
    assert live(daemon, PrepareTold(KEY, "work")) == [end]
    (end,) = live(daemon, StartTold(OTHER, "h", 1))
    assert isinstance(end, SayExited)
    assert end.reason == "NODE_LOST"


def test_a_later_job_of_the_same_id_is_another_one() -> None:
    """The end of the first one is remembered for good: it may be told again at any time."""
    daemon = running()
    end = live(daemon, exited(3, "USER_ERROR", "c"), TreeEnded(KEY))
    later = KEY._replace(life=1)
    assert live(daemon, PrepareTold(later, "work")) == [Gather(later, "work")]
    assert live(daemon, PrepareTold(KEY, "work")) == end
    assert daemon.key == later


def test_what_ends_because_it_was_stopped_says_so() -> None:
    daemon = running()
    assert live(daemon, StopTold(KEY, 5.0, "cancelled by ada")) == [EndTree(KEY, 5.0)]
    assert daemon.running()[0].phase == "stopping"
    live(daemon, exited(7, "USER_ERROR", "exited with code 7"))
    (end,) = live(daemon, TreeEnded(KEY))
    cause = "cancelled by ada (exited with code 7)"
    assert end == SayExited(KEY, 7, "PREEMPTED", cause, 0, 42)


def test_what_had_ended_by_itself_keeps_its_cause() -> None:
    daemon = running()
    live(
        daemon, exited(7, "USER_ERROR", "exited with code 7"), StopTold(KEY, 5.0, "another failed")
    )
    (end,) = live(daemon, TreeEnded(KEY))
    assert end == SayExited(KEY, 7, "USER_ERROR", "exited with code 7", 0, 42)


@pytest.mark.parametrize("is_gathered", [False, True])
def test_what_was_not_started_is_dropped(is_gathered: bool) -> None:
    daemon = Daemon()
    live(daemon, Welcomed(1), PrepareTold(KEY, "work"))
    if is_gathered:
        live(daemon, Gathered(KEY, 700))
    dropped, end = live(daemon, StopTold(KEY, 5.0, "cancelled"))
    assert dropped == Drop(KEY)
    assert end == SayExited(KEY, 143, "PREEMPTED", "cancelled; it had not been started")
    assert live(daemon, Gathered(KEY, 700)) == [Drop(KEY)]
    assert live(daemon, PrepareTold(OTHER, "w")) == [Gather(OTHER, "w")]


def test_a_new_prepare_replaces_one_that_was_not_started() -> None:
    daemon = Daemon()
    live(daemon, Welcomed(1), PrepareTold(KEY, "work"), Gathered(KEY, 700))
    assert live(daemon, PrepareTold(OTHER, "w")) == [Drop(KEY), Gather(OTHER, "w")]
    daemon = running()
    (said,) = live(daemon, PrepareTold(OTHER, "w"))
    assert said == SayPrepared(OTHER, 0, f"it is still busy with {KEY}", "INTERNAL")


def test_what_cannot_be_gathered_can_be_tried_again() -> None:
    daemon = Daemon()
    live(daemon, Welcomed(1), PrepareTold(KEY, "work"))
    said = live(daemon, NotGathered(KEY, "no such program", "UNSATISFIABLE", 78))
    assert said == [Drop(KEY), SayPrepared(KEY, 0, "no such program", "UNSATISFIABLE", 78)]
    assert live(daemon, PrepareTold(KEY, "work")) == [Gather(KEY, "work")]


def test_a_fenced_daemon_kills_first_and_says_nothing() -> None:
    daemon = running()
    assert live(daemon, Fenced("lost")) == [EndTree(KEY, 0.0)]
    assert live(daemon, exited(137, "SIGNAL")) == [EndTree(KEY, 0.0)]
    assert live(daemon, TreeEnded(KEY)) == [Rejoin(0.0)]
    assert daemon.running() == []
    assert live(daemon, Welcomed(2)) == []
    assert live(daemon, Fenced("another one is here")) == [Rejoin(daemon.times.rejoin_s)]


def test_a_rank_goes_on_without_a_scheduler_but_not_for_ever() -> None:
    daemon = running()
    live(daemon, Progressed(KEY, 8, 10, {"a": 1.0}, "/ckpt/8", 8), Progressed(KEY, 9))
    live(daemon, Disconnected(), now=100.0)
    assert live(daemon, Disconnected(), Ticked(), now=699.0) == []
    assert daemon.running() == [Running(KEY, "running", 42, 9)]
    told = SayProgress(KEY, 9, 0, {"a": 1.0}, "/ckpt/8", 8)
    assert live(daemon, Welcomed(2), now=699.5) == [told]
    live(daemon, Disconnected(), now=700.0)
    assert live(daemon, Ticked(), now=1300.0) == [EndTree(KEY, 60.0)]
    assert live(daemon, Ticked(), now=1301.0) == []
    live(daemon, exited(143, "PREEMPTED"))
    (end,) = live(daemon, TreeEnded(KEY))
    assert isinstance(end, SayExited)
    assert (end.reason, end.cause) == ("NODE_LOST", "the scheduler was away for 600 s")
    assert live(daemon, Welcomed(3), now=1400.0) == [end]


def test_a_device_with_an_unkillable_process_takes_no_work_until_it_is_gone() -> None:
    daemon = running()
    live(daemon, StopTold(KEY, 0.0, "cancelled"))
    (end,) = live(daemon, TreeEnded(KEY, num_left=2))
    assert isinstance(end, SayExited)
    assert end.cause == "cancelled; 2 of its processes cannot be killed"
    (said,) = live(daemon, PrepareTold(OTHER, "w"))
    assert isinstance(said, SayPrepared)
    assert (said.reason, said.error) == (
        "PREEMPTED",
        "processes of an earlier rank cannot be killed",
    )
    assert live(daemon, LeftoversGone()) == [Rejoin(0.0, is_new=True)]
    assert live(daemon, PrepareTold(OTHER, "w")) == [Gather(OTHER, "w")]


def test_a_draining_daemon_takes_no_work_and_finishes_what_it_has() -> None:
    daemon = running()
    assert live(daemon, DrainTold(True, 7)) == []
    assert daemon.drain_number == 7
    live(daemon, exited(), TreeEnded(KEY))
    (said,) = live(daemon, PrepareTold(OTHER, "w"))
    assert isinstance(said, SayPrepared)
    assert said.reason == "PREEMPTED"
    live(daemon, DrainTold(False, 8))
    assert daemon.drain_number == 0
    assert live(daemon, PrepareTold(OTHER, "w")) == [Gather(OTHER, "w")]


def test_a_daemon_with_reasons_of_its_own_does_not_say_that_a_drain_keeps_it_from_work() -> None:
    daemon = running()
    live(daemon, DrainTold(True, 7), ShutdownAsked())
    assert (daemon.refuses_work, daemon.drain_number) == (True, 0)


def test_a_signal_ends_it_in_order_and_a_second_one_at_once() -> None:
    daemon = Daemon()
    assert live(daemon, Welcomed(1), ShutdownAsked()) == [Leave(0)]
    daemon = running()
    assert live(daemon, ShutdownAsked()) == [EndTree(KEY, daemon.times.shutdown_grace_s)]
    (said,) = live(daemon, PrepareTold(OTHER, "w"))
    assert isinstance(said, SayPrepared)
    assert said.reason == "PREEMPTED"
    live(daemon, exited(0))
    (end,) = live(daemon, TreeEnded(KEY))
    assert isinstance(end, SayExited)
    assert end.reason == "PREEMPTED"
    assert live(daemon, Ticked()) == []
    assert live(daemon, NotedTold(KEY)) == [Leave(0)]
    daemon = running()
    live(daemon, ShutdownAsked())
    assert live(daemon, ShutdownAsked()) == [EndTree(KEY, 0.0)]
    live(daemon, exited(137))
    assert live(daemon, TreeEnded(KEY))[1:] == [Leave(143)]


def test_it_does_not_wait_for_ever_to_be_noted() -> None:
    daemon = running(times=Times(noted_s=5.0))
    live(daemon, ShutdownAsked(), exited(), now=10.0)
    live(daemon, TreeEnded(KEY), now=12.0)
    assert live(daemon, Ticked(), now=16.9) == []
    assert live(daemon, Ticked(), now=17.1) == [Leave(0)]


class World:
    """Does what a daemon says, in an order of its own, and checks what must always hold."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.daemon = Daemon(Times(noted_s=1.0, away_s=20.0))
        self.now = 0.0
        self.pending: list[Event] = []
        self.launched: set[AttemptKey] = set()
        self.live: set[AttemptKey] = set()
        self.gathered: set[AttemptKey] = set()
        self.ended: dict[AttemptKey, SayExited] = {}
        self.has_left = False
        self.rejoins = 0
        self.joined = 0

    def do(self, event: Event) -> None:
        if self.has_left:
            return
        self.now += self.rng.random()
        for action in self.daemon.step(event, self.now):
            self.act(action)
        assert len(self.live) <= 1
        assert len(self.gathered | self.live) <= 1

    def act(self, action: Action) -> None:
        rng = self.rng
        match action:
            case Gather(key=key):
                assert not self.live
                self.gathered.add(key)
                is_bad = rng.random() < 0.1
                answer = NotGathered(key, "no", "INTERNAL") if is_bad else Gathered(key, 700)
                self.pending.append(answer)
            case Drop(key=key):
                self.gathered.discard(key)
            case Launch(key=key):
                assert key not in self.launched, "a rank is launched once"
                assert key not in self.ended, "what ended is never begun"
                self.gathered.discard(key)
                self.launched.add(key)
                self.live.add(key)
                self.pending.append(Launched(key, 42))
                if rng.random() < 0.5:
                    self.pending.append(ProcessExited(key, rng.choice([0, 7]), "NONE", "", 42))
            case EndTree(key=key):
                assert key in self.live
                if not any(isinstance(e, TreeEnded) for e in self.pending):
                    self.pending.append(ProcessExited(key, 137, "SIGNAL", "killed", 42))
                    self.pending.append(TreeEnded(key))
            case SayPrepared(error=error, key=key):
                if error:
                    self.gathered.discard(key)
            case SayExited(key=key):
                assert key not in self.live, "its end is told when nothing of it lives"
                assert self.ended.setdefault(key, action) == action, "an end never changes"
            case Rejoin():
                assert not self.live
                self.rejoins += 1
            case Leave():
                assert not self.live
                self.has_left = True

    def finish_one(self) -> None:
        """One of the things under way happens; those of a process in their order."""
        if not self.pending:
            return
        event = self.pending.pop(0)
        if isinstance(event, TreeEnded):
            self.live.discard(event.key)
        self.do(event)

    def scheduler_speaks(self) -> None:
        rng = self.rng
        job = rng.choice("abc")
        key = AttemptKey(job, rng.randint(1, 9), 0)
        told: list[Event] = [
            PrepareTold(key, "w"),
            StartTold(self.daemon.key or key, "h", 1),
            StopTold(rng.choice([self.daemon.key or key, key]), 1.0, "why"),
            NotedTold(key),
            Welcomed(self.joined),
            Disconnected(),
            Fenced("lost"),
            Ticked(),
            Progressed(key, 1),
            StoodStill(key, 80, "HANG", "stuck", 42),
        ]
        if self.live:
            told.append(StoodStill(next(iter(self.live)), 80, "HANG", "stuck", 42))
        self.do(rng.choices(told, [6, 6, 2, 2, 1, 1, 0.3, 3, 1, 1, 0.5][: len(told)])[0])


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_in_whatever_order(seed: int) -> None:
    world = World(seed)
    world.do(Welcomed(1))
    for _ in range(150):
        if world.rng.random() < 0.5:
            world.finish_one()
        else:
            world.scheduler_speaks()
    world.do(Welcomed(9))
    while world.pending:
        world.finish_one()
    world.do(ShutdownAsked())
    for _ in range(20):
        world.finish_one()
        world.do(Ticked())
    assert world.has_left
