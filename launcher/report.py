"""The last line of a job: stable for grep, it names the rank that failed first, and why."""

from __future__ import annotations

import json
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oneflow.core.reasons import compose, reason_of_code
from oneflow.launcher.supervision import Exited, Verdict


@dataclass(frozen=True)
class ErrorRecord:
    """The record that the worker bootstrap wrote about an uncaught error."""

    summary: str
    reason: str
    traceback: str


def read_error(path: Path) -> ErrorRecord | None:
    """The record at `path`; None if the rank wrote none or did not get to finish it."""
    try:
        found: Any = json.loads(path.read_text())
        return ErrorRecord(str(found["summary"]), str(found["reason"]), str(found["traceback"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def final_line(
    verdict: Verdict,
    job: str,
    attempt: int,
    record: ErrorRecord | None,
    log: str | None = None,
    state: str | None = None,
    ran_out_of_memory: bool = False,
) -> str:
    """The line for an attempt that did not succeed."""
    fields: dict[str, object] = {"job": job, "attempt": attempt}
    if verdict.signum is not None:
        name = signal.Signals(verdict.signum).name
        fields |= {"state": state or "CANCELLED", "reason": "CANCELLED"}
        cause = "Ctrl-C" if verdict.signum == signal.SIGINT else f"the launcher got {name}"
    else:
        fields |= {
            "state": state or "FAILED",
            "reason": reason_of(verdict.cause, record, ran_out_of_memory),
        }
        cause = cause_of(verdict.cause, record, ran_out_of_memory)
    if verdict.cause and verdict.signum is None:
        fields |= {"rank": verdict.cause.rank, "host": socket.gethostname()}
        fields["pid"] = verdict.cause.pid
    fields["exit"] = verdict.exit_code
    if log:
        fields["log"] = log
    if verdict.num_unkillable:
        fields["unkillable"] = verdict.num_unkillable
    return compose(fields, cause)


def config_line(job: str, exit_code: int, reason: str, cause: str, attempt: int = 1) -> str:
    """The line for a job that was refused, or that no rank of this node ended."""
    fields = {
        "job": job,
        "attempt": attempt,
        "state": "FAILED",
        "reason": reason,
        "exit": exit_code,
    }
    return compose(fields, cause)


def reason_of(cause: Exited | None, record: ErrorRecord | None, ran_out_of_memory: bool) -> str:
    """Return the reason for a rank's end, as one of the reasons of jobs; NONE for an exit code of
    0.
    """
    if cause is None or cause.status == 0:
        return "NONE"
    if cause.status < 0:
        is_oom = ran_out_of_memory and cause.status == -signal.SIGKILL
        return "OOM_HOST" if is_oom else "SIGNAL"
    if record and record.reason:
        return record.reason
    return reason_of_code(cause.exit_code)


def cause_of(cause: Exited | None, record: ErrorRecord | None, ran_out_of_memory: bool) -> str:
    """The same in words; "" for an exit code of 0."""
    if cause is None or cause.status == 0:
        return ""
    if cause.status < 0:
        name = _signal_name(-cause.status)
        if ran_out_of_memory and cause.status == -signal.SIGKILL:
            return f"killed by {name}: the machine or its control group ran out of memory"
        return f"killed by {name}"
    return record.summary if record else f"exited with code {cause.exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
