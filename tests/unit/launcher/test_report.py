"""The last line of a job is one line, for any cause."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from oneflow.core.reasons import MAX_CAUSE_CHARS
from oneflow.launcher.report import ErrorRecord, final_line, read_error
from oneflow.launcher.supervision import Exited, Verdict


def line_of(status: int, record: ErrorRecord | None = None, **more: object) -> str:
    verdict = Verdict(Exited(3, 812, status), None, 0)
    return final_line(verdict, "j7f3", 2, record, **more)  # type: ignore[arg-type]


def test_line_has_the_fields_in_order() -> None:
    line = line_of(7, ErrorRecord("ValueError: boom (a.py:3)", "", ""))
    pattern = (
        r"oneflow: job=j7f3 attempt=2 state=FAILED reason=USER_ERROR rank=3 host=\S+ pid=812 "
        r'exit=7 cause="ValueError: boom \(a.py:3\)"'
    )
    assert re.fullmatch(pattern, line)


def test_many_lines_and_quotes_become_one_line() -> None:
    line = line_of(1, ErrorRecord('a "b"\nc\r\n\x1b[2J\x9b2J' + "x" * 5000, "", ""))
    assert len(line.splitlines()) == 1 and not {"\x1b", "\x9b"} & set(line)
    cause = json.loads(line.partition("cause=")[2])
    assert cause.startswith('a "b" c') and len(cause) == MAX_CAUSE_CHARS


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (80, "HANG"),
        (81, "DESYNC"),
        (84, "RENDEZVOUS_TIMEOUT"),
        (85, "PEER_LOST"),
        (5, "USER_ERROR"),
        (-9, "SIGNAL"),
    ],
)
def test_reason_follows_the_code(status: int, reason: str) -> None:
    assert f" reason={reason} " in line_of(status)


def test_memory_killer_is_told_from_other_kills() -> None:
    assert "reason=OOM_HOST" in line_of(-9, ran_out_of_memory=True)
    assert "reason=SIGNAL" in line_of(-15, ran_out_of_memory=True)


def test_signal_to_the_launcher_is_a_cancellation() -> None:
    line = final_line(Verdict(None, 2, 0), "local", 1, None)
    words = 'oneflow: job=local attempt=1 state=CANCELLED reason=CANCELLED exit=130 cause="Ctrl-C"'
    assert line == words


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"summary": "x"}'])
def test_a_damaged_record_is_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "error.json"
    assert read_error(path) is None
    path.write_text(text)
    assert read_error(path) is None
