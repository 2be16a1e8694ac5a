"""A daemon with its real mind, on a pretended machine whose ranks step together or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from oneflow.launcher.daemon import events
from oneflow.launcher.daemon.daemon import Daemon as Mind
from oneflow.launcher.daemon.daemon import Ended, Phase, Times
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import (
    DaemonJoined,
    Tell,
    TellFenced,
    TellPace,
    TellPrepare,
    TellWelcome,
)
from oneflow.scheduler.jobs.limits import up_to
from oneflow.scheduler.jobs.messages import AttemptKey, event_of, key_of, prepare_message
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.settings import ACT_BEATS
from oneflow.scheduler.jobs.specs import spec_to_proto

from .network import Connection, Line, Quality, Violation, World

SILENCE_S = 5.0  # a daemon that hears nothing for so long connects anew
UNKILLABLE_S = 120.0
ALONE_S = 600.0  # and one without a scheduler for so long stops what it runs


@dataclass
class Program:
    """Behaviour of a job. failures: attempt -> (step, rank, code, reason)."""

    steps: int
    step_s: float
    checkpoint_every: int
    failures: dict[int, tuple[int, int, int, str]] = field(default_factory=dict)
    early_exit_rank: int = -1
    is_endless: bool = False
    prepare_error: float = 0.0
    prepare_hang: float = 0.0
    stop_s: float = 1.0
    exits_zero_when_stopped: bool = False
    is_unkillable: bool = False  # for UNKILLABLE_S, as in the middle of a system call


class Scheduler(Protocol):
    """Things that a daemon needs to know of the scheduler."""

    name: str
    is_up: bool
    life: int

    def receive(self, connection: Connection, message: Any) -> None: ...

    def connection_broke(self, connection: Connection) -> None: ...


@dataclass
class Worker:
    """phase: gathered, running, stopping or ended."""

    key: AttemptKey
    training: Training
    phase: str = "gathered"
    is_frozen: bool = False
    resume_step: int = 0


class Training:
    """The ranks of one attempt, which step together or not at all."""

    def __init__(self, world: World, record: JobRecord, program: Program):
        self.world = world
        self.job_id, self.life, self.attempt = record.id, record.life, record.attempt
        self.argv = record.spec.argv
        devices = len(record.assignments)
        self.devices = devices
        self.program = program
        self.step = 0
        self.first_step_at = 0.0
        self.ranks: dict[int, tuple[Daemon, Worker]] = {}
        self.on_step: Callable[[Training], None] = lambda training: None
        self.codes: dict[int, int] = {}  # of the ranks that have ended
        self.is_through = False
        self.is_broken = False
        self._is_ticking = False

    def join(self, daemon: Daemon, worker: Worker) -> None:
        if worker.key.rank in self.ranks:
            raise Violation(f"{worker.key} runs twice")
        self.ranks[worker.key.rank] = (daemon, worker)
        self.step = max(self.step, worker.resume_step)
        if len(self.ranks) == self.devices and not self._is_ticking:
            self._is_ticking = True
            self.world.after(self.program.step_s, self._tick)

    def _tick(self) -> None:
        workers = [worker for _, worker in self.ranks.values()]
        if self.is_broken or any(w.phase != "running" for w in workers):
            return
        if any(w.is_frozen for w in workers):
            self.world.after(self.program.step_s, self._tick)
            return
        self._make_step()
        if not self.is_through and not self.is_broken:
            self.world.after(self.program.step_s, self._tick)

    def _make_step(self) -> None:
        program = self.program
        self.step += 1
        self.on_step(self)
        failure = program.failures.get(self.attempt)
        if failure and failure[0] <= self.step and failure[1] in self.ranks:
            _, rank, code, reason = failure
            daemon, worker = self.ranks[rank]
            daemon.end(worker, code, reason, f"rank {rank} failed as told")
            return
        self._report()
        if self.step == 2 and program.early_exit_rank in self.ranks and self.devices > 1:
            daemon, worker = self.ranks[program.early_exit_rank]
            daemon.end(worker, 0, "NONE", "")
            return
        if self.step >= program.steps and not program.is_endless:
            self._finish()

    def _report(self) -> None:
        daemon, worker = self.ranks[0]
        every = self.program.checkpoint_every
        is_saved = every > 0 and self.step % every == 0
        daemon.progress(worker, self.step, self.program.steps, self.step if is_saved else 0)

    def _finish(self) -> None:
        self.is_through = True
        for daemon, worker in self.ranks.values():
            self.world.after(
                self.world.rng.uniform(0, 1.5),
                lambda d=daemon, w=worker: d.end(w, 0, "NONE", ""),  # type: ignore[misc]
            )

    def left(self, rank: int, code: int) -> None:
        """A rank ended: the others notice, most of them soon."""
        if rank in self.ranks:
            self.codes.setdefault(rank, code)
        if rank not in self.ranks or self.is_broken or (self.is_through and code == 0):
            return
        self.is_broken = True
        for other, (daemon, worker) in self.ranks.items():
            if other == rank or worker.phase != "running":
                continue
            late = self.world.rng.choice((0.1, 0.5, 1.0, 25.0))
            code_of_follower, reason = (80, "HANG") if late > 20 else (85, "PEER_LOST")
            self.world.after(
                late,
                lambda d=daemon, w=worker, c=code_of_follower, r=reason: d.end_if_running(  # type: ignore[misc]
                    w, c, r, "a peer is gone"
                ),
            )


class Daemon:
    """One device: the real daemon's mind, and a pretended machine that obeys the mind."""

    def __init__(
        self,
        world: World,
        name: str,
        node: str,
        index: int,
        scheduler: Scheduler,
        quality: Quality,
        trainings: Callable[[TellPrepare], Training],
    ) -> None:
        self.world = world
        self.name = name
        self.node = node
        self.index = index
        self.scheduler = scheduler
        self.quality = quality
        self.line = Line()
        self.trainings = trainings
        self.folders: set[str] = set()  # of jobs; they outlive the process
        self.mark = pb.JournalMark()
        self.users: dict[str, tuple[str, ...]] = {}  # of folders: the command of their job
        self.runs: dict[AttemptKey, Training] = {}
        self.incarnation = 0
        self.is_alive = False
        self.is_frozen = False
        self.fine_since = 0.0  # alive, not frozen, not cut off
        self.start()

    @property
    def exits(self) -> Mapping[AttemptKey, Ended]:
        """Ends that are not noted yet."""
        return self.mind.ends

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        self.incarnation = self.world.rng.getrandbits(63)
        self.is_alive, self.is_frozen, self.fine_since = True, False, self.world.now
        self.mind = Mind(Times(away_s=ALONE_S, away_grace_s=5.0))
        self.connection: Connection | None = None
        self.worker: Worker | None = None
        self.told: dict[AttemptKey, TellPrepare] = {}
        self.heard_at = self.beat_at = self.world.now
        self.slow_s = 0.0
        self.inbox: list[Callable[[], None]] = []  # what happens while it is frozen
        self.world.say(f"{self.name} starts")
        self._later(0.0, self._connect)
        self._later(self.world.rng.uniform(0, 1), self._beat)

    def kill(self) -> None:
        """Its ranks die with it."""
        if not self.is_alive:
            return
        self.world.say(f"{self.name} is killed")
        self._end_process()

    def shut_down(self) -> None:
        """Shut down in order, as SIGTERM asks; somebody starts it again after it has left."""
        self.step(events.ShutdownAsked())

    def _leave(self) -> None:
        self.world.say(f"{self.name} leaves")
        self._send(pb.DaemonMessage(leaving=pb.Empty()))
        self._end_process()
        self.world.after(self.world.rng.uniform(0.5, 6.0), self._start_again)

    def _start_again(self) -> None:
        if not self.is_alive:
            self.start()

    def _end_process(self) -> None:
        self.is_alive = False
        if self.worker:
            worker, self.worker = self.worker, None
            if worker.phase in ("running", "stopping"):
                self._bury(worker, 137)
        if self.connection:
            self.connection.break_off()

    def freeze(self, duration_s: float) -> None:
        if not self.is_alive or self.is_frozen:
            return
        self.world.say(f"{self.name} freezes for {duration_s:.1f} s")
        self.is_frozen = True
        mine = self.mind
        self.world.after(duration_s, lambda: self._thaw() if self.mind is mine else None)

    def _thaw(self) -> None:
        if self.is_frozen:
            self.is_frozen, self.fine_since = False, self.world.now
            waiting, self.inbox = self.inbox, []
            for act in waiting:
                act()

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Unless the process is another one by then; a frozen one does it when it wakes."""
        mine = self.mind

        def due() -> None:
            if self.is_alive and self.mind is mine:
                self.inbox.append(act) if self.is_frozen else act()

        self.world.after(delay_s, due)

    # -- connection --------------------------------------------------------------------------------

    def _connect(self) -> None:
        if self.connection:
            return
        if self.line.is_cut or not self.scheduler.is_up:
            self._later(self.world.rng.uniform(0.2, 5), self._connect)
            return
        self.connection = Connection(
            self.world, self, self.scheduler, self.line, self.quality, self.scheduler.life
        )
        self.heard_at = self.world.now
        self.connection.send("up", DaemonJoined(self._hello()), is_reliable=True)

    def _hello(self) -> pb.Hello:
        return pb.Hello(
            daemon=self.name,
            node=self.node,
            device_type="cpu",
            device_index=self.index,
            address=self.node,
            incarnation=self.incarnation,
            epoch=self.mind.epoch,
            running=self.mind.running(),
            draining=self.mind.is_unable,
            kept=sorted(self.folders),
            mark=self.mark,
        )

    def connection_broke(self, connection: Connection) -> None:
        if connection is self.connection:
            self.connection = None
            self._later(0.0, lambda: self.step(events.Disconnected()))
            self._later(self.world.rng.uniform(0.2, 5), self._connect)

    def _beat(self) -> None:
        self._later(1.0, self._beat)
        self.step(events.Ticked())
        if self.connection and self.world.now - self.heard_at > SILENCE_S + ACT_BEATS * self.slow_s:
            self.connection.break_off()
            return
        if self.world.now < self.beat_at:
            return
        self.beat_at = self.world.now + self.slow_s
        self._send(pb.DaemonMessage(beat=pb.DaemonBeat()))
        if not self.quality.is_stream:  # what it said may have been lost
            for said in self.mind.unnoted_ends():
                self._send(said)
            if self.mind.phase is Phase.PREPARED and self.mind.key in self.told:
                self._prepare(self.told[self.mind.key])

    def _send(self, message: pb.DaemonMessage) -> None:
        if self.connection and self.mind.is_connected:
            message.epoch = self.mind.epoch
            event = event_of(message, self.name, lambda: self.world.wall)
            self.connection.send("up", event)

    def receive(self, connection: Connection, message: Any) -> None:
        if not self.is_alive or connection is not self.connection:
            return
        if self.is_frozen:
            self.inbox.append(lambda: self.receive(connection, message))
            return
        self.heard_at = self.world.now
        match message:
            case TellPace(slow_s=slow_s):
                self.slow_s = slow_s
            case TellWelcome(epoch=epoch, slow_s=slow_s):
                self.slow_s = slow_s
                self.step(pb.SchedulerMessage(welcome=pb.Welcome(epoch=epoch)))
            case TellFenced(incarnation=incarnation, why=why):
                if incarnation == self.incarnation:
                    self._fenced(why)
            case TellPrepare() if self.mind.is_connected:
                self._prepare(message)
            case Tell(message=told) if self.mind.is_connected:
                if told.WhichOneof("kind") in ("forget", "retire"):
                    self.folders -= set(up_to(told.forget or told.retire, self.folders))
                else:
                    self.step(told)

    def _fenced(self, why: str) -> None:
        self.world.say(f"{self.name} is fenced")
        if self.world.chance(0.5):
            self.incarnation = self.world.rng.getrandbits(63)
        if self.connection:
            self.connection.break_off()
        self.step(pb.SchedulerMessage(fenced=why))

    def _prepare(self, message: TellPrepare) -> None:
        told = prepare_message(message, "", spec_to_proto(message.record.spec))
        key = key_of(told.prepare.id)
        is_busy = self.mind.phase in (Phase.RUNNING, Phase.STOPPING)
        if is_busy and key != self.mind.key and key not in self.mind.over:
            raise Violation(f"{self.name} is told to prepare {key} while it has {self.mind.key}")
        self.told[key] = message
        self.step(told)

    # -- the mind ----------------------------------------------------------------------------------

    def step(self, event: events.Event) -> None:
        if not self.is_alive:
            return
        for action in self.mind.step(event, self.world.now):
            self._do(action)

    def _post(self, delay_s: float, event: events.Event) -> None:
        self._later(delay_s, lambda: self.step(event))

    def _do(self, action: events.Action) -> None:
        match action:
            case pb.DaemonMessage():
                self._send(action)
            case events.Gather(key=key):
                self._gather(key)
            case events.Drop(key=key):
                if self.worker and self.worker.key == key:
                    self.worker = None
            case events.Launch(key=key):
                self._launch(key)
            case events.EndTree(key=key, grace_s=grace_s):
                self._end_tree(key, grace_s)
            case events.Rejoin(pause_s=pause_s):
                if self.connection:
                    self.connection.break_off()
                self._later(pause_s, self._connect)
            case events.Leave():
                self._leave()

    # -- ranks -------------------------------------------------------------------------------------

    def _gather(self, key: AttemptKey) -> None:
        if self.worker:
            raise Violation(f"{self.name} gathers {key} while it has {self.worker.key}")
        self.folders.add(key.folder)
        self.mark = self.told[key].mark
        training = self.trainings(self.told[key])
        if self.users.setdefault(key.folder, training.argv) != training.argv:
            raise Violation(f"{self.name} gives the folder of another job to {key}")
        if self.runs.setdefault(key, training) is not training:
            raise Violation(f"{self.name} has run another {key}")
        step = self.told[key].resume_from.removeprefix("step-")
        self.worker = Worker(key, training, resume_step=int(step) if step else 0)
        if self.world.chance(training.program.prepare_hang):
            return
        error = self.world.chance(training.program.prepare_error)
        port = self.world.rng.randint(1024, 65535)
        answer: events.Event = events.Gathered(key, port)
        if error:
            answer = events.NotGathered(key, "no space", "DISK_FULL")
        self._post(self.world.rng.choice((0.02, 0.1, 3.0)), answer)

    def _launch(self, key: AttemptKey) -> None:
        worker = self.worker
        if worker is None or worker.key != key:
            raise Violation(f"{self.name} launches {key}, which it has not gathered")
        worker.phase = "running"
        worker.training.join(self, worker)
        self._post(0.0, events.Launched(key, 42))

    def _end_tree(self, key: AttemptKey, grace_s: float) -> None:
        """Asks a process to end, and kills it after the grace; clears away its leftovers."""
        worker = self.worker
        if worker is None or worker.key != key:
            return  # it is gone already
        if worker.phase == "ended":
            self._later(0.01, lambda: self._tree_ended(worker))
            return
        rng, program = self.world.rng, worker.training.program
        wanted_s = rng.uniform(0, program.stop_s) if worker.phase == "running" else grace_s
        worker.phase = "stopping"
        code = 137 if wanted_s > grace_s else 143
        if program.exits_zero_when_stopped and code == 143:
            code = 0
        after_s = UNKILLABLE_S if program.is_unkillable else min(wanted_s, grace_s)
        self.world.after(after_s, lambda: self.end(worker, code, "SIGNAL", "stopped"))

    def _tree_ended(self, worker: Worker) -> None:
        if self.worker is worker:
            self.worker = None
            self.step(events.TreeEnded(worker.key))

    def end_if_running(self, worker: Worker, code: int, reason: str, cause: str) -> None:
        if worker.phase == "running":
            self.end(worker, code, reason, cause)

    def end(self, worker: Worker, code: int, reason: str, cause: str) -> None:
        """Its process ends, also if nobody looks."""
        if self.worker is not worker or worker.phase not in ("running", "stopping"):
            return
        self._bury(worker, code)
        code = code if code >= 0 else 128 - code
        self._post(0.0, events.ProcessExited(worker.key, code, reason, cause, 42))

    def _bury(self, worker: Worker, code: int) -> None:
        self.world.say(f"{self.name}: {worker.key} ends with {code}")
        worker.phase = "ended"
        worker.training.left(worker.key.rank, code)

    def progress(self, worker: Worker, step: int, total: int, checkpoint_step: int) -> None:
        progress = pb.Progress(id=worker.key.wire, step=step, total_steps=total)
        progress.metrics["loss"] = 1 / (1 + step)
        if checkpoint_step:
            progress.checkpoint = f"step-{checkpoint_step}"
            progress.checkpoint_step = checkpoint_step
        self._post(0.0, events.Progressed(worker.key, progress))
