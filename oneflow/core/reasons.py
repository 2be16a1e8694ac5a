"""Reasons for the end of ranks and jobs, the exit codes they mean, and the one line that says it
all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

REASONS = (
    "NONE", "USER_ERROR", "SIGNAL", "OOM_HOST", "OOM_DEVICE", "NODE_LOST", "PEER_LOST", "HANG",
    "DESYNC", "NONFINITE", "CHECKPOINT_INVALID", "RENDEZVOUS_TIMEOUT", "UNSATISFIABLE",
    "PREEMPTED", "TIME_LIMIT", "CANCELLED", "AUTH", "DISK_FULL", "INTERNAL",
)  # fmt: skip

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
"""The exit code of what ended for a reason that gave no code of its own."""

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
MAX_CAUSE_CHARS = 600
_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # terminals act on these; JSON escapes only some


def reason_of_code(exit_code: int) -> str:
    """Return the reason that a program's exit code gives by itself: USER_ERROR for those that are
    its own.
    """
    return _REASON_OF_CODE.get(exit_code, "USER_ERROR")


def one_line(text: str) -> str:
    """Without line breaks and control characters, cut to MAX_CAUSE_CHARS."""
    whole = text.encode(errors="replace").decode()
    line = _HIDDEN.sub("?", " ".join(whole.split()))
    return line if len(line) <= MAX_CAUSE_CHARS else line[: MAX_CAUSE_CHARS - 3] + "..."


def compose(fields: Mapping[str, object], cause: str | None) -> str:
    """`oneflow: key=value ... cause="..."`, always one line, stable for grep. None: no cause."""
    words = " ".join(one_line(f"{key}={value}") for key, value in fields.items())
    if cause is None:
        return f"oneflow: {words}"
    return f"oneflow: {words} cause={quoted(cause)}"


def quoted(text: str) -> str:
    """One line between quotes, whatever is in it."""
    return json.dumps(one_line(text), ensure_ascii=False)
