"""Processes that compile for the scheduler: their limits, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from oneflow.core.errors import ConfigError, OneFlowError
from oneflow.scheduler.cluster.compiler import (
    CompileLimitError,
    CompilerDefectError,
    CompilerLimits,
    CompilerLostError,
    Compilers,
    FileRefusedError,
)
from tests.support.cluster_program import COMPILERS
from tests.support.processes import is_alive
from tests.support.waiting import WAIT_S, wait_until

ARGV = COMPILERS["toy"]


@pytest.fixture
def make() -> Iterator[Callable[..., Compilers]]:
    made: list[Compilers] = []

    def start(argv: tuple[str, ...] = ARGV, **limits: Any) -> Compilers:
        made.append(Compilers(argv, CompilerLimits(**limits), os.environ))
        return made[-1]

    yield start
    for compilers in made:
        compilers.close()
        assert compilers.pids() == []


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def file(text: str) -> Path:
        path = tmp_path / text
        path.write_text(text)
        return path

    return file


def plan_of(compilers: Compilers, path: Path) -> bytes:
    return compilers.compile_plan(path, 2, "cpu", ("a", "b"), lambda *done: None)


def in_thread(work: Callable[[], object]) -> Callable[[], OneFlowError]:
    """Begins it; call the result for the error it ended with."""
    found: list[OneFlowError] = []

    def run() -> None:
        try:
            work()
        except OneFlowError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> OneFlowError:
        thread.join(WAIT_S)
        return found[0]

    return wait


def test_what_takes_too_long_or_too_much_memory_is_refused_and_the_next_file_served(
    make: Callable[..., Compilers], write: Callable[[str], Path]
) -> None:
    compilers, small = make(compile_s=3.0), make(compile_s=90.0, nbytes=256 << 20)
    assert plan_of(compilers, write("good")) == b"good for 2 cpu on a,b"
    (first,) = compilers.pids()
    with pytest.raises(CompileLimitError, match="longer than the 3 s") as slow:
        plan_of(compilers, write("slow sleep=60"))
    with pytest.raises(CompileLimitError, match="more than the 256 MiB of the memory") as large:
        plan_of(small, write("large grow=1"))
    assert slow.value.exit_code == large.value.exit_code == 65
    for one in (compilers, small):
        assert plan_of(one, write("good")) == b"good for 2 cpu on a,b"
    assert compilers.pids() != [first]


def test_a_stuck_or_killed_one_is_replaced(
    make: Callable[..., Compilers], write: Callable[[str], Path]
) -> None:
    compilers = make()
    path = write("slow sleep=60")
    ended = in_thread(lambda: plan_of(compilers, path))
    pid = 0
    for _ in range(2):  # once is not held against a file
        (pid,) = wait_until(lambda before=pid: [p for p in compilers.pids() if p != before])
        os.kill(pid, signal.SIGKILL)
    error = ended()
    assert isinstance(error, CompilerLostError)
    assert (error.exit_code, error.reason) == (70, "INTERNAL")
    assert "SIGKILL" in str(error)
    plan_of(compilers, write("good"))
    (pid,) = compilers.pids()
    os.kill(pid, signal.SIGKILL)  # while it waits: nobody's file is lost
    assert plan_of(compilers, write("good"))
    os.kill(compilers.pids()[0], signal.SIGTERM)  # meant for a whole group: it is not its business
    assert plan_of(compilers, write("good"))


def test_errors_and_defects_leave_it_warm(
    make: Callable[..., Compilers], write: Callable[[str], Path]
) -> None:
    compilers = make(plan_nbytes=10)
    with pytest.raises(FileRefusedError, match="bad: no such op") as refused:
        plan_of(compilers, write("bad: no such op"))
    assert (refused.value.kind, refused.value.exit_code) == ("GraphError", 1)
    with pytest.raises(CompilerDefectError, match="FileNotFoundError"):
        plan_of(compilers, Path("/nowhere"))
    assert compilers.check_fit(write("good"), "graph", 1, "cpu", 5) == 100
    assert len(compilers.pids()) == 1
    with pytest.raises(CompileLimitError, match="its plan is larger"):
        plan_of(compilers, write("good"))


def test_files_are_judged_while_another_is_compiled(
    make: Callable[..., Compilers], write: Callable[[str], Path]
) -> None:
    compilers = make()
    slow, good = write("slow sleep=60"), write("good")
    ended = in_thread(lambda: plan_of(compilers, slow))
    wait_until(compilers.pids)
    assert compilers.check_fit(good, "graph", 1, "cpu", 0) == 100
    assert len(compilers.pids()) == 2
    compilers.close()
    assert isinstance(ended(), CompilerLostError)


def test_one_that_nobody_asks_ends_and_another_comes(
    make: Callable[..., Compilers], write: Callable[[str], Path]
) -> None:
    compilers = make(idle_s=0.2)
    plan_of(compilers, write("good"))
    (first,) = compilers.pids()

    def is_left_alone() -> bool:
        compilers.look()
        return not compilers.pids()

    wait_until(is_left_alone)
    assert not is_alive(first)
    assert plan_of(compilers, write("good"))


def test_one_that_cannot_start_says_so(
    make: Callable[..., Compilers], write: Callable[[str], Path]
) -> None:
    for argv, said in (
        ((sys.executable, "-c", "raise SystemExit(3)"), "exited with code 3"),
        (("/nowhere/python",), "No such file"),
    ):
        with pytest.raises(CompilerLostError, match=said):
            plan_of(make(argv), write("good"))
    with pytest.raises(ConfigError, match="needs 256 MiB"):
        CompilerLimits(nbytes=1 << 20).check()


OWNER = """
import os, sys, threading
from pathlib import Path
from oneflow.scheduler.cluster.compiler import Compilers, CompilerLimits
found = Compilers(sys.argv[2:], CompilerLimits(), os.environ)
done = lambda *done: print(*found.pids(), flush=True) if done[1] == 1 else None
found.compile_plan(Path(sys.argv[1]), 1, "cpu", (), done)
"""


@pytest.mark.parametrize("work", ["sleep=60", "busy=60"])
def test_none_outlives_its_scheduler(write: Callable[[str], Path], work: str) -> None:
    argv = [sys.executable, "-c", OWNER, str(write(f"slow {work}")), *ARGV]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
        wait_until(lambda: not is_alive(pid))
