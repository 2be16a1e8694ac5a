"""Reports of daemons on their ranks: prepared, progressed, exited."""

from __future__ import annotations

from typing import Any

from oneflow.core.blame import FOLLOWER_CODE
from oneflow.core.reasons import one_line
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.attempt import Attempt, Rank, RankPhase
from oneflow.scheduler.jobs.attempts import Attempts
from oneflow.scheduler.jobs.causes import CODES, Failure, known_reason
from oneflow.scheduler.jobs.events import Heard, Rejected
from oneflow.scheduler.jobs.fleet import Fleet
from oneflow.scheduler.jobs.records import JobRecord
from oneflow.scheduler.jobs.step_context import StepContext

MAX_METRICS = 64  # names a job
MAX_METRIC_CHARS = 128
_WEAK_REASONS = ("PEER_LOST", "PREEMPTED")


class Reports:
    """Takes messages of daemons whose epoch is current."""

    def __init__(self, desk: StepContext, fleet: Fleet, attempts: Attempts) -> None:
        self.desk = desk
        self.fleet = fleet
        self.attempts = attempts

    def hear(self, event: Heard) -> None:
        message = event.message
        said = getattr(message, event.kind)
        found = self.attempts.find(said.id, event.daemon)
        if found is None or found[1].is_over:
            # After `failing` the end, which follows or was here first, is judged.
            if event.kind != "failing":
                self._reject(event, said.id, found)
            return
        match event.kind:
            case "prepared" if not (said.error and found[1].phase is RankPhase.RUNNING):
                self._prepared(event.daemon, message.prepared, *found)
            case "failing":
                self._failing(message.failing, *found)
            case "exited":
                self._exited(event.daemon, message.exited, *found)
            case "progress" if found[0].is_started:
                self._progressed(event, message.progress, *found)
            case _:  # progress before the start; a refusal after it: of an earlier asking
                self._reject(event, said.id, found)

    def _prepared(self, daemon: str, said: pb.Prepared, attempt: Attempt, rank: Rank) -> None:
        if not said.error:
            self.attempts.prepared(attempt, rank, said.master_port)
            return
        reason = known_reason(said.reason or "INTERNAL", 0)
        if reason == "PREEMPTED":  # it is about to leave: nothing more can start there
            self.fleet.start_draining(daemon, self.desk.now)
        rank.phase, rank.over_at = RankPhase.ENDED, self.desk.now
        cause, host = f"{daemon} cannot run it: {said.error}", rank.assignment.node
        code = said.exit_code or CODES[reason]
        self.attempts.fail(attempt, Failure(reason, cause, code, rank.number, host))

    def _failing(self, end: pb.Exited, attempt: Attempt, rank: Rank) -> None:
        """Its devices are not free yet, but whose fault it is is known, and the others can end."""
        rank.is_failing = True
        if end.exit_code != 0 and not attempt.is_our_doing(end):
            self.attempts.fail(attempt, _failure(attempt, rank, end))

    def _exited(self, daemon: str, end: pb.Exited, attempt: Attempt, rank: Rank) -> None:
        rank.phase, rank.exit, rank.over_at = RankPhase.ENDED, end, self.desk.now - end.seen_s
        if end.last_step > self.desk.jobs[attempt.job_id].last_step:
            self.desk.note(attempt.job_id, last_step=end.last_step)
        if end.exit_code == 0 and attempt.is_started:
            if attempt.left_early is None and not attempt.is_stopping:
                attempt.left_early, attempt.left_at = rank, self.desk.now
        elif not attempt.is_our_doing(end):
            self.attempts.fail(attempt, _failure(attempt, rank, end))
        if end.leaving:
            self.fleet.start_draining(daemon, self.desk.now)
        self.attempts.close_if_over(attempt)

    def _progressed(self, event: Heard, said: pb.Progress, attempt: Attempt, rank: Rank) -> None:
        self.attempts.confirm(rank)
        job_id = attempt.job_id
        changes = self._progress(self.desk.jobs[job_id], said, event.at)
        is_news = not changes.keys().isdisjoint(("first_step_at", "last_checkpoint", "warning"))
        is_due = self.desk.now - attempt.saved_at >= self.desk.settings.save_progress_s
        if is_news or is_due:
            attempt.saved_at = self.desk.now
            self.desk.save(job_id, **changes)
        else:
            self.desk.note(job_id, **changes)

    def _progress(self, record: JobRecord, said: pb.Progress, at: float) -> dict[str, Any]:
        """Return the changes in a report."""
        changes: dict[str, Any] = {"last_step": max(record.last_step, said.step)}
        if said.total_steps:
            changes["total_steps"] = said.total_steps
        if said.metrics:
            both = {**record.metrics, **said.metrics}
            known = [name for name in both if len(name) <= MAX_METRIC_CHARS][:MAX_METRICS]
            changes["metrics"] = {name: both[name] for name in known}
        if said.step > 0 and not record.first_step_at:
            changes["first_step_at"] = at or self.desk.wall
        if said.checkpoint and record.last_checkpoint_step < said.checkpoint_step:
            changes["last_checkpoint"] = said.checkpoint
            changes["last_checkpoint_step"] = said.checkpoint_step
            changes["futile_restarts"] = 0
            if record.warning:
                changes["warning"] = ""
        warning = one_line(said.warning)
        if warning and warning != record.warning:
            changes["warning"] = warning
        return changes

    def _reject(self, event: Heard, id: pb.AttemptId, found: tuple[Attempt, Rank] | None) -> None:
        """Refused. An end that is of no use any more need not be told again, but one of an attempt
        that still goes on must be kept: it is not durable yet. A rank that was made ready for
        nobody (it was asked for once more while its refusal was on the way) is dropped.
        """
        if event.kind == "exited" and found is None:
            self.fleet.tell(event.daemon, pb.SchedulerMessage(noted=id))
        if event.kind == "prepared" and not event.message.prepared.error:
            stop = pb.Stop(id=id, why="nobody waits for it any more")
            self.fleet.tell(event.daemon, pb.SchedulerMessage(stop=stop))
        reason = "unknown" if found is None else "duplicate"
        said = f"{event.daemon} speaks of rank {id.rank} of attempt {id.attempt}"
        why = "is not its business" if found is None else f"is {found[1].phase.value}"
        self.desk.tell(Rejected(event, f"{said} of job {id.job_id}, which {why}", reason))


def _failure(attempt: Attempt, rank: Rank, end: pb.Exited) -> Failure:
    code, host = end.exit_code, rank.assignment.node
    if code == 0:
        cause = f"rank {rank.number} exited 0 before it was told to start"
        return Failure("INTERNAL", cause, CODES["INTERNAL"], rank.number, host, end.pid)
    reason = "PEER_LOST" if code == FOLLOWER_CODE else known_reason(end.reason, code)
    cause = end.cause or f"exited with code {code}"
    is_weak = reason in _WEAK_REASONS
    return Failure(reason, cause, code, rank.number, host, end.pid, is_weak)
