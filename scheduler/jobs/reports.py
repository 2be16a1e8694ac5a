"""Reports of daemons on their ranks: prepared, progressed, exited."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oneflow.core.blame import FOLLOWER_CODE
from oneflow.core.reasons import one_line
from oneflow.scheduler.jobs.attempt import Attempt, Rank, RankPhase
from oneflow.scheduler.jobs.attempts import Attempts
from oneflow.scheduler.jobs.causes import (
    CODES,
    Failure,
    known_reason,
    shell_code,
)
from oneflow.scheduler.jobs.desk import Desk
from oneflow.scheduler.jobs.events import (
    RankExited,
    RankFailing,
    RankPrepared,
    RankProgressed,
    Rejected,
    TellNoted,
)
from oneflow.scheduler.jobs.fleet import Fleet
from oneflow.scheduler.jobs.records import JobRecord

MAX_STEP = 2**62  # larger numbers do not fit into the store
MAX_METRICS = 64  # names a job
MAX_METRIC_CHARS = 128
MAX_CHECKPOINT_CHARS = 4096
MAX_WARNING_CHARS = 1000
_WEAK_REASONS = ("PEER_LOST", "PREEMPTED")


class Reports:
    """Each method takes one message of a daemon whose epoch is current."""

    def __init__(self, desk: Desk, fleet: Fleet, attempts: Attempts) -> None:
        self.desk = desk
        self.fleet = fleet
        self.attempts = attempts

    def prepared(self, event: RankPrepared) -> None:
        found = self.attempts.find(event, event.daemon)
        if found is None or found[1].is_over:
            self._reject(event, found)
            return
        attempt, rank = found
        if not event.error:
            self.attempts.prepared(attempt, rank, event.master_port)
            return
        reason = known_reason(event.reason, 0)
        if reason == "PREEMPTED":  # it is about to leave: nothing more can start there
            self.fleet.start_draining(event.daemon, self.desk.now)
        rank.phase = RankPhase.ENDED
        attempt.exits.append(rank.number)
        cause, host = f"{rank.daemon} cannot run it: {event.error}", rank.assignment.node
        code = shell_code(event.exit_code) or CODES[reason]
        self.attempts.fail(attempt, Failure(reason, cause, code, rank.number, host))

    def failing(self, event: RankFailing) -> None:
        """Its devices are not free yet, but whose fault it is is known, and the others can end."""
        end = replace(event.end, exit_code=shell_code(event.end.exit_code))
        found = self.attempts.find(end, end.daemon)
        if found is None or found[1].is_over:
            return  # its end, which follows or was here first, is judged
        attempt, rank = found
        rank.is_failing = True
        if end.exit_code != 0 and not attempt.is_our_doing(end):
            self.attempts.fail(attempt, _failure(attempt, rank, end))

    def exited(self, event: RankExited) -> None:
        event = replace(event, exit_code=shell_code(event.exit_code))
        found = self.attempts.find(event, event.daemon)
        if found is None or found[1].is_over:
            self._reject(event, found)
            return
        attempt, rank = found
        rank.phase, rank.exit = RankPhase.ENDED, event
        attempt.exits.append(rank.number)
        self._note_step(attempt, event.last_step)
        if event.exit_code == 0 and attempt.is_started:
            attempt.ended_at = self.desk.now if attempt.ended_at is None else attempt.ended_at
            if attempt.left_early is None and not attempt.is_stopping:
                attempt.left_early = rank.number
        elif not attempt.is_our_doing(event):
            self.attempts.fail(attempt, _failure(attempt, rank, event))
        if event.leaving:
            self.fleet.start_draining(event.daemon, self.desk.now)
        self.attempts.close_if_over(attempt)

    def progressed(self, event: RankProgressed) -> None:
        found = self.attempts.find(event, event.daemon)
        if found is None or found[1].is_over or not found[0].is_started:
            self._reject(event, found)
            return
        attempt, rank = found
        self.attempts.confirm(rank)
        before = self.desk.jobs[event.job_id]
        changes = self._progress(before, event)
        is_news = not changes.keys().isdisjoint(("first_step_at", "last_checkpoint", "warning"))
        is_due = self.desk.now - attempt.saved_at >= self.desk.settings.save_progress_s
        if is_news or is_due:
            attempt.saved_at = self.desk.now
            self.desk.save(event.job_id, **changes)
        else:
            self.desk.note(event.job_id, **changes)

    def _progress(self, record: JobRecord, event: RankProgressed) -> dict[str, Any]:
        """Return what is new in a report. Everything in it comes from a user's program, so it has
        limits: what is larger is cut or left out.
        """
        step = min(event.step, MAX_STEP)
        changes: dict[str, Any] = {"last_step": max(record.last_step, step)}
        if event.total_steps:
            changes["total_steps"] = min(event.total_steps, MAX_STEP)
        if event.metrics:
            both = {**record.metrics, **event.metrics}
            known = [name for name in both if len(name) <= MAX_METRIC_CHARS][:MAX_METRICS]
            changes["metrics"] = {name: both[name] for name in known}
        if step > 0 and not record.first_step_at:
            changes["first_step_at"] = event.at or self.desk.wall
        is_new = record.last_checkpoint_step < event.checkpoint_step <= MAX_STEP
        if is_new and 0 < len(event.checkpoint) <= MAX_CHECKPOINT_CHARS:
            changes["last_checkpoint"] = event.checkpoint
            changes["last_checkpoint_step"] = event.checkpoint_step
            changes["futile_restarts"] = 0
            if record.warning:
                changes["warning"] = ""
        warning = one_line(event.warning)[:MAX_WARNING_CHARS]
        if warning and warning != record.warning:
            changes["warning"] = warning
        return changes

    def _note_step(self, attempt: Attempt, step: int) -> None:
        if step > self.desk.jobs[attempt.job_id].last_step:
            self.desk.note(attempt.job_id, last_step=min(step, MAX_STEP))

    def _reject(
        self,
        event: RankPrepared | RankExited | RankProgressed,
        found: tuple[Attempt, Rank] | None,
    ) -> None:
        """Refused. An end that is of no use any more need not be told again, but one of an attempt
        that still goes on must be kept: it is not durable yet.
        """
        if isinstance(event, RankExited) and found is None:
            who = event.daemon, event.job_id, event.attempt, event.rank
            self.desk.tell(TellNoted(*who, life=event.life))
        reason = "unknown" if found is None else "duplicate"
        said = f"{event.daemon} speaks of rank {event.rank} of attempt {event.attempt}"
        why = "is not its business" if found is None else "has ended"
        self.desk.tell(Rejected(event, f"{said} of job {event.job_id}, which {why}", reason))


def _failure(attempt: Attempt, rank: Rank, event: RankExited) -> Failure:
    code, host = event.exit_code, rank.assignment.node
    if code == 0:
        cause = f"rank {rank.number} exited 0 before it was told to start"
        return Failure("INTERNAL", cause, CODES["INTERNAL"], rank.number, host, event.pid)
    reason = "PEER_LOST" if code == FOLLOWER_CODE else known_reason(event.reason, code)
    cause = event.cause or f"exited with code {code}"
    is_weak = reason in _WEAK_REASONS
    return Failure(reason, cause, code, rank.number, host, event.pid, is_weak)
