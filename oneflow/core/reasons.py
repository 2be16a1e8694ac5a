"""Reasons for the end of ranks and jobs, the exit codes they mean, and the one line that says it
all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from oneflow.core.errors import CODES as CODES

REASONS = tuple(CODES)

_REASON_OF_CODE = {code: reason for reason, code in CODES.items() if 64 <= code < 128}
_REASON_OF_CODE[65] = "CHECKPOINT_INVALID"
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
    """Return any text as one line between quotes."""
    return json.dumps(one_line(text), ensure_ascii=False)
