"""Causes of an attempt's end: exit codes, reasons, the rank to blame, and the one line that says it
all.
"""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.core.reasons import CODES as CODES
from oneflow.core.reasons import REASONS, compose, quoted, reason_of_code
from oneflow.core.reasons import one_line as one_line
from oneflow.scheduler.jobs.limits import folder_name
from oneflow.scheduler.jobs.records import Assignment, JobKind, JobRecord, JobState

_OF_NO_PROCESS = ("NODE_LOST",)  # told by nobody who knows its process, which has left a log
STOPPED_CODES = frozenset({137, 143})  # of KILL and TERM, with which ranks are stopped


@dataclass(frozen=True)
class Failure:
    """The cause of an attempt's end. rank: -1 if no rank is at fault.

    is_weak: somebody else is to blame (the rank only followed, or it was told to stop), so that a
    better cause takes its place.
    """

    reason: str
    cause: str
    exit_code: int
    rank: int = -1
    host: str = ""
    pid: int = 0
    is_weak: bool = False


def shell_code(exit_code: int) -> int:
    """Return an exit code as a shell shows it, 0..255: 128+n for a process that signal n ended
    (-n).
    """
    if exit_code < 0:
        return min(128 - exit_code, 255)
    return min(exit_code, 255)


def known_reason(reason: str, exit_code: int) -> str:
    """Return `reason` if it is one of ours, else that of the code; never NONE for a failure."""
    if reason in REASONS and reason != "NONE":
        return reason
    if exit_code > 128:
        return "SIGNAL"
    return reason_of_code(exit_code)


def logs_folder(record: JobRecord, place: Assignment) -> str:
    """Return the folder of the logs of a rank, on its host; "" if it is not known."""
    if not place.folder:
        return ""
    return f"{place.folder}/{folder_name(record.id, record.life)}/{record.attempt}/rank{place.rank}"


def log_path(record: JobRecord) -> str:
    """Return the path of the log of the rank that failed first, on its host; "" if it is not
    known, or the rank never began.
    """
    if not record.pid and record.reason not in _OF_NO_PROCESS:
        return ""
    for place in record.assignments:
        if place.rank == record.first_failed_rank and place.folder:
            return f"{logs_folder(record, place)}/stderr"
    return ""


def exit_code(record: JobRecord) -> int:
    """Return the exit code of a job that ended, as a shell shows it: never 0 unless it
    succeeded.
    """
    if record.state is JobState.SUCCEEDED:
        return 0
    return record.exit_code % 256 or 1


def cause_line(record: JobRecord, log: str = "") -> str:
    """The last line about a job, stable for grep: `oneflow: job=... state=... cause="..."`.

    log: where the first failed rank's stderr is; "": as the record says.
    """
    fields: dict[str, object] = {"job": record.id, "attempt": record.attempt}
    fields |= {"state": record.state, "reason": record.reason}
    if record.first_failed_rank >= 0:
        fields |= {"rank": record.first_failed_rank, "host": record.host, "pid": record.pid}
    fields["exit"] = exit_code(record)
    if record.last_step or record.spec.kind is not JobKind.SCRIPT:  # programs do not tell
        fields |= {"step": record.last_step, "ckpt": record.last_checkpoint_step}
    if log := log or log_path(record):
        fields["log"] = log
    if record.warning:
        fields["warning"] = quoted(record.warning)
    return compose(fields, None if record.state is JobState.SUCCEEDED else record.cause)
