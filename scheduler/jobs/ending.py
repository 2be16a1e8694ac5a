"""The outcome of a job whose attempt is over: a final state, or another attempt."""

from __future__ import annotations

from typing import Any

from oneflow.scheduler.jobs.attempt import Attempt, Intent
from oneflow.scheduler.jobs.causes import CODES, Failure, one_line
from oneflow.scheduler.jobs.desk import Desk
from oneflow.scheduler.jobs.records import (
    FREE_REASONS,
    MAX_FUTILE_RESTARTS,
    JobRecord,
    JobState,
)


def close(desk: Desk, attempt: Attempt) -> JobRecord:
    """Saves the record of a job whose attempt is over."""
    record = desk.jobs[attempt.job_id]
    if attempt.is_started:
        desk.note(attempt.job_id, ran_s=attempt.ran_so_far(desk.now))
    if record.state is JobState.CANCELLING:
        return end_cancelled(desk, record.id)
    if attempt.intent is Intent.TIME_LIMIT:
        limit = desk.settings.time_limit_s(record.spec.time_limit_s)
        cause = f"ran longer than its time limit of {limit:g} s"
        failure = Failure("TIME_LIMIT", cause, CODES["TIME_LIMIT"])
        return _end(desk, record.id, JobState.TIMED_OUT, failure)
    failure_found = attempt.final_failure()
    if failure_found is None or failure_found.is_weak:
        if _succeeded(record, attempt):
            return _succeed(desk, record.id)
        if attempt.intent is Intent.PREEMPT:
            failure_found = Failure("PREEMPTED", attempt.stop_why, CODES["PREEMPTED"])
    if failure_found is None:
        cause = f"stopped without a reason on record ({attempt.stop_why})"
        failure_found = Failure("INTERNAL", cause, CODES["INTERNAL"])
    return _fail(desk, record, failure_found)


def show_failure(desk: Desk, attempt: Attempt) -> None:
    """Show the failure to blame, as far as it is known while the other ranks still end. Not
    durable: until the attempt is over the daemons tell it again.
    """
    failure, record = attempt.failure, desk.jobs[attempt.job_id]
    if failure is None or record.state is JobState.CANCELLING:
        return
    if attempt.intent is Intent.TIME_LIMIT:
        return
    desk.note(record.id, **_blame(failure))


def end_cancelled(desk: Desk, job_id: str) -> JobRecord:
    """The cause says already who cancelled it."""
    failure = Failure("CANCELLED", desk.jobs[job_id].cause, CODES["CANCELLED"])
    return _end(desk, job_id, JobState.CANCELLED, failure)


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


def _fail(desk: Desk, record: JobRecord, failure: Failure) -> JobRecord:
    if not may_restart(record, failure):
        if record.futile_restarts >= MAX_FUTILE_RESTARTS:
            said = f"{failure.cause} (given up: no new checkpoint in {record.futile_restarts}"
            failure = _with_cause(failure, f"{said} restarts in a row)")
        return _end(desk, record.id, JobState.FAILED, failure)
    spent = 0 if failure.reason in FREE_REASONS else 1
    desk.is_queue_stale = True
    return desk.save(
        record.id,
        state=JobState.RESTARTING,
        restarts_spent=record.restarts_spent + spent,
        futile_restarts=record.futile_restarts + 1,
        **_blame(failure),
    )


def _end(desk: Desk, job_id: str, state: JobState, failure: Failure) -> JobRecord:
    return desk.save(job_id, state=state, finished_at=desk.wall, pending="", **_blame(failure))


def _succeed(desk: Desk, job_id: str) -> JobRecord:
    nothing = Failure("NONE", "", 0)
    return _end(desk, job_id, JobState.SUCCEEDED, nothing)


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


def _with_cause(failure: Failure, cause: str) -> Failure:
    fields = (failure.exit_code, failure.rank, failure.host, failure.pid)
    return Failure(failure.reason, cause, *fields)
