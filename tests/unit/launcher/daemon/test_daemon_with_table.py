"""Daemons' minds and the scheduler's table as one cluster, in virtual time, under a seed.

Lines break, daemons are killed and started anew, the scheduler is killed and reads its store again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from oneflow.launcher.daemon import events as e
from oneflow.launcher.daemon.daemon import Daemon, Times
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs import events as s
from oneflow.scheduler.jobs.messages import AttemptKey, event_of, prepare_message
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState
from oneflow.scheduler.jobs.table import Table

NUM_DAEMONS, NUM_JOBS = 3, 8
FAULTS_S, END_S = 120.0, 900.0


class World:
    """Time, chance, and what lives in it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self.launched: set[AttemptKey] = set()
        self.live: dict[AttemptKey, SimulatedDaemon] = {}
        self.exit_codes: dict[AttemptKey, int] = {}

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._count), do))

    def run(self, until: float) -> None:
        while self._queue and self._queue[0][0] <= until:
            self.now, _, do = heapq.heappop(self._queue)
            do()
        self.now = until

    def launch(self, key: AttemptKey, daemon: SimulatedDaemon) -> None:
        assert key not in self.launched, f"{key} runs twice"
        assert daemon not in self.live.values(), f"{daemon.name} runs two ranks"
        mine = key.job_id, key.life, key.attempt
        others = [k for k in self.live if k.job_id == key.job_id and run_of(k) != mine]
        assert not others, f"{key} runs beside {others}"
        self.launched.add(key)
        self.live[key] = daemon


@dataclass(eq=False)
class Line:
    """A stream: what is sent arrives later, in order, unless it breaks first."""

    world: World
    daemon: SimulatedDaemon
    incarnation: int
    epoch: int = 0
    is_open: bool = True
    last: dict[str, float] = field(default_factory=dict)

    def send(self, way: str, deliver: Callable[[], None]) -> None:
        at = max(self.last.get(way, 0.0), self.world.now + self.world.rng.uniform(0.001, 0.2))
        self.last[way] = at
        self.world.after(at - self.world.now, lambda: deliver() if self.is_open else None)


class SimulatedScheduler:
    def __init__(self, world: World) -> None:
        self.world = world
        self.store: dict[str, JobRecord] = {}
        self.epoch = 0
        self.lines: dict[str, Line] = {}
        self.table: Table | None = None
        self.finals: dict[str, JobRecord] = {}
        self.removed: dict[str, int] = {}
        self.start()
        self._tick()

    def start(self) -> None:
        self.table = Table(self.store.values(), self.epoch, removed=self.removed.items())
        self.lines.clear()

    def kill(self) -> None:
        self.table = None
        for line in list(self.lines.values()):
            line.daemon.broke(line)
        self.world.after(self.world.rng.uniform(0.5, 8.0), self.start)

    def _tick(self) -> None:
        self.step(s.Ticked(self.world.now + 1e9))
        self.world.after(0.5, self._tick)

    def joined(self, line: Line, event: s.DaemonJoined) -> None:
        if self.table is None:
            line.daemon.broke(line)
            return
        hello = event.hello
        old = self.lines.get(hello.daemon)
        if old is not None and old is not line:
            old.daemon.broke(old)
        self.lines[hello.daemon] = line
        self.step(event)

    def gone(self, line: Line, reason: str) -> None:
        if self.lines.get(line.daemon.name) is line:
            del self.lines[line.daemon.name]
        if line.epoch:
            self.step(s.DaemonGone(line.daemon.name, line.epoch, reason))

    def step(self, event: s.Event) -> None:
        if self.table is None:
            return
        for action in self.table.step(event, self.world.now):
            self._do(action)

    def _do(self, action: s.Action) -> None:
        match action:
            case s.Save(record=record):
                final = self.finals.get(record.id)
                assert final is None or final.state == record.state, "a final state changed"
                if record.state.is_final:
                    self.finals[record.id] = record
                self.store[record.id] = record
            case s.SaveEpoch(epoch=epoch):
                assert epoch > self.epoch
                self.epoch = epoch
            case s.TellWelcome():
                line = self.lines.get(action.daemon)
                if line is not None and line.incarnation == action.incarnation:
                    line.epoch = action.epoch
                    self._send(line, pb.SchedulerMessage(welcome=pb.Welcome(epoch=action.epoch)))
            case s.TellFenced():
                line = self.lines.get(action.daemon)
                if line is not None and line.incarnation == action.incarnation:
                    self._send(line, pb.SchedulerMessage(fenced=action.why))
            case s.Remove(job_id=job_id, life=life):
                del self.store[job_id], self.finals[job_id]
                self.removed[job_id] = life
            case s.Rejected():
                pass
            case _:
                line = self.lines.get(action.daemon)
                if line is not None and line.epoch == action.epoch:
                    self._send(line, told(action))

    def _send(self, line: Line, message: pb.SchedulerMessage) -> None:
        line.send("down", lambda: line.daemon.hear(line, message))


def told(action: s.Told) -> pb.SchedulerMessage:
    return prepare_message(action, "") if isinstance(action, s.TellPrepare) else action.message


def run_of(key: AttemptKey) -> tuple[str, int, int]:
    """The attempt that a rank is of."""
    return key.job_id, key.life, key.attempt


class SimulatedDaemon:
    def __init__(self, world: World, scheduler: SimulatedScheduler, index: int) -> None:
        self.world, self.scheduler, self.index = world, scheduler, index
        self.name = f"n1/cpu:{index}"
        self.life = 0
        self.start()
        self._beat()

    def start(self) -> None:
        self.life += 1
        self.mind = Daemon(Times(rejoin_s=1.0))
        self.incarnation = self.world.rng.getrandbits(60) + 1
        self.line: Line | None = None
        self.is_alive = True
        self.ending: set[AttemptKey] = set()
        self.connect()

    def kill(self) -> None:
        """kill -9: its rank dies with it."""
        self.is_alive = False
        for key in [key for key, daemon in self.world.live.items() if daemon is self]:
            del self.world.live[key]
        line, self.line = self.line, None
        if line is not None:
            line.is_open = False
            self.scheduler.gone(line, "lost")
            reason = self.world.rng.choice(["died", "lost"])
            self.world.after(0.3, lambda: self.scheduler.gone(line, reason))
        self.world.after(self.world.rng.uniform(0.5, 6.0), self.start)

    def leave(self) -> None:
        """Ends in order; somebody starts it again."""
        self.is_alive = False
        line, self.line = self.line, None
        if line is not None:
            line.send("up", lambda: self.scheduler.gone(line, "left"))
        self.world.after(self.world.rng.uniform(0.5, 6.0), self.start)

    # -- the line ----------------------------------------------------------------------------------

    def connect(self) -> None:
        if not self.is_alive or self.line is not None:
            return
        if self.scheduler.table is None:
            self._later(self.world.rng.uniform(0.2, 5.0), self.connect)
            return
        line = self.line = Line(self.world, self, self.incarnation)
        hello = s.DaemonJoined(
            pb.Hello(
                daemon=self.name,
                node="n1",
                device_type="cpu",
                device_index=self.index,
                address="127.0.0.1",
                incarnation=self.incarnation,
                epoch=self.mind.epoch,
                running=self.mind.running(),
                draining=self.mind.refuses_work,
            )
        )
        line.send("up", lambda: self.scheduler.joined(line, hello))

    def broke(self, line: Line) -> None:
        line.is_open = False
        if self.line is line:
            self.line = None
            self.step(e.Disconnected())
            self._later(self.world.rng.uniform(0.2, 5.0), self.connect)

    def break_line(self) -> None:
        line = self.line
        if line is not None:
            self.broke(line)
            self.scheduler.gone(line, "lost")

    def hear(self, line: Line, message: pb.SchedulerMessage) -> None:
        if self.is_alive and self.line is line:
            self.step(message)

    def say(self, message: pb.DaemonMessage) -> None:
        line, message.epoch = self.line, self.mind.epoch
        event = event_of(message, self.name, lambda: self.world.now + 1e9)
        if line is not None and self.mind.is_connected and event is not None:
            line.send("up", lambda: self.scheduler.step(event))

    def _beat(self) -> None:
        if self.is_alive:
            self.say(pb.DaemonMessage(beat=pb.DaemonBeat()))
            self.step(e.Ticked())
        self.world.after(1.0, self._beat)

    # -- the mind ----------------------------------------------------------------------------------

    def step(self, event: e.Event) -> None:
        if not self.is_alive:
            return
        for action in self.mind.step(event, self.world.now):
            self._do(action)

    def _later(self, delay_s: float, do: Callable[[], None]) -> None:
        """Unless the daemon is killed before."""
        life = self.life
        self.world.after(delay_s, lambda: do() if self.is_alive and self.life == life else None)

    def _post(self, delay_s: float, event: e.Event) -> None:
        self._later(delay_s, lambda: self.step(event))

    def _do(self, action: e.Action) -> None:
        rng = self.world.rng
        match action:
            case e.Gather(key=key):
                port = 700 if key.rank == 0 else 0
                self._post(rng.uniform(0.01, 3.0), e.Gathered(key, port))
            case e.Launch(key=key):
                self.world.launch(key, self)
                self._post(0.01, e.Launched(key, 42))
                code = rng.choice([0, 0, 0, 0, 7])
                self._later(rng.uniform(1.0, 8.0), lambda: self.exit(key, code))
            case e.EndTree(key=key, grace_s=grace_s):
                if key not in self.ending:
                    self.ending.add(key)
                    wait_s = rng.uniform(0.0, min(grace_s, 2.0))
                    self._later(wait_s, lambda: self.exit(key, 143))
                    self._later(wait_s + 0.5, lambda: self.tree_ended(key))
            case pb.DaemonMessage():
                self.say(action)
            case e.Leave():
                self.leave()
            case e.Rejoin(pause_s=pause_s):
                if self.line is not None:
                    self.break_line()
                self._later(pause_s, self.connect)

    def exit(self, key: AttemptKey, code: int) -> None:
        """A rank that is not the first to end follows those that failed."""
        if key not in self.world.live or self.world.live[key] is not self:
            return
        del self.world.live[key]
        peers = [k for k in self.world.exit_codes if run_of(k) == run_of(key)]
        if code == 0 and any(self.world.exit_codes[k] for k in peers):
            code = 85
        self.world.exit_codes[key] = code
        reason = {0: "NONE", 85: "PEER_LOST", 143: "SIGNAL"}.get(code, "USER_ERROR")
        self.step(e.ProcessExited(key, code, reason, "" if code == 0 else "as told", 42))

    def tree_ended(self, key: AttemptKey) -> None:
        assert key not in self.world.live
        self.step(e.TreeEnded(key))


def bring_trouble(world: World, scheduler: SimulatedScheduler, daemons: list[Any]) -> None:
    """Something every few seconds, for FAULTS_S."""
    if world.now > FAULTS_S:
        return
    daemon = world.rng.choice(daemons)
    match world.rng.randrange(8):
        case 0 if scheduler.table is not None:
            scheduler.kill()
        case 1 if daemon.is_alive:
            daemon.kill()
        case 2:
            job = f"j{world.rng.randrange(NUM_JOBS)}"
            scheduler.step(s.CancelAsked(job, "ada", world.now + 1e9))
        case 3 if daemon.is_alive:
            daemon.step(e.ShutdownAsked())
        case 4:
            remove_one(world, scheduler)
        case _ if daemon.is_alive:
            daemon.break_line()
    again = world.rng.uniform(0.5, 12.0)
    world.after(again, lambda: bring_trouble(world, scheduler, daemons))


def remove_one(world: World, scheduler: SimulatedScheduler) -> None:
    """Its id is used again."""
    finals = [job for job, record in scheduler.store.items() if record.state.is_final]
    if finals:
        job = world.rng.choice(finals)
        scheduler.step(s.RemoveAsked(job))
        submit(world, scheduler, int(job[1:]))


def submit(world: World, scheduler: SimulatedScheduler, number: int) -> None:
    """Until it is in the store."""
    job_id = f"j{number}"
    if job_id in scheduler.store:
        return
    spec = JobSpec(
        argv=("x",),
        devices=world.rng.randint(1, NUM_DAEMONS),
        max_restarts=world.rng.choice([0, 2]),
    )
    scheduler.step(s.Submitted(job_id, spec, "ada", "key", world.now + 1e9))
    world.after(3.0, lambda: submit(world, scheduler, number))


@pytest.mark.parametrize("seed", range(60))
def test_all_jobs_come_to_one_end_whatever_breaks(seed: int) -> None:
    world = World(seed)
    scheduler = SimulatedScheduler(world)
    daemons = [SimulatedDaemon(world, scheduler, index) for index in range(NUM_DAEMONS)]
    for number in range(NUM_JOBS):
        at = world.rng.uniform(0, FAULTS_S / 2)
        world.after(at, lambda number=number: submit(world, scheduler, number))  # type: ignore[misc]
    world.after(1.0, lambda: bring_trouble(world, scheduler, daemons))
    world.run(END_S)
    states = {job: record.state for job, record in scheduler.store.items()}
    assert len(states) == NUM_JOBS
    assert all(state.is_final for state in states.values()), states
    assert not world.live
    for job, record in scheduler.store.items():
        if record.state is JobState.SUCCEEDED:
            run = job, record.life, record.attempt
            codes = [c for k, c in world.exit_codes.items() if run_of(k) == run]
            assert codes == [0] * record.spec.devices
    assert all(not daemon.mind.ends for daemon in daemons), "every end was noted"
    assert all(daemon.mind.key is None for daemon in daemons)
