"""The job table: all that a cluster knows of its jobs, and the next actions.

Pure: `step(event, now)` returns actions, to be done in order, and does nothing itself.

It relies on these rules, which the code cannot show:
* Actions are done in order. If a `Save` fails, nothing after it may be done; it is tried again
  before anything else. A job whose first Save failed is taken back by `withdraw`.
* A job is told from an earlier one of its id, which was removed, by its life: see JobRecord.
* A daemon does each thing once, however often it is told: it answers a Prepare of an attempt it
  already has with the same Prepared (and the same port), a Start with a Progress, a Stop with an
  Exited, also if it never heard of the attempt (which it then must never begin). A Prepare of an
  attempt that ended there is answered with that Exited.
* A daemon says nothing on a connection but Hello before it is welcome there. A connection on
which something came that was refused as `stale_epoch` is closed, after the messages to it have been
sent.
* A daemon tells each Exited after every Welcome, until it gets Noted for it.
* That a rank fails may be told before its Exited, never instead of it.
* An exit because of a Stop has the reason PREEMPTED, with any code.
* A daemon that is fenced kills its ranks at once and joins with nothing running; if another one
  of its name is here, it tries again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.attempt import Intent
from oneflow.scheduler.jobs.attempts import Attempts
from oneflow.scheduler.jobs.due import GOING_ON, WAITING, due_jobs
from oneflow.scheduler.jobs.ending import end_cancelled
from oneflow.scheduler.jobs.events import (
    Action,
    CancelAsked,
    ChangeAsked,
    DaemonGone,
    DaemonJoined,
    DrainAsked,
    Event,
    Heard,
    LineBeat,
    Rejected,
    RemoveAsked,
    RestartAsked,
    SaveClock,
    Submitted,
    TellFenced,
    Ticked,
    UndrainAsked,
)
from oneflow.scheduler.jobs.fleet import Fleet
from oneflow.scheduler.jobs.growth import Growth
from oneflow.scheduler.jobs.journal import Journal
from oneflow.scheduler.jobs.ledger import Key, Ledger
from oneflow.scheduler.jobs.limits import folder_name, parse_folder_name
from oneflow.scheduler.jobs.preemption import Rival
from oneflow.scheduler.jobs.queue import choose
from oneflow.scheduler.jobs.quotas import at_most, find_queue
from oneflow.scheduler.jobs.records import DaemonRecord, JobRecord, JobSpec, JobState, Use
from oneflow.scheduler.jobs.reports import Reports
from oneflow.scheduler.jobs.retention import WallClock, overdue
from oneflow.scheduler.jobs.settings import Settings
from oneflow.scheduler.jobs.step_context import StepContext

LOOK_S, LOOK_EACH_S = 0.1, 5e-5  # at all daemons: at least, and for each of them
CHOOSE_S = 1e-5  # for each device: after so long devices are shared out again
RETIRE_S = 10.0  # so often old jobs are looked for
SAVE_CLOCK_S = 600.0  # so often the believed time is made durable


class Table:
    """The job table: all that the scheduler knows and decides, as one pure state machine.

    records: all jobs of the store, in the order they came. epoch: the last one taken. removed: ids
    of the last jobs that were forgotten, and their lives. drained: see Fleet. wall: the time that
    it was believed to be when the store was written last; 0: not known. journal: see journal.py.
    uses: of attempts that are over, as far as they still count.
    """

    def __init__(
        self,
        records: Iterable[JobRecord],
        epoch: int,
        settings: Settings | None = None,
        removed: Iterable[tuple[str, int]] = (),
        drained: Iterable[tuple[str, int]] = (),
        wall: float = 0.0,
        journal: Journal | None = None,
        uses: Iterable[Use] = (),
    ) -> None:
        self.settings = settings or Settings()
        self.settings.check()
        self._desk = StepContext(self.settings, {record.id: record for record in records})
        self._desk.removed = dict(removed)
        self._desk.journal = journal or Journal()
        self._desk.ledger = Ledger(self.settings.usage_half_life_s)
        self._uses = tuple(uses)  # until the wall clock is known
        self._fleet = Fleet(self._desk, epoch, drained)
        self._attempts = Attempts(self._desk, self._fleet)
        self._reports = Reports(self._desk, self._fleet, self._attempts)
        self._growth = Growth(
            self._desk, self._fleet, self._attempts, partial(due_jobs, self._desk)
        )
        self._last_now: float | None = None
        self._looked_at = self._ticked_at = self._chosen_at = 0.0
        self._wall_offset = 0.0
        self._retire_at = 0.0
        jobs = self._desk.jobs.values()
        known = wall or max((max(j.submitted_at, j.finished_at) for j in jobs), default=0.0)
        self._clock, self._clock_saved = WallClock(known), wall

    # -- looking -----------------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[str, JobRecord]:
        """Return all jobs by id, in the order they came."""
        return self._desk.jobs

    @property
    def daemons(self) -> Mapping[str, DaemonRecord]:
        return self._fleet.daemons

    @property
    def due_at(self) -> float:
        """Return the time at which a silent daemon is to be given up, on the clock of `step`."""
        return self._fleet.due_at()

    @property
    def epoch(self) -> int:
        return self._fleet.epoch

    @property
    def attempts(self) -> Attempts:
        """Return the attempts that go on, for reports and checks."""
        return self._attempts

    def held(self, key: Key) -> int:
        """Return the devices that the jobs of a queue, or of a user in it, hold: see ledger.py."""
        return self._desk.ledger.held(key)

    def take_changed(self) -> set[str]:
        """Ids of jobs whose record (their reason to wait included) changed since the last call."""
        changed, self._desk.changed = self._desk.changed, set()
        return changed

    # -- stepping ----------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Action]:
        """The only way the table changes. now: seconds on the monotonic clock, never less than
        before.
        """
        self._set_clocks(event, now)
        self._desk.actions = []
        was_stale = self._desk.is_queue_stale
        self._handle(event)
        # A submit is about its own job alone, so that `withdraw` can take back the whole step.
        if not isinstance(event, Submitted):
            self._look_if_due(event)
        if not (isinstance(event, Submitted) and was_stale):
            self._start_what_can(isinstance(event, Submitted))
        return [self._fleet.addressed(a) for a in self._desk.actions]

    def withdraw(self, job_id: str) -> None:
        """A job that could not be saved when it was submitted: as if it had never been.

        Only if none of the actions of that step have been done; they are all about this job.
        """
        attempt = self._attempts.leave(job_id)
        self._desk.jobs.pop(job_id, None)
        self._desk.is_queue_stale = True
        for rank in attempt.ranks if attempt else ():
            self._fleet.release(rank.daemon, job_id)

    def _set_clocks(self, event: Event, now: float) -> None:
        """Time-outs use the monotonic clock only; the wall clock is for texts that users read."""
        at = getattr(event, "at", 0.0)
        if at and isinstance(event, (Ticked, Submitted, CancelAsked, RestartAsked)):
            self._wall_offset = at - now
        self._desk.now, self._desk.wall = now, now + self._wall_offset
        if self._uses and self._wall_offset:
            self._desk.ledger.remember(self._uses, now, self._desk.wall)
            self._uses = ()
        if self._last_now is None:
            self._ticked_at = now
            for record in list(self._desk.jobs.values()):
                if record.state in GOING_ON:
                    self._attempts.recover(record)
        elif now - self._last_now >= self.settings.suspect_s:
            self._fleet.forgive(now - self._last_now)  # it was we who slept
        self._last_now = now

    def _handle(self, event: Event) -> None:
        match event:
            case Ticked(is_crowded=is_crowded):
                self._desk.is_queue_stale = True
                if is_crowded:
                    self._forgive_away(self._desk.now - self._ticked_at)
                self._ticked_at = self._desk.now
            case Submitted():
                self._submit(event)
            case CancelAsked():
                self._cancel(event)
            case RestartAsked():
                self._restart(event)
            case ChangeAsked():
                self._change(event)
            case RemoveAsked():
                self._remove(event)
            case DrainAsked(node=node, grace_s=grace_s):
                self._check_node(event, self._fleet.drain(node, grace_s))
            case UndrainAsked(node=node):
                self._check_node(event, self._fleet.undrain(node))
            case DaemonJoined():
                self._join(event)
            case DaemonGone() | Heard():
                self._hear(event)
            case LineBeat(heard=heard):
                for daemon, epoch in heard:
                    if self._fleet.is_current(daemon, epoch):
                        self._fleet.hear(daemon)
                    else:
                        self._refuse_stale(event, daemon, epoch)

    # -- users -------------------------------------------------------------------------------------

    def _submit(self, event: Submitted) -> None:
        known = self._desk.jobs.get(event.job_id)
        if known is not None:
            if (known.spec, known.owner) != (event.spec, event.owner):
                self._refuse(event, _taken(known, event))
            return
        for before in event.spec.befores:
            if before.job_id not in self._desk.jobs:
                self._refuse(event, f"after: there is no job {before.job_id}", "unknown")
                return
        if said := self._too_many(event):
            self._refuse(event, said)
            return
        record = JobRecord(
            event.job_id,
            event.spec,
            owner=event.owner,
            job_key=event.job_key,
            submitted_at=event.at,
            total_steps=event.spec.steps,
            is_held=event.spec.hold,
            life=self._desk.next_life(event.job_id),
            journal=self._desk.journal.number,
        )
        self._desk.jobs[record.id] = record
        self._desk.changed.add(record.id)
        self._desk.save(record.id)
        self._desk.is_queue_stale = True

    def _too_many(self, event: Submitted) -> str:
        """Say so if the token may not have so many jobs in the queue; "" if it may. An array is
        refused with its first member if the others would be later.
        """
        limit, who = self.settings.max_queued_per_owner, event.owner or "this token"
        mine = [job for job in self._desk.jobs.values() if job.owner == event.owner]
        queued = sum(job.state is JobState.QUEUED for job in mine)
        array = event.spec.array
        known = sum(job.spec.array == array for job in mine) if array else 0
        new = max(event.spec.array_size - known, 1)
        if queued + new <= limit:
            return ""
        if new == 1:
            said = f"{who} has {queued} queued jobs, as many as are allowed"
            return f"{said}; submit again when one of them has started"
        return (
            f"{new} jobs of array {array}: {who} has {queued} queued jobs, and may have {limit}; "
            "none of them is submitted"
        )

    def _cancel(self, event: CancelAsked) -> None:
        record = self._find(event)
        if record is None or record.state.is_final or record.state is JobState.CANCELLING:
            return
        self._desk.note(record.id, cause=f"cancelled by {event.by}")
        attempt = self._attempts.live.get(record.id)
        if attempt is None:
            end_cancelled(self._desk, record.id)
            return
        self._desk.save(record.id, state=JobState.CANCELLING, reason="CANCELLED")
        self._attempts.stop(attempt, Intent.CANCEL, f"cancelled by {event.by}")

    def _restart(self, event: RestartAsked) -> None:
        record = self._find_ended(event)
        if record is None:
            return
        self._desk.save(
            record.id,
            state=JobState.QUEUED,
            reason="NONE",
            cause="",
            exit_code=0,
            first_failed_rank=-1,
            host="",
            pid=0,
            restarts_spent=0,
            is_held=False,
            futile_restarts=0,
            assignments=(),
            ran_s=0.0,
            started_at=0.0,
            attempt_started_at=0.0,
            first_step_at=0.0,
            finished_at=0.0,
        )
        self._desk.is_queue_stale = True

    def _change(self, event: ChangeAsked) -> None:
        record = self._find(event)
        if record is None:
            return
        queue = find_queue(self.settings.queues, record.queue)
        if record.state.is_final:
            self._refuse(event, f"job {record.id} has ended {record.state}")
        elif event.is_held and record.state not in WAITING:
            self._refuse(event, f"job {record.id} is {record.state}: only one that waits is held")
        elif queue is not None and (event.priority or 0) > queue.max_priority:
            self._refuse(event, f"priority={event.priority}: {at_most(record.queue, queue)}")
        else:
            held = record.is_held if event.is_held is None else event.is_held
            wanted = record.priority if event.priority is None else event.priority
            shift = wanted - record.spec.priority
            pending = record.pending if held is record.is_held else ""
            self._desk.save(record.id, is_held=held, priority_shift=shift, pending=pending)
            self._desk.is_queue_stale = True

    def _remove(self, event: RemoveAsked) -> None:
        record = self._find_ended(event)
        if record is not None:
            self._forget(record.id)

    def _forget(self, job_id: str, why: str = "") -> None:
        life = self._desk.jobs[job_id].life
        self._desk.forget(job_id, why)
        for daemon in self._fleet.daemons:  # earlier attempts may have run anywhere
            self._fleet.tell(daemon, _removal(folder_name(job_id, life), bool(why)))

    def _check_node(self, event: DrainAsked | UndrainAsked, num_daemons: int) -> None:
        if event.node and not num_daemons:
            self._refuse(event, f"no daemon is on a node {event.node!r}")

    def _find(
        self, event: CancelAsked | RestartAsked | ChangeAsked | RemoveAsked
    ) -> JobRecord | None:
        record = self._desk.jobs.get(event.job_id)
        if record is None:
            self._refuse(event, f"there is no job {event.job_id}", "unknown")
        return record

    def _find_ended(self, event: RestartAsked | RemoveAsked) -> JobRecord | None:
        record = self._find(event)
        if record is None or record.state.is_final:
            return record
        self._refuse(event, f"job {record.id} is {record.state}: cancel it first")
        return None

    def _refuse(self, event: Event, message: str, reason: str = "") -> None:
        self._desk.tell(Rejected(event, message, reason))

    # -- daemons -----------------------------------------------------------------------------------

    def _join(self, event: DaemonJoined) -> None:
        hello, daemon = event.hello, event.hello.daemon
        known = self._fleet.daemons.get(daemon)
        is_same = known is not None and known.incarnation == hello.incarnation
        if known is not None and not is_same and self._fleet.is_alive(daemon):
            why = f"another daemon {daemon} is here already (process {known.pid})"
            self._desk.tell(TellFenced(daemon, hello.incarnation, why))
            self._refuse(event, why, "duplicate")
            return
        if known is not None and not is_same:
            self._give_up(daemon, f"daemon {daemon} ended and was started anew")
        if not all(self._attempts.is_wanted(daemon, r) for r in hello.running):
            self._fence(daemon, hello.incarnation)
            return
        mine = self._attempts.on(daemon)
        self._look_at_mark(hello)
        self._fleet.join(hello, self._attempts.holder(daemon), event.line)
        running = {(r.id.job_id, r.id.attempt, r.id.rank): r for r in hello.running}
        for attempt, rank in mine:
            said = running.get((attempt.job_id, attempt.number, rank.number))
            self._attempts.reattach(attempt, rank, said)
        for name in hello.kept:
            job_id, life = parse_folder_name(name) or ("", 0)
            if job_id:
                self._desk.meet_folder(job_id, life)
            if life <= self._desk.removed.get(job_id, -1):
                self._fleet.tell(daemon, _removal(name, is_retired=True))  # while it was away

    def _look_at_mark(self, hello: pb.Hello) -> None:
        """Find out whether the journal was restored. Before anything is begun on this daemon."""
        is_fresh = not any(job.attempt for job in self._desk.jobs.values())
        change = self._desk.journal.hear(hello.mark, is_fresh)
        if change is not None:
            self._desk.tell(change)
            self._attempts.know_recovered()

    def _fence(self, daemon: str, incarnation: int) -> None:
        """Fence an incarnation whose ranks were given up: it may not go on with anything."""
        why = f"daemon {daemon} was given up, and its work with it: join anew"
        if self._fleet.is_lost(daemon):
            self._desk.tell(TellFenced(daemon, incarnation, why))
        self._give_up(daemon, why)

    def _give_up(self, daemon: str, why: str) -> None:
        """Fence a daemon that is not lost yet; its work is lost with it."""
        if not self._fleet.is_lost(daemon):
            self._fleet.give_up(daemon, why)
            self._attempts.lose_daemon(daemon, why)

    def _hear(self, event: Heard | DaemonGone) -> None:
        if not self._fleet.is_current(event.daemon, event.epoch):
            if isinstance(event, Heard):  # else of a connection that has been replaced
                self._refuse_stale(event, event.daemon, event.epoch)
            return
        if isinstance(event, DaemonGone):
            self._gone(event)
            return
        self._fleet.hear(event.daemon)
        self._reports.hear(event)

    def _refuse_stale(self, event: Heard | LineBeat, daemon: str, epoch: int) -> None:
        known = self._fleet.daemons.get(daemon)
        if known is not None and known.epoch == epoch:  # it does not know yet
            why = f"daemon {known.id} was given up: join anew"
            self._desk.tell(TellFenced(known.id, known.incarnation, why))
        now = f"epoch {known.epoch}" if known else "not joined"
        said = f"a message of daemon {daemon} has epoch {epoch}, but it is {now}"
        self._refuse(event, said, "stale_epoch")

    def _gone(self, event: DaemonGone) -> None:
        if event.reason == "lost":
            self._fleet.connection_ended(event.daemon)
            return
        words = "left" if event.reason == "left" else "ended: its process is gone"
        if event.reason == "left":
            self._fleet.leave(event.daemon)
        else:
            self._fleet.died(event.daemon)
        self._attempts.lose_daemon(event.daemon, f"daemon {event.daemon} {words}")

    # -- time and queue ----------------------------------------------------------------------------

    def _forgive_away(self, gap_s: float) -> None:
        self._fleet.forgive_away(gap_s)
        self._attempts.forgive_absent(gap_s)

    def _look_if_due(self, event: Event) -> None:
        """Not after each of thousands of messages: nothing is due to the millisecond."""
        is_asked = isinstance(event, (Ticked, DrainAsked))
        look_s = max(LOOK_S, LOOK_EACH_S * len(self._fleet.daemons))
        if is_asked or self._desk.now - self._looked_at >= look_s:
            self._looked_at = self._desk.now
            self._look()
        if isinstance(event, Ticked) and self._desk.now >= self._retire_at:
            self._retire_at = self._desk.now + RETIRE_S
            self._retire()

    def _retire(self) -> None:
        is_known = self._clock.look(self._desk.now, self._desk.wall)
        wall = self._clock.believed
        if abs(wall - self._clock_saved) >= SAVE_CLOCK_S:
            self._clock_saved = wall
            self._desk.tell(SaveClock(wall))
        if is_known:
            for job_id, why in overdue(self.jobs.values(), self.settings, wall).items():
                self._forget(job_id, why)

    def _look(self) -> None:
        for daemon in self._fleet.look():
            act_s = self._fleet.silence(daemon).act_s
            self._give_up(daemon, f"daemon {daemon} was not heard for {act_s:.3g} s")
        for daemon in self._fleet.overdue():
            for attempt, rank in self._attempts.on(daemon):
                if not rank.is_over:
                    node = rank.assignment.node
                    self._attempts.stop(attempt, Intent.PREEMPT, f"{node} is being drained")
        for daemon in self._attempts.look():
            self._give_up(daemon, f"daemon {daemon} could not end its rank in time")
        self._growth.look()

    def _has_just_chosen(self) -> bool:
        """Whether it is too soon to look at all devices of a large cluster again: thousands of them
        may join or leave one after the other.
        """
        num_devices = len(self._fleet.daemons)
        if num_devices <= self.settings.fast_daemons:
            return False
        return self._desk.now - self._chosen_at < CHOOSE_S * num_devices

    def _start_what_can(self, is_submit: bool) -> None:
        """is_submit: nobody is stopped for a job before that is known to be durable."""
        if not self._desk.is_queue_stale or self._has_just_chosen():
            return
        self._chosen_at = self._desk.now
        self._desk.is_queue_stale = False
        waiting = due_jobs(self._desk)
        if not waiting:
            return
        daemons, away = self._fleet.daemons.values(), frozenset(self._fleet.away)
        rivals = () if is_submit else self._rivals()
        choice = choose(waiting, daemons, away, self._desk.quotas(), rivals)
        for victim, job_id in choice.stops.items():
            priority = self._desk.jobs[job_id].priority
            why = f"job {job_id} of priority {priority} needs its devices"
            self._attempts.stop(self._attempts.live[victim], Intent.RESCHEDULE, why)
        for job_id, assignments in choice.starts.items():
            self._attempts.begin(job_id, assignments)
        for job_id, why in choice.pending.items():
            if self._desk.jobs[job_id].pending != why:
                self._desk.note(job_id, pending=why)
        self._desk.is_queue_stale = is_submit and bool(self._attempts.preemptible)

    def _rivals(self) -> list[Rival]:
        """Running jobs that may be stopped for another, and those that end soon; none if there are
        none of the first kind.
        """
        may_stop, jobs = self._attempts.preemptible, self._desk.jobs
        return [
            Rival(jobs[a.job_id], len(a.ranks), a.began(jobs[a.job_id].ran_s), a.is_stopping)
            for a in (reversed(self._attempts.live.values()) if may_stop else ())
            if a.is_stopping or a.job_id in may_stop
        ]


def _removal(folder: str, is_retired: bool) -> pb.SchedulerMessage:
    """Say that a job's folder is not wanted. is_retired: nobody asked for that, as far as known."""
    if is_retired:
        return pb.SchedulerMessage(retire=folder)
    return pb.SchedulerMessage(forget=folder)


def _taken(known: JobRecord, event: Submitted) -> str:
    """Say that an id is another job's, and to its owner how that one differs."""
    if known.owner != event.owner:
        return f"there is another job {known.id}, of somebody else; choose another id"
    was, asked = known.spec, event.spec
    words = {
        "archive": "files in its folder",
        "graph": "job file",
        "requirements": "packages",
    }
    odd = [f.name for f in fields(JobSpec) if getattr(was, f.name) != getattr(asked, f.name)]
    listed = ", ".join(words.get(name, name) for name in odd)
    return (
        f"there is a job {known.id} already, which has other {listed} than what is submitted now: "
        f"choose another id, or run `oneflow job rm {known.id}` first"
    )
