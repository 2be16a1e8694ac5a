"""Why an attempt ended: exit codes, reasons, who is to blame, and the one line that says it all."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from oneflow.scheduler.jobs.records import REASONS, JobRecord

CODES = {
    "NONE": 0,
    "USER_ERROR": 1,
    "SIGNAL": 143,
    "OOM_HOST": 137,
    "OOM_DEVICE": 1,
    "NODE_LOST": 137,
    "PEER_LOST": 85,
    "HANG": 80,
    "DESYNC": 81,
    "NONFINITE": 82,
    "CHECKPOINT_INVALID": 83,
    "RENDEZVOUS_TIMEOUT": 84,
    "UNSATISFIABLE": 78,
    "PREEMPTED": 143,
    "TIME_LIMIT": 124,
    "CANCELLED": 143,
    "AUTH": 77,
    "DISK_FULL": 86,
    "INTERNAL": 70,
}
"""The exit code of an attempt that ended for a reason no rank gave a code for."""

_REASON_OF_CODE = {
    64: "USER_ERROR",
    65: "CHECKPOINT_INVALID",
    70: "INTERNAL",
    77: "AUTH",
    78: "UNSATISFIABLE",
    80: "HANG",
    81: "DESYNC",
    82: "NONFINITE",
    83: "CHECKPOINT_INVALID",
    84: "RENDEZVOUS_TIMEOUT",
    85: "PEER_LOST",
    86: "DISK_FULL",
    124: "TIME_LIMIT",
}
FOLLOWER_CODE = 85
STOPPED_CODES = frozenset({137, 143})  # of KILL and TERM, with which ranks are stopped
MAX_CAUSE_CHARS = 600
_HIDDEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f]"
)  # terminals act on these too, and JSON does not escape them


@dataclass(frozen=True)
class Failure:
    """What ended an attempt. rank: -1 if no rank is at fault.

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
    """As a shell shows it, 0..255: 128+n for a process that signal n ended (-n)."""
    if exit_code < 0:
        return min(128 - exit_code, 255)
    return min(exit_code, 255)


def known_reason(reason: str, exit_code: int) -> str:
    """`reason` if it is one of ours, else what the code says; never NONE for a failure."""
    if reason in REASONS and reason != "NONE":
        return reason
    if exit_code > 128:
        return "SIGNAL"
    return _REASON_OF_CODE.get(exit_code, "USER_ERROR")


def one_line(text: str) -> str:
    """Without line breaks and control characters, cut to MAX_CAUSE_CHARS."""
    whole = text.encode(errors="replace").decode()
    line = _HIDDEN.sub("?", " ".join(whole.split()))
    return line if len(line) <= MAX_CAUSE_CHARS else line[: MAX_CAUSE_CHARS - 3] + "..."


def cause_line(record: JobRecord, log: str = "") -> str:
    """The last line about a job, stable for grep: `oneflow: job=... state=... cause="..."`."""
    fields: dict[str, object] = {"job": record.id, "attempt": record.attempt}
    fields |= {"state": record.state, "reason": record.reason}
    if record.first_failed_rank >= 0:
        fields |= {"rank": record.first_failed_rank, "host": record.host, "pid": record.pid}
    fields |= {"exit": record.exit_code, "step": record.last_step}
    fields["ckpt"] = record.last_checkpoint_step
    if log:
        fields["log"] = log
    words = " ".join(f"{key}={value}" for key, value in fields.items())
    return f"oneflow: {words} cause={json.dumps(one_line(record.cause), ensure_ascii=False)}"
