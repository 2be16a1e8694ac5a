"""A worker that stands still: the judgement, its moment, and the place where it is stuck."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable

import pytest

from oneflow.core.processes import stat_fields
from oneflow.launcher.daemon.pulse import (
    Judge,
    Patience,
    Pulse,
    Still,
    has_main_stack,
    stuck_frame,
)
from oneflow.services import pulse as beats
from tests.support.waiting import WAIT_S, be_late, wait_until

PATIENCE = Patience(suspect_s=3.0, stopped_s=9.0, stuck_s=14.0)
STEP_S = 0.25


def judge_over(
    seconds: float, beats: int | None, state: str, judge: Judge, since: float
) -> list[tuple[float, Still]]:
    """Beats that are new in that time."""
    found = []
    for number in range(round(seconds / STEP_S)):
        now = since + (number + 1) * STEP_S
        found.append((now - since, judge.look(now, beats, state)))
    return [(at, still) for at, still in found if still is not None]


def test_who_moves_is_left_alone() -> None:
    assert judge_over(100.0, 1, "S", Judge(PATIENCE, 0.0), 0.0) == []


def test_who_is_stopped_is_suspected_and_then_given_up_once() -> None:
    found = judge_over(60.0, 0, "T", Judge(PATIENCE, 0.0), 0.0)
    assert [(at, still.is_stopped, still.is_final) for at, still in found] == [
        (3.0, True, False),
        (9.0, True, True),
    ]


def test_who_wakes_up_begins_anew() -> None:
    judge = Judge(PATIENCE, 0.0)
    assert len(judge_over(8.0, 0, "T", judge, 0.0)) == 1
    assert judge.is_suspect
    assert judge_over(5.0, 1, "S", judge, 8.0) == []
    assert not judge.is_suspect
    assert [at for at, _ in judge_over(8.0, 0, "T", judge, 13.0)] == [3.0]


def test_an_interpreter_that_does_not_move_is_stuck() -> None:
    judge = Judge(PATIENCE, 0.0)
    judge_over(1.0, 1, "R", judge, 0.0)
    found = judge_over(60.0, 0, "R", judge, 1.0)
    assert [(at, still.is_stopped, still.is_final) for at, still in found] == [
        (3.0, False, False),
        (14.0, False, True),
    ]


def test_who_has_no_pulse_or_has_ended_it_is_not_judged_by_it() -> None:
    judge = Judge(PATIENCE, 0.0)
    assert judge_over(60.0, 0, "R", judge, 0.0) == []
    judge_over(1.0, 1, "R", judge, 60.0)
    assert judge_over(60.0, None, "R", judge, 61.0) == []


def test_a_debugger_may_hold_a_process() -> None:
    judge = Judge(PATIENCE, 0.0)
    judge_over(1.0, 1, "R", judge, 0.0)
    assert judge_over(60.0, 0, "t", judge, 1.0) == []


def test_our_own_sleep_is_nobody_elses() -> None:
    judge = Judge(PATIENCE, 0.0)
    judge.look(0.25, 1, "S")
    assert judge.look(100.0, 0, "T") is None
    assert [at for at, _ in judge_over(8.0, 0, "T", judge, 100.0)] == [3.0]


@pytest.mark.parametrize(
    ("still", "said"),
    [
        (Still(True, 9.04, True), "it has been stopped (SIGSTOP) for 9.0 s"),
        (Still(False, 14.26, True), "its interpreter has been stuck for 14.3 s"),
    ],
)
def test_it_is_said_in_words(still: Still, said: str) -> None:
    assert str(still) == said


def test_the_main_threads_frame_is_named() -> None:
    text = (
        'epoch 3\nThread 0x1 (most recent call first):\n  File "/lib/threading.py", line 9 in run\n'
        "Current thread 0x2 (most recent call first):\n"
        '  File "/home/me/train.py", line 12 in step\n'
        '  File "/home/me/train.py", line 40 in <module>\n'
    )
    assert stuck_frame(text) == "train.py:12 in step"
    assert stuck_frame("nothing") == ""
    begun = text[: text.rindex("Current thread")]
    assert has_main_stack(text) and not has_main_stack(begun)


def run(program: str) -> tuple[subprocess.Popen[bytes], Pulse]:
    read, write = os.pipe()
    env = os.environ | {beats.VARIABLE: str(write)}
    start = "import os, time; from oneflow.services import pulse; pulse.start(os.environ); "
    argv = [sys.executable, "-c", start + program]
    process = subprocess.Popen(argv, env=env, pass_fds=[write])
    os.close(write)
    return process, Pulse(read, process.pid, Patience(0.6, 1.2, 1.2), time.monotonic())


def looks(pulse: Pulse) -> Iterable[Still]:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if (still := pulse.look(time.monotonic())) is not None:
            yield still
        be_late(0.05)


def test_a_real_interpreter_is_stuck() -> None:
    process, pulse = run("import ctypes; time.sleep(0.5); ctypes.PyDLL(None).usleep(600_000_000)")
    try:
        final = next(still for still in looks(pulse) if still.is_final)
        assert not final.is_stopped
        wait_until(lambda: stat_fields(process.pid)[0] == "S")
    finally:
        process.kill()
        process.wait()
        pulse.close()


@pytest.mark.parametrize("program", ["pass", "os.execv('/bin/sleep', ['sleep', '3'])"])
def test_who_ends_or_becomes_another_program_closes_its_pipe(program: str) -> None:
    process, pulse = run(program)
    now = time.monotonic()  # at which nobody has been silent for long
    try:
        wait_until(lambda: pulse.look(now) is not None or not pulse.is_open)
        assert [pulse.look(now + n / 10) for n in range(50)] == [None] * 50
    finally:
        process.kill()
        process.wait()
        pulse.close()
