"""The scheduler as a service would run it: the real table, a store that forgets unsaved records,
and crashes between any two actions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from oneflow.core.errors import StoreError
from oneflow.scheduler.jobs.events import (
    Action,
    CurvePoint,
    DaemonGone,
    DaemonJoined,
    Event,
    LineBeat,
    Rejected,
    Remove,
    RestartAsked,
    Save,
    SaveClock,
    SaveDrain,
    SaveEpoch,
    SaveJournal,
    SaveUse,
    Submitted,
    Tell,
    TellFenced,
    TellPrepare,
    TellWelcome,
    Ticked,
)
from oneflow.scheduler.jobs.journal import MAX_STEP, Journal
from oneflow.scheduler.jobs.records import (
    Assignment,
    DaemonState,
    JobRecord,
    JobState,
    TokenRecord,
    Use,
)
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.store import (
    Change,
    Loaded,
    Point,
    decode_record,
    encode_record,
)
from oneflow.scheduler.jobs.table import Table
from tests.support.job_invariants import History, invariants

from .network import Connection, Violation, World

TICK_S = 1.0
CROWDED_EVERY_S = 50  # so often a moment excuses the daemons that are away
MAX_DAEMONS = 100  # more than there ever are


class MemoryStore:
    """Keeps bytes, as the real one does, so that only written ones come back."""

    def __init__(self) -> None:
        self.bodies: dict[str, bytes] = {}
        self.epoch = 0
        self.wall = 0.0
        self.drained: dict[str, int] = {}
        self.removed: dict[str, int] = {}
        self.is_full = False
        self.number = 0
        self.starts: dict[str, int] = {}
        self.uses: dict[tuple[str, int, int], Use] = {}

    def load(self) -> Loaded:
        jobs = tuple(decode_record(body) for body in self.bodies.values())
        removed, drained = tuple(self.removed.items()), tuple(self.drained.items())
        return Loaded(jobs, self.epoch, removed, drained, self.wall)

    def write(self, changes: Sequence[Change]) -> None:
        if self.is_full:
            raise StoreError("the disk is full")
        for change in changes:
            match change:
                case Save(record=record):
                    self.bodies[record.id] = encode_record(record)
                case Remove(job_id=job_id, life=life):
                    self.bodies.pop(job_id, None)
                    self.removed[job_id] = life
                case SaveEpoch(epoch=epoch):
                    self.epoch = max(self.epoch, epoch)
                case SaveClock(wall=wall):
                    self.wall = wall
                case SaveJournal(number=number, start=start, attempts=attempts):
                    self.number, self.starts[start] = number, attempts
                case SaveUse(use=use):
                    self.uses[use.job_id, use.life, use.attempt] = use
                case SaveDrain(daemon=daemon, incarnation=incarnation):
                    self.drained[daemon] = incarnation
                    if not incarnation:
                        del self.drained[daemon]

    def copy(self) -> dict[str, Any]:
        return copy.deepcopy(vars(self))

    def restore(self, kept: dict[str, Any]) -> None:
        vars(self).update(copy.deepcopy(kept) | {"is_full": self.is_full})

    def record(self, job_id: str) -> JobRecord | None:
        body = self.bodies.get(job_id)
        return None if body is None else decode_record(body)

    def tokens(self) -> list[TokenRecord]:
        return []

    def put_tokens(self, tokens: Iterable[TokenRecord]) -> None:
        """Tokens play no part in the simulation."""

    def drop_tokens(self, tokens: Iterable[TokenRecord]) -> None:
        """Tokens play no part in the simulation."""

    def add_points(
        self, job_id: str, points: Sequence[tuple[int, CurvePoint]], life: int = 0
    ) -> list[Point]:
        return []

    def points(self, job_id: str, start: int = 0, limit: int = 1000) -> list[Point]:
        return []

    def places(self, job_id: str, attempt: int) -> tuple[Assignment, ...]:
        return ()

    def close(self) -> None:
        """Nothing to close."""


class SimulatedScheduler:
    """crash: the probability of a crash before each action."""

    name = "scheduler"

    def __init__(self, world: World, store: MemoryStore, settings: Settings) -> None:
        self.world = world
        self.store = store
        self.settings = settings
        self.crash = 0.0
        self.is_up = False
        self.is_frozen = False
        self.fine_since = 0.0
        self.num_steps = 0
        self.num_crashes = 0
        self.last_epoch_told = 0
        self.finals: dict[str, JobState] = {}  # as they are durable
        self.preempted: set[tuple[str, int, int]] = set()  # attempts stopped for other jobs
        self.restarted: set[str] = set()  # jobs a user asked to run again
        self.life = 0
        self.start()

    def start(self) -> None:
        self.life += 1
        self.is_up, self.is_frozen, self.fine_since = True, False, self.world.now
        loaded = self.store.load()
        removed, drained = loaded.removed, loaded.drained
        number, name = self.store.number, f"start {self.life}"
        next_number = number + 1 + self.world.rng.randrange(MAX_STEP)
        journal = Journal("journal", number, dict(self.store.starts), name, next_number)
        self.table = Table(
            loaded.jobs, loaded.epoch, self.settings, removed, drained, loaded.wall, journal
        )
        self.history = History(epoch=loaded.epoch)
        self.connections: dict[str, Connection] = {}
        self.newcomers: dict[tuple[str, int], Connection] = {}
        self.inbox: list[tuple[Connection, Any]] = []
        self.undone: list[Action] = []
        self.world.say(f"scheduler starts with {len(loaded.jobs)} jobs")
        life = self.life
        self.world.after(0.0, lambda: self._tick(life))

    def kill(self) -> None:
        if not self.is_up:
            return
        self.world.say("scheduler is killed")
        self.num_crashes += 1
        self.is_up = False
        self.life += 1
        for connection in [*self.connections.values(), *self.newcomers.values()]:
            connection.break_off()

    def restore(self, kept: dict[str, Any]) -> None:
        """Put the durable state of an earlier moment back. Only while it is down."""
        self.store.restore(kept)
        self.last_epoch_told = self.store.epoch
        records = (decode_record(body) for body in self.store.bodies.values())
        self.finals = {record.id: record.state for record in records if record.state.is_final}
        self.restarted.clear()

    def freeze(self, duration_s: float) -> None:
        if self.is_up and not self.is_frozen:
            self.world.say(f"scheduler freezes for {duration_s:.1f} s")
            self.is_frozen = True
            life = self.life
            self.world.after(duration_s, lambda: self._thaw(life))

    def _thaw(self, life: int) -> None:
        if life != self.life:
            return
        self.is_frozen, self.fine_since = False, self.world.now
        if self.world.chance(0.5):
            self.step(Ticked(self.world.wall))
        waiting, self.inbox = self.inbox, []
        for connection, message in waiting:
            self.receive(connection, message)

    def _tick(self, life: int) -> None:
        if life != self.life:
            return
        self.world.after(TICK_S, lambda: self._tick(life))
        if not self.is_frozen:
            self.step(Ticked(self.world.wall, int(self.world.now) % CROWDED_EVERY_S == 0))

    # -- messages ----------------------------------------------------------------------------------

    def receive(self, connection: Connection, message: Any) -> None:
        if not self.is_up or connection.life != self.life:
            connection.break_off()
            return
        if self.is_frozen:
            self.inbox.append((connection, message))
            return
        if isinstance(message, DaemonJoined):
            hello = message.hello
            self.newcomers[hello.daemon, hello.incarnation] = connection
        if isinstance(message, LineBeat):
            connection.send("down", "ack")
        self.step(message)
        if isinstance(message, LineBeat) and any(self._is_stale(*one) for one in message.heard):
            connection.break_off()

    def _is_stale(self, daemon: str, epoch: int) -> bool:
        """Refuses a daemon that we do not know as it is: it has to join."""
        known = self.table.daemons.get(daemon)
        return known is None or known.epoch != epoch

    def connection_broke(self, connection: Connection) -> None:
        if not self.is_up:
            return
        for name, other in list(self.connections.items()):
            if other is connection:
                del self.connections[name]
                self.receive(connection, DaemonGone(name, connection.epoch, "lost"))
        for key, other in list(self.newcomers.items()):
            if other is connection:
                del self.newcomers[key]

    # -- stepping ----------------------------------------------------------------------------------

    def step(self, event: Event) -> bool:
        """Whether all its actions were done, so that the one who asked may be told so."""
        if not self.is_up or self.is_frozen:
            return False
        self.num_steps += 1
        if isinstance(event, RestartAsked):
            self.restarted.add(event.job_id)
        actions = self.table.step(event, self.world.now)
        self._check(event)
        if self.undone and not self._catch_up():
            if isinstance(event, Submitted) and any(isinstance(a, Save) for a in actions):
                self._withdraw(event.job_id)
            else:
                self.undone += actions
            return False
        return self._perform_all(actions, event)

    def _withdraw(self, job_id: str) -> None:
        self.table.withdraw(job_id)
        self.history.forget(job_id)

    def _catch_up(self) -> bool:
        undone, self.undone = self.undone, []
        return self._perform_all(undone, None)

    def _perform_all(self, actions: list[Action], event: Event | None) -> bool:
        for number, action in enumerate(actions):
            if self.crash and self.world.chance(self.crash):
                self.kill()
                return False
            try:
                self._perform(action)
            except StoreError:
                if isinstance(event, Submitted) and number == 0:
                    self._withdraw(event.job_id)
                else:
                    self.undone = actions[number:]
                return False
        return not any(isinstance(action, Rejected) and action.event is event for action in actions)

    def _perform(self, action: Action) -> None:
        match action:
            case Save() | Remove() | SaveEpoch() | SaveClock() | SaveDrain() | SaveJournal():
                self._write(action)
            case SaveUse(use=use):
                if not use.ran_s >= 0.0 or not use.devices or not use.started_at:
                    raise Violation(f"{use} cannot be")
                self._write(action)
            case Rejected():
                pass
            case TellFenced(daemon=daemon, incarnation=incarnation):
                connection = self.newcomers.get((daemon, incarnation))
                if connection:
                    connection.send("down", action)
            case TellWelcome():
                self._welcome(action)
            case _:
                if isinstance(action, TellPrepare):
                    self._check_is_durable(action)
                if isinstance(action, Tell) and "needs its devices" in action.message.stop.why:
                    stopped = action.message.stop.id
                    self.preempted.add((stopped.job_id, stopped.life, stopped.attempt))
                connection = self.connections.get(action.daemon)
                if connection and connection.epoch == action.epoch:
                    connection.send("down", action)

    def _welcome(self, action: TellWelcome) -> None:
        if action.epoch <= self.last_epoch_told:
            raise Violation(f"epoch {action.epoch} was given after {self.last_epoch_told}")
        if self.store.epoch < action.epoch:
            raise Violation(f"epoch {action.epoch} was told before it was durable")
        self.last_epoch_told = action.epoch
        connection = self.newcomers.get((action.daemon, action.incarnation))
        if connection is None or not connection.is_open:
            return
        before = self.connections.get(action.daemon)
        if before is not None and before is not connection:
            before.break_off()
        self.connections[action.daemon], connection.epoch = connection, action.epoch
        connection.send("down", action)

    # -- checks ------------------------------------------------------------------------------------

    def _check(self, event: Event) -> None:
        restarted = event.job_id if isinstance(event, RestartAsked) else ""
        wrong = invariants(self.table) + self.history.look(self.table, restarted)
        if isinstance(event, Ticked):
            wrong += self._overdue()
        if wrong:
            raise Violation(f"after {event}: {'; '.join(wrong)}")

    def _overdue(self) -> list[str]:
        """Lists the daemons that should have been given up by now."""
        late, settings = self.world.now - 2 * TICK_S, self.settings
        act_s = settings.silence(settings.slow_s(MAX_DAEMONS)).act_s
        wrong = [
            f"{known.id} is silent since {known.heard_at:.1f} and {known.state}"
            for known in self.table.daemons.values()
            if late - known.heard_at > act_s and known.state is not DaemonState.LOST
        ]
        for attempt in self.table.attempts.live.values():
            since = attempt.absent_since + act_s
            absent = [r for r in attempt.live_ranks() if r.daemon not in self.table.daemons]
            if attempt.is_recovered and late > since and absent:
                wrong.append(f"{attempt.job_id} waits for {absent[0].daemon}, which is not here")
            if attempt.is_stopping and late > attempt.stop_at + settings.act_s:
                wrong.append(f"{attempt.job_id} is being stopped for too long")
        return wrong

    def _check_is_durable(self, action: TellPrepare) -> None:
        kept = self.store.record(action.record.id)
        if kept is None or kept.attempt < action.record.attempt:
            raise Violation(f"attempt {action.record.attempt} was told before it was durable")

    def _write(self, change: Change) -> None:
        self.store.write([change])
        if isinstance(change, Remove):
            self.finals.pop(change.job_id, None)
        if not isinstance(change, Save):
            return
        record = change.record
        before = self.finals.get(record.id)
        if before not in (None, record.state):
            if record.id not in self.restarted:
                raise Violation(f"{record.id} was {before} for good, now {record.state} is saved")
            self.restarted.remove(record.id)
        if record.state.is_final:
            self.finals[record.id] = record.state
        else:
            self.finals.pop(record.id, None)
