"""A daemon's mind: events in, actions out; then many seeded lives that must all end well."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from oneflow.launcher.daemon.daemon import Daemon, Phase, Times
from oneflow.launcher.daemon.events import (
    Action,
    Disconnected,
    Drop,
    EndTree,
    Event,
    Gather,
    Gathered,
    Launch,
    Launched,
    Leave,
    LeftoversGone,
    NotGathered,
    ProcessExited,
    Progressed,
    Rejoin,
    ShutdownAsked,
    StoodStill,
    Ticked,
    TreeEnded,
)
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.messages import AttemptKey, key_of

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
    live(daemon, welcome(1), prepare(key), Gathered(key, 700), start(key, "h", 700))
    live(daemon, Launched(key, 42))
    assert daemon.phase is Phase.RUNNING
    return daemon


def welcome(epoch: int) -> pb.SchedulerMessage:
    return pb.SchedulerMessage(welcome=pb.Welcome(epoch=epoch))


def fenced(why: str) -> pb.SchedulerMessage:
    return pb.SchedulerMessage(fenced=why)


def prepare(key: AttemptKey) -> pb.SchedulerMessage:
    return pb.SchedulerMessage(prepare=pb.Prepare(id=key.wire))


def start(key: AttemptKey, addr: str, port: int) -> pb.SchedulerMessage:
    start = pb.Start(id=key.wire, master_addr=addr, master_port=port)
    return pb.SchedulerMessage(start=start)


def stop(key: AttemptKey, grace_s: float, why: str) -> pb.SchedulerMessage:
    return pb.SchedulerMessage(stop=pb.Stop(id=key.wire, grace_s=grace_s, why=why))


def noted(key: AttemptKey) -> pb.SchedulerMessage:
    return pb.SchedulerMessage(noted=key.wire)


def drain(is_on: bool) -> pb.SchedulerMessage:
    return pb.SchedulerMessage(drain=is_on)


def gather(key: AttemptKey) -> Gather:
    return Gather(key, pb.Prepare(id=key.wire))


def progressed(key: AttemptKey, *said: Any) -> Progressed:
    return Progressed(key, report(key, *said))


def report(
    key: AttemptKey,
    step: int = 0,
    total: int = 0,
    metrics: Mapping[str, float] | None = None,
    checkpoint: str = "",
    at: int = 0,
) -> pb.Progress:
    found = pb.Progress(id=key.wire, step=step, total_steps=total, metrics=metrics)
    found.checkpoint, found.checkpoint_step = checkpoint, at
    return found


# ---- said by the daemon --------------------------------------------------------------------------


def progress(key: AttemptKey, *said: Any) -> pb.DaemonMessage:
    return pb.DaemonMessage(progress=report(key, *said))


def prepared(
    key: AttemptKey, port: int = 0, error: str = "", reason: str = "", code: int = 0
) -> pb.DaemonMessage:
    said = pb.Prepared(id=key.wire, master_port=port, error=error, reason=reason, exit_code=code)
    return pb.DaemonMessage(prepared=said)


def ended(
    key: AttemptKey, code: int, reason: str, cause: str, step: int = 0, pid: int = 0
) -> pb.DaemonMessage:
    end = pb.Exited(id=key.wire, exit_code=code, reason=reason, cause=cause)
    end.last_step, end.pid = step, pid
    return pb.DaemonMessage(exited=end)


def at_work(step: int) -> pb.RunningAttempt:
    return pb.RunningAttempt(id=KEY.wire, phase="running", pid=42, last_step=step)


def end_of(said: Action) -> pb.Exited:
    assert isinstance(said, pb.DaemonMessage)
    return said.exited


def failing(end: pb.DaemonMessage, since_s: float = 0.0) -> pb.DaemonMessage:
    """The same end, told before it."""
    found = pb.DaemonMessage(failing=end.exited)
    found.failing.seen_s = since_s
    return found


def exited(code: int = 0, reason: str = "NONE", cause: str = "") -> ProcessExited:
    return ProcessExited(KEY, code, reason, cause, 42)


def test_a_rank_from_prepare_to_its_end() -> None:
    daemon = Daemon()
    assert live(daemon, welcome(1)) == []
    assert live(daemon, prepare(KEY)) == [gather(KEY)]
    assert live(daemon, Gathered(KEY, 700)) == [prepared(KEY, 700)]
    assert live(daemon, start(KEY, "h", 700)) == [Launch(KEY, "h", 700)]
    assert live(daemon, Launched(KEY, 42)) == [progress(KEY)]
    told = progressed(KEY, 3, 10, {"loss": 0.5})
    assert live(daemon, told) == [progress(KEY, 3, 10, {"loss": 0.5})]
    assert daemon.running() == [at_work(3)]
    assert live(daemon, exited()) == [EndTree(KEY, 1.0)]
    end = ended(KEY, 0, "NONE", "", 3, 42)
    assert live(daemon, TreeEnded(KEY)) == [end]
    assert daemon.phase is Phase.IDLE
    assert live(daemon, Disconnected(), welcome(2)) == [end]
    assert live(daemon, noted(KEY), Disconnected(), welcome(3)) == []


def test_what_is_told_twice_is_done_once() -> None:
    daemon = Daemon()
    live(daemon, welcome(1), prepare(KEY))
    assert live(daemon, prepare(KEY)) == []
    live(daemon, Gathered(KEY, 700))
    assert live(daemon, prepare(KEY)) == [prepared(KEY, 700)]
    live(daemon, start(KEY, "h", 700))
    assert live(daemon, start(KEY, "h", 700)) == [progress(KEY)]
    assert live(daemon, prepare(KEY)) == [prepared(KEY, 700)]
    end = live(daemon, Launched(KEY, 42), exited(7, "USER_ERROR", "c"), TreeEnded(KEY))
    for told in (prepare(KEY), start(KEY, "h", 1), stop(KEY, 1.0, "x")):
        assert live(daemon, told) == end == [ended(KEY, 7, "USER_ERROR", "c", 0, 42)]


def test_that_a_rank_fails_is_told_before_its_end() -> None:
    daemon = running()
    said = ended(KEY, 7, "USER_ERROR", "c", 0, 42)
    told = live(daemon, exited(7, "USER_ERROR", "c"), now=30.0)
    assert told == [failing(said), EndTree(KEY, 1.0)]
    assert live(daemon, TreeEnded(KEY), now=31.0) == [said]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_rank_that_stands_still_is_ended_and_why_is_told_at_once(is_stopped: bool) -> None:
    daemon = running()
    if is_stopped:  # its peers have lost it, and the others are stopped
        live(daemon, stop(KEY, 10.0, "a rank ended because others did"))
    still = StoodStill(KEY, 80, "HANG", "stuck", 42, since_s=14.0)
    said = ended(KEY, 80, "HANG", "stuck", 0, 42)
    assert live(daemon, still, now=30.0) == [failing(said, 14.0), EndTree(KEY, 0.0)]
    assert live(daemon, still) == []
    assert live(daemon, exited(137, "SIGNAL", "killed by SIGKILL")) == [EndTree(KEY, 1.0)]
    assert live(daemon, TreeEnded(KEY)) == [said]


def test_what_was_never_heard_of_is_stopped_and_never_begun() -> None:
    daemon = Daemon()
    (end,) = live(daemon, welcome(1), stop(KEY, 1.0, "cancelled"))
    cause = "cancelled; it was never begun here"
    assert end == ended(KEY, 143, "PREEMPTED", cause)
    assert live(daemon, prepare(KEY)) == [end]
    (end,) = live(daemon, start(OTHER, "h", 1))
    assert end_of(end).reason == "NODE_LOST"


def test_a_later_job_of_the_same_id_is_another_one() -> None:
    """The end of the first one is remembered for good: it may be told again at any time."""
    daemon = running()
    end = live(daemon, exited(3, "USER_ERROR", "c"), TreeEnded(KEY))
    later = KEY._replace(life=1)
    assert live(daemon, prepare(later)) == [gather(later)]
    assert live(daemon, prepare(KEY)) == end
    assert daemon.key == later


def test_what_ends_because_it_was_stopped_says_so() -> None:
    daemon = running()
    assert live(daemon, stop(KEY, 5.0, "cancelled by ada")) == [EndTree(KEY, 5.0)]
    assert daemon.running()[0].phase == "stopping"
    live(daemon, exited(7, "USER_ERROR", "exited with code 7"))
    (end,) = live(daemon, TreeEnded(KEY))
    cause = "cancelled by ada (exited with code 7)"
    assert end == ended(KEY, 7, "PREEMPTED", cause, 0, 42)


def test_what_had_ended_by_itself_keeps_its_cause() -> None:
    daemon = running()
    live(daemon, exited(7, "USER_ERROR", "exited with code 7"), stop(KEY, 5.0, "another failed"))
    (end,) = live(daemon, TreeEnded(KEY))
    assert end == ended(KEY, 7, "USER_ERROR", "exited with code 7", 0, 42)


@pytest.mark.parametrize("is_gathered", [False, True])
def test_what_was_not_started_is_dropped(is_gathered: bool) -> None:
    daemon = Daemon()
    live(daemon, welcome(1), prepare(KEY))
    if is_gathered:
        live(daemon, Gathered(KEY, 700))
    dropped, end = live(daemon, stop(KEY, 5.0, "cancelled"))
    assert dropped == Drop(KEY)
    assert end == ended(KEY, 143, "PREEMPTED", "cancelled; it had not been started")
    assert live(daemon, Gathered(KEY, 700)) == [Drop(KEY)]
    assert live(daemon, prepare(OTHER)) == [gather(OTHER)]


def test_a_new_prepare_replaces_one_that_was_not_started() -> None:
    daemon = Daemon()
    live(daemon, welcome(1), prepare(KEY), Gathered(KEY, 700))
    assert live(daemon, prepare(OTHER)) == [Drop(KEY), gather(OTHER)]
    daemon = running()
    (said,) = live(daemon, prepare(OTHER))
    assert said == prepared(OTHER, 0, f"it is still busy with {KEY}", "INTERNAL")


def test_what_cannot_be_gathered_can_be_tried_again() -> None:
    daemon = Daemon()
    live(daemon, welcome(1), prepare(KEY))
    said = live(daemon, NotGathered(KEY, "no such program", "UNSATISFIABLE", 78))
    assert said == [Drop(KEY), prepared(KEY, 0, "no such program", "UNSATISFIABLE", 78)]
    assert live(daemon, prepare(KEY)) == [gather(KEY)]


def test_a_fenced_daemon_kills_first_and_says_nothing() -> None:
    daemon = running()
    assert live(daemon, fenced("lost")) == [EndTree(KEY, 0.0)]
    assert live(daemon, exited(137, "SIGNAL")) == [EndTree(KEY, 0.0)]
    assert live(daemon, TreeEnded(KEY)) == [Rejoin(0.0)]
    assert daemon.running() == []
    assert live(daemon, welcome(2)) == []
    assert live(daemon, fenced("another one is here")) == [Rejoin(daemon.times.rejoin_s)]


def test_a_rank_goes_on_without_a_scheduler_but_not_for_ever() -> None:
    daemon = running()
    live(daemon, progressed(KEY, 8, 10, {"a": 1.0}, "/ckpt/8", 8), progressed(KEY, 9))
    live(daemon, Disconnected(), now=100.0)
    assert live(daemon, Disconnected(), Ticked(), now=699.0) == []
    assert daemon.running() == [at_work(9)]
    told = progress(KEY, 9, 0, {"a": 1.0}, "/ckpt/8", 8)
    assert live(daemon, welcome(2), now=699.5) == [told]
    live(daemon, Disconnected(), now=700.0)
    assert live(daemon, Ticked(), now=1300.0) == [EndTree(KEY, 60.0)]
    assert live(daemon, Ticked(), now=1301.0) == []
    (end,) = live(daemon, exited(143, "PREEMPTED"), TreeEnded(KEY), now=1302.0)
    assert end_of(end).reason == "NODE_LOST"
    assert end_of(end).cause == "the scheduler was away for 600 s"
    (again,) = live(daemon, welcome(3), now=1400.0)
    assert (end_of(end).seen_s, end_of(again).seen_s) == (0.0, 98.0)
    end_of(again).seen_s = 0.0
    assert again == end


def test_a_device_with_an_unkillable_process_takes_no_work_until_it_is_gone() -> None:
    daemon = running()
    live(daemon, stop(KEY, 0.0, "cancelled"))
    (end,) = live(daemon, TreeEnded(KEY, num_left=2))
    assert end_of(end).cause == "cancelled; 2 of its processes cannot be killed"
    (said,) = live(daemon, prepare(OTHER))
    assert isinstance(said, pb.DaemonMessage)
    assert (said.prepared.reason, said.prepared.error) == (
        "PREEMPTED",
        "processes of an earlier rank cannot be killed",
    )
    assert live(daemon, LeftoversGone()) == [Rejoin(0.0, is_new=True)]
    assert live(daemon, prepare(OTHER)) == [gather(OTHER)]


def test_a_draining_daemon_takes_no_work_and_finishes_what_it_has() -> None:
    daemon = running()
    assert live(daemon, drain(True)) == []
    live(daemon, exited(), TreeEnded(KEY))
    (said,) = live(daemon, prepare(OTHER))
    assert isinstance(said, pb.DaemonMessage)
    assert said.prepared.reason == "PREEMPTED"
    live(daemon, drain(False))
    assert live(daemon, prepare(OTHER)) == [gather(OTHER)]


def test_a_welcome_ends_a_drain_but_no_reason_of_the_daemons_own() -> None:
    daemon = running()
    live(daemon, drain(True))
    assert (daemon.refuses_work, daemon.is_unable) == (True, False)
    live(daemon, welcome(2))
    assert not daemon.refuses_work
    live(daemon, ShutdownAsked(), welcome(3))
    assert daemon.refuses_work and daemon.is_unable


def test_a_signal_ends_it_in_order_and_a_second_one_at_once() -> None:
    daemon = Daemon()
    assert live(daemon, welcome(1), ShutdownAsked()) == [Leave(0)]
    daemon = running()
    assert live(daemon, ShutdownAsked()) == [EndTree(KEY, daemon.times.shutdown_grace_s)]
    (said,) = live(daemon, prepare(OTHER))
    assert isinstance(said, pb.DaemonMessage)
    assert said.prepared.reason == "PREEMPTED"
    live(daemon, exited(0))
    (end,) = live(daemon, TreeEnded(KEY))
    assert end_of(end).reason == "PREEMPTED"
    assert live(daemon, Ticked()) == []
    assert live(daemon, noted(KEY)) == [Leave(0)]
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
    """Does a daemon's actions, in an order of its own, and checks the invariants."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.daemon = Daemon(Times(noted_s=1.0, away_s=20.0))
        self.now = 0.0
        self.pending: list[Event] = []
        self.launched: set[AttemptKey] = set()
        self.live: set[AttemptKey] = set()
        self.gathered: set[AttemptKey] = set()
        self.ended: dict[AttemptKey, pb.Exited] = {}
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
            case pb.DaemonMessage():
                self.hear(action)
            case Rejoin():
                assert not self.live
                self.rejoins += 1
            case Leave():
                assert not self.live
                self.has_left = True

    def hear(self, said: pb.DaemonMessage) -> None:
        if said.prepared.error:
            self.gathered.discard(key_of(said.prepared.id))
        if said.HasField("exited"):
            key = key_of(said.exited.id)
            assert key not in self.live, "its end is told when nothing of it lives"
            said.exited.ClearField("seen_s")  # how long ago it was grows
            assert self.ended.setdefault(key, said.exited) == said.exited, "an end never changes"

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
            prepare(key),
            start(self.daemon.key or key, "h", 1),
            stop(rng.choice([self.daemon.key or key, key]), 1.0, "why"),
            noted(key),
            welcome(self.joined),
            Disconnected(),
            fenced("lost"),
            Ticked(),
            progressed(key, 1),
            StoodStill(key, 80, "HANG", "stuck", 42),
        ]
        if self.live:
            told.append(StoodStill(next(iter(self.live)), 80, "HANG", "stuck", 42))
        self.do(rng.choices(told, [6, 6, 2, 2, 1, 1, 0.3, 3, 1, 1, 0.5][: len(told)])[0])


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_in_whatever_order(seed: int) -> None:
    world = World(seed)
    world.do(welcome(1))
    for _ in range(150):
        if world.rng.random() < 0.5:
            world.finish_one()
        else:
            world.scheduler_speaks()
    world.do(welcome(9))
    while world.pending:
        world.finish_one()
    world.do(ShutdownAsked())
    for _ in range(20):
        world.finish_one()
        world.do(Ticked())
    assert world.has_left
