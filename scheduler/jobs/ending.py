"""The outcome of a job whose attempt is over: a final state, or another attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from oneflow.scheduler.jobs.attempt import Attempt, Intent
from oneflow.scheduler.jobs.causes import CODES, Failure, one_line
from oneflow.scheduler.jobs.events import SaveUse
from oneflow.scheduler.jobs.records import (
    FREE_REASONS,
    MAX_FUTILE_RESTARTS,
    JobRecord,
    JobState,
    Use,
)
from oneflow.scheduler.jobs.step_context import StepContext


def close(desk: StepContext, attempt: Attempt) -> None:
    """Save the record of a job whose attempt is over, as of the moment at which that was so."""
    record, over_at = desk.jobs[attempt.job_id], attempt.over_at
    if attempt.is_started:
        desk.note(record.id, ran_s=attempt.ran_until(over_at))
    state, failure = _outcome(desk, record, attempt)
    is_ours = attempt.intent is Intent.RESCHEDULE and failure.reason == "PREEMPTED"
    if state is JobState.FAILED and (is_ours or may_restart(record, failure)):
        has_moved_on = is_ours or _shrinks(desk, attempt, failure)
        _restart(desk, record, failure, is_futile=not has_moved_on)
    else:
        _end(desk, record.id, state, failure, desk.now - over_at)
    if attempt.is_started and record.attempt_started_at:  # 0: stopped before, and found again
        desk.tell(SaveUse(_use(record, attempt)))


def _use(record: JobRecord, attempt: Attempt) -> Use:
    spec = record.spec
    return Use(
        job_id=record.id,
        life=record.life,
        attempt=attempt.number,
        owner=record.owner,
        name=spec.name,
        device_type=spec.device_type,
        devices=len(attempt.ranks),
        started_at=record.attempt_started_at,
        ran_s=max(attempt.ran_until(attempt.over_at) - record.ran_s, 0.0),
        queue=record.queue,
    )


def _outcome(desk: StepContext, record: JobRecord, attempt: Attempt) -> tuple[JobState, Failure]:
    if record.state is JobState.CANCELLING:
        return JobState.CANCELLED, _cancelled(record)
    if attempt.intent is Intent.TIME_LIMIT:
        limit = desk.settings.time_limit_s(record.spec)
        cause = f"ran longer than its time limit of {limit:g} s"
        return JobState.TIMED_OUT, Failure("TIME_LIMIT", cause, CODES["TIME_LIMIT"])
    found = attempt.final_failure()
    if found is None or found.is_weak:
        if _succeeded(record, attempt):
            return JobState.SUCCEEDED, Failure("NONE", "", 0)
        if attempt.intent in (Intent.PREEMPT, Intent.RESCHEDULE):
            found = Failure("PREEMPTED", attempt.stop_why, CODES["PREEMPTED"])
    if found is None:
        cause = f"stopped without a reason on record ({attempt.stop_why})"
        found = Failure("INTERNAL", cause, CODES["INTERNAL"])
    if record.futile_restarts >= MAX_FUTILE_RESTARTS:
        given_up = f"given up: no new checkpoint in {record.futile_restarts} restarts in a row"
        found = replace(found, cause=f"{found.cause} ({given_up})")
    return JobState.FAILED, found


def show_failure(desk: StepContext, attempt: Attempt) -> None:
    """Show the failure to blame, as far as it is known while the other ranks still end. Not
    durable: until the attempt is over the daemons tell it again.
    """
    failure, record = attempt.failure, desk.jobs[attempt.job_id]
    if failure is None or record.state is JobState.CANCELLING:
        return
    if attempt.intent is Intent.TIME_LIMIT:
        return
    desk.note(record.id, **_blame(failure))


def end_cancelled(desk: StepContext, job_id: str) -> None:
    """End a job of which no attempt goes on."""
    _end(desk, job_id, JobState.CANCELLED, _cancelled(desk.jobs[job_id]))


def _cancelled(record: JobRecord) -> Failure:
    """Make the failure of a cancelled job, whose cause names the user already."""
    return Failure("CANCELLED", record.cause, CODES["CANCELLED"])


def may_restart(record: JobRecord, failure: Failure) -> bool:
    """Whether the job's own rules and ours allow another attempt after this failure."""
    if record.futile_restarts >= MAX_FUTILE_RESTARTS:
        return False
    if failure.reason == "PREEMPTED":  # our wish, so no rule of the user's can forbid it
        return True
    wanted = record.spec.restart_on
    if wanted and failure.reason not in wanted and str(failure.exit_code) not in wanted:
        return False
    return failure.reason in FREE_REASONS or record.restarts_spent < record.spec.max_restarts


def _shrinks(desk: StepContext, attempt: Attempt, failure: Failure) -> bool:
    """Whether an elastic job has lost devices after it had run for a while: that is to be expected,
    and a program may keep its state without a word to us.
    """
    spec = desk.jobs[attempt.job_id].spec
    if spec.most == spec.devices or failure.reason not in ("NODE_LOST", "PREEMPTED"):
        return False
    return attempt.ran_until(attempt.over_at) - attempt.ran_s >= desk.settings.grow_s


def _restart(desk: StepContext, record: JobRecord, failure: Failure, is_futile: bool) -> None:
    """is_futile: it counts among those without a new checkpoint."""
    desk.is_queue_stale = True
    desk.save(
        record.id,
        state=JobState.RESTARTING,
        restarts_spent=record.restarts_spent + (failure.reason not in FREE_REASONS),
        futile_restarts=record.futile_restarts + is_futile,
        **_blame(failure),
    )


def _end(
    desk: StepContext, job_id: str, state: JobState, failure: Failure, since_s: float = 0.0
) -> None:
    """since_s: seconds since its last rank was over."""
    finished_at = desk.wall - since_s
    desk.save(job_id, state=state, finished_at=finished_at, pending="", **_blame(failure))


def _succeeded(record: JobRecord, attempt: Attempt) -> bool:
    """All exited 0 of their own accord.

    A rank that is stopped may exit 0 as well: then only the last step shows that it was through.
    """
    if not all(rank.exited_in_order for rank in attempt.ranks):
        return False
    is_through = 0 < record.total_steps <= record.last_step
    return is_through or not attempt.is_stopping


def _blame(failure: Failure) -> dict[str, Any]:
    return {
        "reason": failure.reason,
        "cause": one_line(failure.cause),
        "exit_code": failure.exit_code,
        "first_failed_rank": failure.rank,
        "host": failure.host,
        "pid": failure.pid,
    }
