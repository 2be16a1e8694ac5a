"""Tracebacks of uncaught errors, as a process of its own prints them."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import oneflow as flow
from oneflow.core import tracebacks
from oneflow.core.config import Config
from oneflow.core.errors import InternalError

MODEL = """
import oneflow as flow
import oneflow.nn as nn

class Square(nn.Module):
    def forward(self, x):
        return x @ x  # wrong

class Graph(nn.Graph):
    def build(self, x):
        return x @ x  # wrong too
"""
CASES = {
    "op": ("flow.ones(2, 3) + flow.ones(4)", ["<module>"]),
    "method": ("flow.ones(2, 3).sum(7)", ["<module>"]),
    "layer": ("nn.Sequential(nn.Linear(3, 4), Square())(flow.ones(2, 3))", ["<module>", "forward"]),
    "backward": ("flow.ones(2).backward()", ["<module>"]),
    "graph": ("Graph()(flow.ones(2, 3))", ["<module>", "build"]),
}


def ended(script: str, folder: Path, **variables: str) -> str:
    """The standard error of a script, which fails."""
    file = folder / "script.py"
    file.write_text(script)
    env = {**os.environ, **variables}
    done = subprocess.run([sys.executable, file], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


def functions(text: str) -> list[str]:
    return re.findall(r'^  File ".*", line \d+, in (\S+)$', text, re.MULTILINE)


@pytest.mark.parametrize("name", CASES)
def test_a_traceback_ends_in_the_users_line(name: str, tmp_path: Path) -> None:
    line, wanted = CASES[name]
    text = ended(MODEL + line + "\n", tmp_path)
    assert functions(text) == wanted, text
    assert "script.py" in text and "Error" in text.splitlines()[-2]
    assert "ONEFLOW_DEBUG_MODE=1 shows all" in text.splitlines()[-1]


def test_the_variable_shows_all_lines(tmp_path: Path) -> None:
    text = ended(MODEL + CASES["op"][0], tmp_path, ONEFLOW_DEBUG_MODE="1")
    assert len(functions(text)) > 3 and "left out" not in text
    assert "During handling" not in text  # a first call misses the cache of kernels


def test_errors_that_led_to_another_are_shortened_too(tmp_path: Path) -> None:
    script = MODEL + "try:\n    flow.ones(2, 3).sum(7)\nexcept IndexError as error:\n"
    text = ended(script + "    raise ValueError('mine') from error\n", tmp_path)
    assert functions(text) == ["<module>", "<module>"], text
    assert "direct cause" in text and "ValueError: mine" in text and "PositionError" in text


def test_errors_of_the_script_alone_are_as_they_were(tmp_path: Path) -> None:
    text = ended("import oneflow\n\ndef f():\n    1 / 0\n\nf()\n", tmp_path)
    assert functions(text) == ["<module>", "f"] and "left out" not in text


@pytest.mark.parametrize("no_color", [False, True])
def test_the_message_is_highlighted_on_a_terminal(no_color: bool, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("import oneflow as flow\nflow.ones(2, 3).sum(7)\n")
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, file], env={**env, "NO_COLOR": "1"} if no_color else env, stderr=theirs
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert process.wait() == 1
    is_red = b"\x1b[1;31moneflow.core.errors.PositionError: " in text
    assert is_red is not no_color, text


def test_the_error_keeps_all_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_configuration", Config)
    shown: list[int] = []
    try:
        flow.ones(2, 3).sum(7)
    except IndexError as caught:
        error = caught
    whole = len(traceback.extract_tb(error.__traceback__))
    tracebacks.show(
        IndexError,
        error,
        error.__traceback__,
        lambda kind, e, trace: shown.append(len(traceback.extract_tb(e.__traceback__))),
    )
    assert whole > 2 and shown == [1]
    assert len(traceback.extract_tb(error.__traceback__)) == whole


def test_defects_of_ours_are_shown_whole() -> None:
    seen: list[object] = []
    error = InternalError("broken")
    tracebacks.show(InternalError, error, None, lambda kind, e, trace: seen.append(e))
    assert seen == [error]
