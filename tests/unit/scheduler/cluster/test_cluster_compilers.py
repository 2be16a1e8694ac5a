"""Words of a compiler process are bounded and checked: it reads files of strangers."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from oneflow.core.frames import Frames
from oneflow.core.metrics import METRICS
from oneflow.protos import compiler_pb2 as pb
from oneflow.scheduler.cluster import compiler
from oneflow.scheduler.cluster.compiler import (
    CompilerDefectError,
    CompilerLimits,
    CompilerLostError,
    Compilers,
    FileRefusedError,
)
from tests.support.waiting import WAIT_S

Answer = Callable[["Child", pb.CompileAsk], None]


class Child:
    """Stands for a process: a thread at the other end of its socket, which answers as told."""

    answer: Answer
    made: list[Child]

    def __init__(self, words: Any, stdin: int, env: dict[str, str], **options: Any) -> None:
        self.words, self.env, self.cwd = words, env, options.get("cwd")
        self.pid, self.returncode = 1000 + len(self.made), None
        self.sock = socket.socket(fileno=os.dup(stdin))
        self.frames = Frames(self.sock, pb.CompileAsk)
        self.is_over = threading.Event()
        self.made.append(self)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            self.frames.send(pb.CompileAnswer(ready=True))
            while (ask := self.frames.receive()) is not None:
                self.answer(ask)
        self.end(0)

    def end(self, code: int) -> None:
        if not self.is_over.is_set():
            self.returncode = code
            self.is_over.set()
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float) -> int | None:
        if not self.is_over.wait(timeout):
            raise subprocess.TimeoutExpired("compiler", timeout)
        return self.returncode

    def kill(self) -> None:
        self.end(-9)


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Compilers]]:
    opened: list[Compilers] = []
    started: list[Child] = []

    def make(answer: Answer, env: dict[str, str] | None = None, **limits: Any) -> Compilers:
        kind = type("Told", (Child,), {"answer": answer, "made": started})
        monkeypatch.setattr(compiler.subprocess, "Popen", kind)
        opened.append(Compilers(("compile",), CompilerLimits(**limits), env or {}))
        return opened[-1]

    yield make
    for found in opened:
        found.close()
    for child in started:
        child.thread.join(WAIT_S)
        child.sock.close()


def plan_of(compilers: Compilers, told: list[Any] | None = None) -> bytes:
    def progress(*done: Any) -> None:
        if told is not None:
            told.append(done)

    return compilers.compile_plan(Path("/job"), 1, "cpu", (), progress)


def refusing(**failed: Any) -> Answer:
    def answer(child: Child, ask: pb.CompileAsk) -> None:
        child.frames.send(pb.CompileAnswer(failed=pb.CompileFailed(**failed)))

    return answer


@pytest.mark.parametrize("code", [0, 256, 4_000_000_000])
def test_a_code_that_is_none_is_an_internal_one(start: Any, code: int) -> None:
    compilers = start(refusing(type="GraphError", reason="USER_ERROR", exit_code=code))
    with pytest.raises(FileRefusedError) as caught:
        plan_of(compilers)
    assert (caught.value.exit_code, caught.value.reason) == (70, "USER_ERROR")


@pytest.mark.parametrize("reason", ["", "NONE", "PREEMPTED", "NODE_LOST", "x" * 100_000])
def test_a_reason_that_no_file_can_have_is_an_internal_one(start: Any, reason: str) -> None:
    compilers = start(refusing(type="GraphError", reason=reason, exit_code=65))
    with pytest.raises(FileRefusedError) as caught:
        plan_of(compilers)
    assert (caught.value.exit_code, caught.value.reason) == (65, "INTERNAL")


def test_what_it_says_is_cut(start: Any) -> None:
    many = "x\n" * 100_000
    compilers = start(refusing(type=many, reason="USER_ERROR", exit_code=1, message=many))
    with pytest.raises(FileRefusedError) as caught:
        plan_of(compilers)
    assert len(caught.value.kind) == 64
    assert "\n" not in caught.value.kind
    assert len(str(caught.value)) == 16_384
    with pytest.raises(CompilerDefectError) as defect:
        plan_of(start(refusing(is_defect=True, message=many)))
    assert len(str(defect.value)) == 16_384


def test_names_of_passes_are_cut_and_lines(start: Any) -> None:
    def answer(child: Child, ask: pb.CompileAsk) -> None:
        done = pb.CompileProgress(name="\x1b[2J" + "x" * 1_000_000, done=1, total=2)
        child.frames.send(pb.CompileAnswer(progress=done))
        child.frames.send(pb.CompileAnswer(plan=b"plan"))
        child.frames.send(pb.CompileAnswer(done=pb.CompileDone()))

    told: list[Any] = []
    assert plan_of(start(answer), told) == b"plan"
    ((name, done, total),) = told
    assert (name, done, total) == ("?[2J" + "x" * 60, 1, 2)


def test_an_answer_that_is_too_long_is_none(start: Any) -> None:
    def answer(child: Child, ask: pb.CompileAsk) -> None:
        child.sock.sendall(struct.pack("<I", 6 << 20))

    with pytest.raises(CompilerLostError):
        plan_of(start(answer))


def test_only_times_that_can_be_true_are_counted(start: Any) -> None:
    def answer(child: Child, ask: pb.CompileAsk) -> None:
        seconds = {f"stranger{i}": 0.5 for i in range(1000)}
        seconds |= {"dedupe": float("nan"), "order": float("inf"), "connect": -1.0, "all": 1e300}
        child.frames.send(pb.CompileAnswer(done=pb.CompileDone(seconds={**seconds})))

    def shown() -> dict[str, float]:
        return {name: seconds.total_s for name, seconds in METRICS.scheduler.passes.items()}

    before = shown()
    plan_of(start(answer))
    assert shown() == before


def test_nothing_is_imported_from_where_the_scheduler_runs(
    start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[pb.CompileAsk] = []

    def answer(child: Child, ask: pb.CompileAsk) -> None:
        asked.append(ask)
        child.frames.send(pb.CompileAnswer(done=pb.CompileDone()))

    env = {"PYTHONPATH": ":lib:/opt/lib:", "ONEFLOW_DUMP": "a:b", "ONEFLOW_AUTH_TOKEN": "secret"}
    compilers = start(answer, env)
    compilers.compile_plan(Path("blobs/x"), 1, "cpu", (), print)
    (child,) = compiler.subprocess.Popen.made  # type: ignore[attr-defined]
    assert child.cwd == "/"
    assert child.env["PYTHONPATH"] == f"{tmp_path}/lib:/opt/lib"
    assert child.env["ONEFLOW_DUMP"] == f"{tmp_path}/a:b"
    assert child.env["PYTHONSAFEPATH"] == "1"
    assert "ONEFLOW_AUTH_TOKEN" not in child.env
    assert asked[0].job_file == f"{tmp_path}/blobs/x"


def dying(times: int) -> Answer:
    """Killed in the middle of a plan so many times; then it gives a whole one."""
    left = [times]

    def answer(child: Child, ask: pb.CompileAsk) -> None:
        child.frames.send(pb.CompileAnswer(plan=b"pl"))
        if left[0]:
            left[0] -= 1
            child.kill()
        elif ask.only_check:
            child.frames.send(pb.CompileAnswer(done=pb.CompileDone(most_steps=7)))
        else:
            child.frames.send(pb.CompileAnswer(plan=b"an"))
            child.frames.send(pb.CompileAnswer(done=pb.CompileDone()))

    return answer


def test_what_somebody_killed_is_tried_once_more(start: Any) -> None:
    assert plan_of(start(dying(1))) == b"plan"
    assert start(dying(1)).check_fit(Path("/job"), "graph", 1, "cpu", 0) == 7
    with pytest.raises(CompilerLostError, match="SIGKILL") as lost:
        plan_of(start(dying(2)))
    assert (type(lost.value), lost.value.exit_code) == (CompilerLostError, 70)  # it is shown


def test_what_ends_by_itself_or_by_us_is_not_tried_again(start: Any) -> None:
    asked: list[pb.CompileAsk] = []

    def exits(child: Child, ask: pb.CompileAsk) -> None:
        asked.append(ask)
        child.end(3)

    with pytest.raises(CompilerLostError, match="exited with code 3"):
        plan_of(start(exits))
    assert len(asked) == 1

    def stays(child: Child, ask: pb.CompileAsk) -> None:
        asked.append(ask)
        threading.Thread(target=compilers.close).start()
        child.is_over.wait(WAIT_S)

    compilers = start(stays)
    with pytest.raises(CompilerLostError):
        plan_of(compilers)
    assert len(asked) == 2


def test_closed_ones_say_that_the_scheduler_stops(start: Any) -> None:
    compilers = start(dying(0))
    compilers.close()
    with pytest.raises(CompilerLostError, match="the scheduler stops"):
        plan_of(compilers)
