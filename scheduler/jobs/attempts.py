"""The attempts that go on: begin, start, stop and end them; find again those of an earlier
scheduler.

Rules that the code cannot show:
* An attempt's number is durable before any daemon hears of it, and RUNNING is before any rank is
  told to start: an attempt that is STARTING in the store has run no line of the user's code, unless
  the store was restored from a copy. Then a daemon that joins without it may have ended it.
* Everything told to a daemon may be told twice; messages that it has not answered are told again.
* A rank is over when its daemon said so or is lost. An attempt is over when all its ranks are; only
  then its devices are free, and only then the daemons may forget how their ranks ended.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.attempt import Attempt, Intent, Rank, RankPhase, early_exit, name_ranks
from oneflow.scheduler.jobs.causes import CODES, Failure
from oneflow.scheduler.jobs.ending import close, show_failure
from oneflow.scheduler.jobs.events import TellPrepare
from oneflow.scheduler.jobs.fleet import Fleet
from oneflow.scheduler.jobs.queue import local_ranks
from oneflow.scheduler.jobs.quotas import is_preemptible
from oneflow.scheduler.jobs.records import Assignment, JobRecord, JobState
from oneflow.scheduler.jobs.step_context import StepContext

RETELL_EACH_S = 1.5e-3  # for each rank: thousands of answers take a while, and come all the same


class Attempts:
    """The attempts that go on, by job: at most one of each."""

    def __init__(self, desk: StepContext, fleet: Fleet) -> None:
        self.desk = desk
        self.fleet = fleet
        self.live: dict[str, Attempt] = {}
        self.preemptible: set[str] = set()  # of these jobs

    # -- asking ------------------------------------------------------------------------------------

    def find(self, id: pb.AttemptId, daemon: str) -> tuple[Attempt, Rank] | None:
        """The attempt and rank that a daemon speaks of, if they are (still) its business."""
        attempt = self.live.get(id.job_id)
        if attempt is None or (attempt.life, attempt.number) != (id.life, id.attempt):
            return None
        if not 0 <= id.rank < len(attempt.ranks):
            return None
        found = attempt.ranks[id.rank]
        return (attempt, found) if found.daemon == daemon else None

    def is_wanted(self, daemon: str, running: pb.RunningAttempt) -> bool:
        """Tell whether the work of a daemon is to go on there."""
        found = self.find(running.id, daemon)
        return found is not None and not found[1].is_over

    def on(self, daemon: str) -> list[tuple[Attempt, Rank]]:
        """Attempts with a rank there that the daemon still answers for."""
        found = [(attempt, attempt.rank_on(daemon)) for attempt in self.live.values()]
        return [(a, r) for a, r in found if r is not None and r.phase is not RankPhase.LOST]

    def holder(self, daemon: str) -> str:
        """The job whose attempt has a rank there, even one that is over; "" if there is none.

        Until that attempt is over the device is not given to another job: after a restart of the
        scheduler both would claim it, as the store does not know which of an attempt's ranks are
        over.
        """
        found = (a.job_id for a in self.live.values() if a.rank_on(daemon) is not None)
        return next(found, "")

    # -- beginning ---------------------------------------------------------------------------------

    def begin(self, job_id: str, assignments: tuple[Assignment, ...]) -> None:
        """A new attempt on these devices: all of them are asked to prepare it."""
        before = self.desk.jobs[job_id]
        number = before.attempt + 1
        self.desk.tell(self.desk.journal.begin())
        record = self.desk.save(
            job_id,
            state=JobState.STARTING,
            attempt=number,
            life=self.desk.life_of_attempt(before),
            journal=self.desk.journal.number,
            assignments=assignments,
            pending="",
            job_key=hashlib.blake2b(f"{before.job_key}/{number}".encode()).hexdigest()[:64],
            last_step=before.last_checkpoint_step,
        )
        ranks = self._ranks(record, RankPhase.PREPARING)
        attempt = Attempt(job_id, number, ranks, self.desk.now, record.life)
        self._enter(attempt)
        for rank in attempt.ranks:
            self.fleet.hold(rank.daemon, job_id)
            self.tell_prepare(attempt, rank)

    def recover(self, record: JobRecord) -> None:
        """Take up an attempt that was going on when an earlier scheduler ended, and find the
        daemons that still work on it.
        """
        is_started = record.state is not JobState.STARTING
        phase = RankPhase.MISSING if is_started else RankPhase.PREPARING
        now, wall = self.desk.now, self.desk.wall
        attempt = Attempt(record.id, record.attempt, self._ranks(record, phase), now, record.life)
        attempt.is_recovered, attempt.absent_since = True, now
        if is_started:
            attempt.started_at = now
            attempt.was_running = not self.desk.is_restored(record.id)
            since = record.attempt_started_at or wall
            attempt.ran_s = record.ran_s + max(wall - since, 0.0)
        self._enter(attempt, attempt.ran_s - record.ran_s if is_started else 0.0)
        if record.state is JobState.CANCELLING:
            self.stop(attempt, Intent.CANCEL, "the job is cancelled")

    def _enter(self, attempt: Attempt, before_s: float = 0.0) -> None:
        """before_s: seconds for which it has gone on."""
        self.live[attempt.job_id] = attempt
        record, now = self.desk.jobs[attempt.job_id], self.desk.now
        self.desk.ledger.add(record, len(attempt.ranks), now, before_s)
        if is_preemptible(record, self.desk.settings.queues):
            self.preemptible.add(record.id)

    def leave(self, job_id: str) -> Attempt | None:
        """Return the job's attempt, which goes on no longer; None if there is none."""
        attempt = self.live.pop(job_id, None)
        self.preemptible.discard(job_id)
        if attempt is not None:
            self.desk.ledger.add(self.desk.jobs[job_id], -len(attempt.ranks), self.desk.now)
        return attempt

    def _ranks(self, record: JobRecord, phase: RankPhase) -> list[Rank]:
        sizes = Counter(assignment.node for assignment in record.assignments)
        numbers, now = local_ranks(record.assignments), self.desk.now
        pairs = zip(record.assignments, numbers, strict=True)
        return [Rank(place, local, sizes[place.node], phase, now) for place, local in pairs]

    def tell_prepare(self, attempt: Attempt, rank: Rank) -> None:
        rank.told_at = self.desk.now
        record = self.desk.jobs[attempt.job_id]
        if self.fleet.is_reachable(rank.daemon):
            resume_from = record.last_checkpoint or record.spec.resume_from
            local, mark = (rank.local_rank, rank.local_world_size), self.desk.journal.mark()
            told = TellPrepare(rank.daemon, record, rank.number, *local, resume_from, mark=mark)
            self.desk.tell(told)

    # -- starting ----------------------------------------------------------------------------------

    def prepared(self, attempt: Attempt, rank: Rank, master_port: int) -> None:
        """A rank is ready to start, or says again where rank 0 listens."""
        if rank.number == 0 and master_port:
            attempt.master_port = master_port
        if rank.phase is RankPhase.PREPARING:
            rank.phase = RankPhase.PREPARED
        self.start_if_ready(attempt)

    def start_if_ready(self, attempt: Attempt) -> None:
        if attempt.is_stopping:
            return
        if not attempt.is_started:
            if not attempt.is_prepared():
                return
            self._note_start(attempt)
        if not attempt.master_port:
            self._ask_for_port(attempt)
            return
        for rank in attempt.ranks:
            if rank.phase is RankPhase.PREPARED:
                rank.phase = RankPhase.RUNNING
                self.tell_start(attempt, rank)

    def _note_start(self, attempt: Attempt) -> None:
        desk = self.desk
        record = desk.jobs[attempt.job_id]
        attempt.started_at, attempt.ran_s = desk.now, record.ran_s
        desk.save(
            attempt.job_id,
            state=JobState.RUNNING,
            started_at=record.started_at or desk.wall,
            attempt_started_at=desk.wall,
        )

    def _ask_for_port(self, attempt: Attempt) -> None:
        """A rank that is prepared already answers a Prepare with the port it has."""
        if attempt.ranks[0].phase in (RankPhase.PREPARED, RankPhase.RUNNING):
            self.tell_prepare(attempt, attempt.ranks[0])

    def tell_start(self, attempt: Attempt, rank: Rank) -> None:
        rank.told_at = self.desk.now
        first = attempt.ranks[0].daemon
        known = self.fleet.daemons.get(first)
        if known is not None:
            id_, port = attempt.id_of(rank), attempt.master_port
            start = pb.Start(id=id_, master_addr=known.address, master_port=port)
            self.fleet.tell(rank.daemon, pb.SchedulerMessage(start=start))

    # -- a daemon is back --------------------------------------------------------------------------

    def reattach(self, attempt: Attempt, rank: Rank, running: pb.RunningAttempt | None) -> None:
        """Note that the daemon of a rank has joined (again); running: its words on the rank."""
        if rank.is_over:
            return
        if running is not None and attempt.was_running:
            self.desk.know(attempt.job_id)
        if attempt.is_stopping:
            self.tell_stop(attempt, rank)
        elif not attempt.is_started:
            if running is None and attempt.is_recovered and self.desk.is_restored(attempt.job_id):
                why = "the scheduler's state was restored, and the attempt may have run and ended"
                self.lose(attempt, rank, why)
            elif running is None or rank.phase is not RankPhase.PREPARED:
                rank.phase = RankPhase.PREPARING
                self.tell_prepare(attempt, rank)
        elif running is None:
            rank.phase, rank.missing_since = RankPhase.MISSING, self.desk.now
        elif running.phase in ("preparing", "prepared"):
            rank.phase = RankPhase.PREPARED
            self.start_if_ready(attempt)
        else:
            self.confirm(rank)
            if running.phase == "stopping":  # an earlier scheduler wanted it, we know not why
                self.stop(attempt, Intent.PREEMPT, "it was being stopped")
            elif not attempt.master_port:
                self.start_if_ready(attempt)

    def know_recovered(self) -> None:
        """The journal was restored; but no attempt is missing of a job that still works on the
        last one that it has.
        """
        for attempt in self.live.values():
            if attempt.was_running and any(rank.is_confirmed for rank in attempt.ranks):
                self.desk.know(attempt.job_id)

    def confirm(self, rank: Rank) -> None:
        rank.phase, rank.is_confirmed, rank.missing_since = RankPhase.RUNNING, True, None

    # -- failing and stopping ----------------------------------------------------------------------

    def lose_daemon(self, daemon: str, why: str) -> None:
        """Lose the ranks of a daemon with it."""
        for attempt, rank in self.on(daemon):
            if rank.phase is RankPhase.ENDED:
                continue
            self.lose(attempt, rank, why)

    def lose(self, attempt: Attempt, rank: Rank, why: str) -> None:
        rank.phase, rank.over_at = RankPhase.LOST, self.desk.now
        host = rank.assignment.node
        self.fail(attempt, Failure("NODE_LOST", why, CODES["NODE_LOST"], rank.number, host))

    def fail(self, attempt: Attempt, failure: Failure) -> None:
        """Note a failure: the others are stopped, at once if it is clear which rank is to blame."""
        attempt.blame(failure, self.desk.now)
        if not failure.is_weak:
            show_failure(self.desk, attempt)
        if not failure.is_weak and not attempt.is_stopping:
            self.stop(attempt, Intent.NONE, f"rank {failure.rank} failed: {failure.reason}")
        self.close_if_over(attempt)

    def stop(self, attempt: Attempt, intent: Intent, why: str) -> None:
        """End all its ranks; again with another intent changes only the words on it."""
        attempt.want(intent)
        if not attempt.is_stopping:
            settings = self.desk.settings
            attempt.is_stopping, attempt.stop_why = True, why
            attempt.stop_grace_s = settings.grace_s
            attempt.stop_at = self.desk.now + settings.grace_s + settings.unkillable_s
            for rank in attempt.live_ranks():
                if not rank.is_failing:
                    self.tell_stop(attempt, rank)
        self.close_if_over(attempt)

    def tell_stop(self, attempt: Attempt, rank: Rank) -> None:
        rank.told_at = self.desk.now
        grace_s, why = attempt.stop_grace_s, attempt.stop_why
        stop = pb.Stop(id=attempt.id_of(rank), grace_s=grace_s, why=why)
        self.fleet.tell(rank.daemon, pb.SchedulerMessage(stop=stop))

    def close_if_over(self, attempt: Attempt) -> None:
        """End the attempt once all its ranks are over: decide on the job, and free devices.

        The daemons may forget their ranks' ends only after that is durable.
        """
        if self.live.get(attempt.job_id) is not attempt or not attempt.is_over:
            return
        self.leave(attempt.job_id)
        close(self.desk, attempt)
        for rank in attempt.ranks:
            self.fleet.release(rank.daemon, attempt.job_id)
            self.fleet.tell(rank.daemon, pb.SchedulerMessage(noted=attempt.id_of(rank)))
        self.desk.is_queue_stale = True

    # -- time --------------------------------------------------------------------------------------

    def look(self) -> list[str]:
        """Do the actions that are due. Returns daemons that could not end a rank and are to be
        given up.
        """
        stuck: list[str] = []
        for attempt in list(self.live.values()):
            if attempt.is_stopping:
                stuck += self._look_at_stop(attempt)
            elif attempt.is_started:
                self._look_at_run(attempt)
            else:
                self._look_at_start(attempt)
            if attempt.is_recovered:
                self._look_for_absent(attempt)
            self._tell_again(attempt)
        return stuck

    def _look_at_stop(self, attempt: Attempt) -> list[str]:
        if self.desk.now < attempt.stop_at:
            return []
        return [rank.daemon for rank in attempt.live_ranks() if not self.fleet.is_lost(rank.daemon)]

    def _look_at_start(self, attempt: Attempt) -> None:
        settings = self.desk.settings
        installs = self.desk.jobs[attempt.job_id].spec.requirements
        limit_s = settings.install_s if installs else settings.prepare_s
        if self.desk.now - attempt.began_at < limit_s:
            return
        late = [rank for rank in attempt.live_ranks() if rank.phase is RankPhase.PREPARING]
        cause = f"not ready to start within {limit_s:g} s: {name_ranks(late)}"
        number, host = (late[0].number, late[0].assignment.node) if late else (-1, "")
        code = CODES["RENDEZVOUS_TIMEOUT"]
        self.fail(attempt, Failure("RENDEZVOUS_TIMEOUT", cause, code, number, host))

    def _look_at_run(self, attempt: Attempt) -> None:
        desk, settings = self.desk, self.desk.settings
        limit = settings.time_limit_s(desk.jobs[attempt.job_id].spec)
        if limit and attempt.ran_until(desk.now) >= limit:
            self.stop(attempt, Intent.TIME_LIMIT, f"its time limit of {limit:g} s is over")
            return
        if attempt.fault.is_settled(desk.now, settings.settle_s):
            show_failure(desk, attempt)
            self.stop(attempt, Intent.NONE, "a rank ended because others did")
            return
        for rank in list(attempt.live_ranks()):
            since = rank.missing_since
            if since is not None and desk.now - since >= settings.suspect_s:
                self.lose(attempt, rank, f"daemon {rank.daemon} came back without its rank")
                return
        early = attempt.left_early
        if early is not None and desk.now - attempt.left_at >= settings.early_exit_s:
            self.fail(attempt, early_exit(early))

    def forgive_absent(self, gap_s: float) -> None:
        """Excuse the daemons that are yet to come back: they may have been put off meanwhile."""
        for attempt in self.live.values():
            if attempt.is_recovered:
                attempt.absent_since += gap_s

    def _look_for_absent(self, attempt: Attempt) -> None:
        """Daemons that have not come back since this scheduler began."""
        settings = self.desk.settings
        act_s = settings.silence(settings.slow_s(len(attempt.ranks))).act_s
        if self.desk.now - attempt.absent_since < act_s:
            return
        for rank in list(attempt.live_ranks()):
            if rank.daemon not in self.fleet.daemons:
                why = f"daemon {rank.daemon} did not come back within {act_s:g} s"
                self.lose(attempt, rank, f"{why} of the scheduler's restart")

    def _tell_again(self, attempt: Attempt) -> None:
        patience_s = max(self.desk.settings.retell_s, RETELL_EACH_S * len(attempt.ranks))
        for rank in list(attempt.live_ranks()):
            if self.desk.now - rank.told_at < patience_s:
                continue
            if attempt.is_stopping:
                self.tell_stop(attempt, rank)
            elif rank.phase is RankPhase.PREPARING:
                self.tell_prepare(attempt, rank)
            elif rank.phase is RankPhase.PREPARED and attempt.is_started:
                rank.told_at = self.desk.now
                self.start_if_ready(attempt)
            elif rank.phase is RankPhase.RUNNING and not rank.is_confirmed:
                self.tell_start(attempt, rank)
