"""A daemon and the ranks it runs, as far as the scheduler can tell the difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.events import (
    DaemonJoined,
    Tell,
    TellFenced,
    TellPrepare,
    TellWelcome,
)
from oneflow.scheduler.jobs.messages import AttemptKey, event_of, key_of
from oneflow.scheduler.jobs.records import JobRecord

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
    key: AttemptKey
    phase: str = "preparing"  # preparing, prepared, running, stopping, ended
    is_frozen: bool = False
    resume_step: int = 0
    port: int = 0


class Training:
    """The ranks of one attempt, which step together or not at all."""

    def __init__(self, world: World, record: JobRecord, program: Program):
        self.world = world
        self.job_id, self.life, self.attempt = record.id, record.life, record.attempt
        devices = record.spec.devices
        self.devices = devices
        self.program = program
        self.step = 0
        self.ranks: dict[int, tuple[Daemon, Worker]] = {}
        self.on_step: Callable[[Training], None] = lambda training: None
        self.is_through = False
        self.is_broken = False
        self._is_ticking = False

    def join(self, daemon: Daemon, worker: Worker) -> None:
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
    """One device. Obeys the rules at the top of table.py."""

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
        self.incarnation = 0
        self.is_alive = False
        self.is_frozen = False
        self.fine_since = 0.0  # alive, not frozen, not cut off
        self.start()

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        self.incarnation = self.world.rng.getrandbits(63)
        self.is_alive, self.is_frozen, self.fine_since = True, False, self.world.now
        self.epoch = 0
        self.is_welcome = False  # on this connection
        self.connection: Connection | None = None
        self.worker: Worker | None = None
        self.training: Training | None = None
        self.exits: dict[AttemptKey, pb.Exited] = {}  # not noted yet
        self.over: set[AttemptKey] = set()
        self.refused: set[AttemptKey] = set()  # could not be prepared
        self.is_draining = False
        self.drain_number = 0
        self.heard_at = self.world.now
        self.inbox: list[tuple[Connection, Any]] = []
        mine = self.incarnation
        self.world.say(f"{self.name} starts")
        self.world.after(0.0, lambda: self._connect(mine))
        self.world.after(self.world.rng.uniform(0, 1), lambda: self._beat(mine))

    def kill(self) -> None:
        """Its ranks die with it."""
        if not self.is_alive:
            return
        self.world.say(f"{self.name} is killed")
        self.is_alive = False
        if self.worker:
            self._bury(self.worker, 137)
        if self.connection:
            self.connection.break_off()

    def freeze(self, duration_s: float) -> None:
        if not self.is_alive or self.is_frozen:
            return
        self.world.say(f"{self.name} freezes for {duration_s:.1f} s")
        self.is_frozen = True
        mine = self.incarnation
        self.world.after(duration_s, lambda: self._thaw(mine))

    def _thaw(self, mine: int) -> None:
        if self.incarnation != mine or not self.is_frozen:
            return
        self.is_frozen, self.fine_since = False, self.world.now
        waiting, self.inbox = self.inbox, []
        for connection, message in waiting:
            self.receive(connection, message)
        self._tell_exits()  # what it missed of its ranks

    # -- connection --------------------------------------------------------------------------------

    def _connect(self, mine: int) -> None:
        if self.incarnation != mine or not self.is_alive or self.connection:
            return
        if self.is_frozen or self.line.is_cut or not self.scheduler.is_up:
            self.world.after(self.world.rng.uniform(0.2, 5), lambda: self._connect(mine))
            return
        self.connection = Connection(
            self.world, self, self.scheduler, self.line, self.quality, self.scheduler.life
        )
        self.heard_at, self.is_welcome = self.world.now, False
        self.connection.send("up", self._hello(), is_reliable=True)

    def _hello(self) -> DaemonJoined:
        hello = pb.Hello(
            daemon=self.name,
            node=self.node,
            device_type="cpu",
            device_index=self.index,
            address=self.node,
            incarnation=self.incarnation,
            epoch=self.epoch,
            draining=self.is_draining,
            kept=sorted(self.folders),
            drain_number=self.drain_number,
        )
        if self.worker:
            step = self.training.step if self.training else 0
            phase = self.worker.phase
            hello.running.add(id=self.worker.key.wire, phase=phase, last_step=step)
        return DaemonJoined(hello)

    def connection_broke(self, connection: Connection) -> None:
        if connection is self.connection:
            self.connection = None
            mine = self.incarnation
            self.world.after(self.world.rng.uniform(0.2, 5), lambda: self._connect(mine))

    def _beat(self, mine: int) -> None:
        if self.incarnation != mine or not self.is_alive:
            return
        self.world.after(1.0, lambda: self._beat(mine))
        if self.is_frozen:
            return
        if self.world.now - self.heard_at > ALONE_S and self.worker:
            self._stop(self.worker, 5.0)
        if self.connection and self.world.now - self.heard_at > SILENCE_S:
            self.connection.break_off()
        elif self.connection and self.is_welcome:
            self._say(beat=pb.DaemonBeat())
            if not self.quality.is_stream:
                self._tell_exits()

    def _say(self, **said: Any) -> None:
        if self.connection and self.is_welcome and not self.is_frozen:
            message = pb.DaemonMessage(epoch=self.epoch, **said)
            self.connection.send("up", event_of(message, self.name, lambda: self.world.wall))

    def receive(self, connection: Connection, message: Any) -> None:
        if not self.is_alive or connection is not self.connection:
            return
        if self.is_frozen:
            self.inbox.append((connection, message))
            return
        self.heard_at = self.world.now
        match message:
            case TellWelcome(epoch=epoch):
                self.epoch, self.is_welcome = max(self.epoch, epoch), True
                self._tell_exits()
            case TellFenced(incarnation=incarnation):
                if incarnation == self.incarnation:
                    self._fenced()
            case TellPrepare():
                self._prepare(message)
            case Tell(message=told):
                self._obey(told)

    def _obey(self, told: pb.SchedulerMessage) -> None:
        match told.WhichOneof("kind"):
            case "start":
                self._start_rank(key_of(told.start.id))
            case "stop":
                self._stop_told(key_of(told.stop.id), told.stop.grace_s)
            case "noted":
                self.exits.pop(key_of(told.noted), None)
            case "forget":
                self.folders.discard(told.forget)
            case "drain":
                self.is_draining, self.drain_number = told.drain, told.drain_number

    def _fenced(self) -> None:
        self.world.say(f"{self.name} is fenced")
        if self.worker:
            worker = self.worker
            self._bury(worker, 137)
            self.over.add(worker.key)
        if self.world.chance(0.5):
            self.incarnation = self.world.rng.getrandbits(63)
            mine = self.incarnation
            self.world.after(1.0, lambda: self._beat(mine))
        self.epoch = 0
        self.exits.clear()
        connection, self.connection = self.connection, None
        if connection:
            connection.break_off()
        mine = self.incarnation
        self.world.after(self.world.rng.uniform(0.2, 2), lambda: self._connect(mine))

    # -- ranks -------------------------------------------------------------------------------------

    def _tell_exits(self) -> None:
        for end in self.exits.values():
            self._say(exited=end)

    def _prepare(self, message: TellPrepare) -> None:
        record = message.record
        key = AttemptKey(record.id, record.attempt, message.rank, record.life)
        if key in self.exits:
            self._say(exited=self.exits[key])
            return
        if key in self.refused:
            self._refuse(key)
        if key in self.over or key in self.refused:
            return
        if self.worker and self.worker.key == key:
            self._answer_prepare(self.worker)
            return
        if self.worker:
            raise Violation(f"{self.name} is told to prepare {key} while it has {self.worker.key}")
        self.folders.add(key.folder)
        training = self.trainings(message)
        self.training, self.worker = training, Worker(key)
        worker = self.worker
        step = message.resume_from.removeprefix("step-")
        worker.resume_step = int(step) if step else 0
        if self.world.chance(training.program.prepare_hang):
            return
        self.world.after(
            self.world.rng.choice((0.02, 0.1, 3.0)), lambda: self._prepared(worker, training)
        )

    def _prepared(self, worker: Worker, training: Training) -> None:
        if self.worker is not worker or worker.phase != "preparing":
            return
        if self.world.chance(training.program.prepare_error):
            self.worker = self.training = None
            self.refused.add(worker.key)
            self._refuse(worker.key)
            return
        worker.phase, worker.port = "prepared", self.world.rng.randint(1024, 65535)
        self._answer_prepare(worker)

    def _refuse(self, key: AttemptKey) -> None:
        self._say(prepared=pb.Prepared(id=key.wire, error="no space", reason="DISK_FULL"))

    def _answer_prepare(self, worker: Worker) -> None:
        if worker.phase != "preparing":
            self._say(prepared=pb.Prepared(id=worker.key.wire, master_port=worker.port))

    def _start_rank(self, key: AttemptKey) -> None:
        if not self.worker or self.worker.key != key or not self.training:
            return
        if self.worker.phase == "prepared":
            self.worker.phase = "running"
            self.training.join(self, self.worker)
        if self.worker.phase == "running":
            self._say(progress=pb.Progress(id=key.wire))

    def _stop_told(self, key: AttemptKey, grace_s: float) -> None:
        if self.worker and self.worker.key == key:
            self._stop(self.worker, grace_s)
        elif key in self.exits:
            self._say(exited=self.exits[key])
        else:  # never to begin here
            unknown = Worker(key)
            self.over.add(key)
            self.exits[key] = self._exit_of(unknown, 143, "PREEMPTED", "not known here", 0)
            self._say(exited=self.exits[key])

    def _stop(self, worker: Worker, grace_s: float) -> None:
        if worker.phase == "stopping":
            return
        was_running = worker.phase == "running"
        worker.phase = "stopping"
        program = self.training.program if self.training else None
        wanted_s = self.world.rng.uniform(0, program.stop_s) if program and was_running else 0.05
        code = 137 if wanted_s > grace_s else 143
        if program and program.exits_zero_when_stopped and code == 143 and was_running:
            code = 0
        is_stuck = program is not None and program.is_unkillable and was_running
        after_s = UNKILLABLE_S if is_stuck else min(wanted_s, grace_s)
        self.world.after(after_s, lambda: self.end(worker, code, "PREEMPTED", "stopped"))

    def end_if_running(self, worker: Worker, code: int, reason: str, cause: str) -> None:
        if worker.phase == "running":
            self.end(worker, code, reason, cause)

    def end(self, worker: Worker, code: int, reason: str, cause: str) -> None:
        if self.worker is not worker:
            return
        is_stopped = worker.phase == "stopping"
        if is_stopped:
            reason = "PREEMPTED"
        step = self.training.step if self.training else 0
        self.exits[worker.key] = self._exit_of(worker, code, reason, cause, step)
        self.over.add(worker.key)
        self._bury(worker, code)
        if code and not is_stopped:
            self._say(failing=self.exits[worker.key])
        self._say(exited=self.exits[worker.key])

    def _exit_of(self, worker: Worker, code: int, reason: str, cause: str, step: int) -> pb.Exited:
        id_ = worker.key.wire
        return pb.Exited(id=id_, exit_code=code, reason=reason, cause=cause, last_step=step)

    def _bury(self, worker: Worker, code: int) -> None:
        training = self.training
        self.world.say(f"{self.name}: {worker.key} ends with {code}")
        worker.phase = "ended"
        self.worker = self.training = None
        if training:
            training.left(worker.key.rank, code)

    def progress(self, worker: Worker, step: int, total: int, checkpoint_step: int) -> None:
        progress = pb.Progress(id=worker.key.wire, step=step, total_steps=total)
        progress.metrics["loss"] = 1 / (1 + step)
        if checkpoint_step:
            progress.checkpoint = f"step-{checkpoint_step}"
            progress.checkpoint_step = checkpoint_step
        self._say(progress=progress)
