"""Ends of a process: exit codes of errors, one line instead of a traceback, the report."""

from __future__ import annotations

import subprocess
import sys

import pytest

from oneflow.core.errors import CheckpointError, DesyncError, PeerLostError
from oneflow.distributed.ending import describe, exit_code, one_line
from oneflow.distributed.worker import exit_status


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 1),
        (PeerLostError("x"), 85),
        (CheckpointError("x"), 83),
        (DesyncError("x"), 81),
    ],
)
def test_exit_code_of_an_error(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    "code",
    [None, 0, 7, -1, 255, 256, -256, True, False, 0.0, "words", 1 << 40, 1 << 70, -(1 << 70)],
)
def test_the_status_of_an_exit_code_is_the_interpreter_s(code: object) -> None:
    ended = subprocess.run([sys.executable, "-ISc", f"import sys; sys.exit({code!r})"], check=False)
    assert exit_status(code) == ended.returncode


def test_an_error_is_told_without_its_module() -> None:
    assert describe(PeerLostError("rank 1 left")) == "PeerLostError: rank 1 left"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_one_line_has_the_first_line_of_the_text_and_the_users_line() -> None:
    try:
        raise DesyncError("the ranks differ:\n rank 0\n rank 1")
    except DesyncError as error:
        text = one_line(error, error.__traceback__)
    assert text.startswith("DesyncError: the ranks differ: (") and "test_ending.py:" in text
    assert len(text.splitlines()) == 1


PRELUDE = """
import sys
from oneflow.core.errors import CheckpointError, PeerLostError
from oneflow.distributed import ending
def report(error):
    print("reported", type(error).__name__)
    return IS_LATE
"""


def run(script: str, is_late: bool = False) -> tuple[int, str, str]:
    watch = "ending.watch(report, lambda: True)\n"
    program = PRELUDE.replace("IS_LATE", str(is_late)) + watch + script
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_an_uncaught_error_of_ours_gives_its_exit_code() -> None:
    code, out, err = run("raise CheckpointError('half a file')")
    assert (code, out) == (83, "reported CheckpointError\n")
    assert err.startswith("Traceback") and err.endswith("CheckpointError: half a file\n")


def test_an_error_whose_place_says_nothing_is_one_line() -> None:
    code, out, err = run(
        "ending.show_briefly(lambda error: isinstance(error, CheckpointError))\n"
        "raise CheckpointError('half a file')"
    )
    assert (code, out) == (83, "reported CheckpointError\n")
    assert err == "oneflow: CheckpointError: half a file (<string>:10)\n"


def test_who_only_follows_says_so_in_one_line() -> None:
    code, _, err = run("raise PeerLostError('rank 1 failed first')")
    assert code == 85
    assert err == "oneflow: PeerLostError: rank 1 failed first (<string>:9)\n"


def test_who_fails_after_another_shows_no_traceback() -> None:
    code, _, err = run("raise ValueError('boom')", is_late=True)
    assert (code, err) == (1, "oneflow: ValueError: boom (<string>:9)\n")


def test_sys_exit_is_noted_and_atexit_still_runs() -> None:
    script = "import atexit\natexit.register(lambda: print(ending.noted_exit()))\nsys.exit(7)"
    assert run(script) == (7, "7\n", "")
