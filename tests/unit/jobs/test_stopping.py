"""A worker that is told to stop before its steps: it stops, even if one signal is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from oneflow.core.loop import wait_for
from oneflow.jobs import stopping
from oneflow.jobs.description import JobFileError
from oneflow.jobs.jobfile import JobFile
from oneflow.jobs.stopping import KEPT_S, Stop, StoppedError, stop_behind
from tests.support.waiting import WAIT_S, be_late, until, wait_until

from .job_samples import export

CLOCK = [0.0]
"""Seconds of the clock by which an error has been kept for long: it stands still, so that no
second signal comes while a test looks at the error of the first."""


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stop]:
    times = SimpleNamespace(monotonic=lambda: CLOCK[0], sleep=time.sleep)
    monkeypatch.setattr(stopping, "time", times)
    before = signal.getsignal(signal.SIGTERM)
    found = Stop()
    found.install()
    yield found
    found.end()
    signal.signal(signal.SIGTERM, before)


@contextmanager
def stopped(stop: Stop, match: str | None = None) -> Iterator[None]:
    """Expect the error, and end the repeated signals before the error is gone: the next one would
    come to the code that runs then.
    """
    with pytest.raises(StoppedError, match=match) as caught:
        yield
    stop.end()
    del caught  # which has kept the error until now


def ask_soon(stop: Stop) -> None:
    threading.Timer(0.05, stop.ask, ("the daemon",)).start()


def wait() -> None:
    threading.Event().wait(WAIT_S)
    raise AssertionError("nobody stopped it")


def test_it_stops_though_the_first_signal_does_not_wake_it(
    stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill, sent = os.kill, []

    def lossy(pid: int, number: int) -> None:
        sent.append(number)
        if len(sent) > 1:
            kill(pid, number)

    monkeypatch.setattr("oneflow.jobs.stopping.os.kill", lossy)
    ask_soon(stop)
    with stopped(stop, "stopped by the daemon before the first step"):
        wait()
    assert len(sent) >= 2


def test_it_stops_though_something_swallows_the_error(stop: Stop) -> None:
    ask_soon(stop)
    with stopped(stop):  # the second signal may come before the second wait
        with suppress(Exception):  # as the emit of a log's handler does
            wait()
        wait()


def test_it_stops_though_something_swallows_the_error_and_keeps_it(stop: Stop) -> None:
    ask_soon(stop)
    kept: list[Exception] = []
    with stopped(stop):
        try:
            wait()
        except Exception as error:
            kept.append(error)
        CLOCK[0] += KEPT_S
        wait()
    assert isinstance(kept[0], StoppedError)


def test_it_is_not_disturbed_while_it_stops(stop: Stop) -> None:
    ask_soon(stop)
    is_cleared = False
    with stopped(stop):
        try:
            wait()
        finally:
            be_late(0.3)  # clears away: no second error comes
            is_cleared = True
    assert is_cleared
    signal.raise_signal(signal.SIGTERM)  # its handler has run when this returns


def test_between_steps_nobody_is_interrupted(stop: Stop) -> None:
    stop.begin_steps()
    stop.ask("the daemon")
    signal.raise_signal(signal.SIGTERM)
    assert stop.requested == "the daemon"


def test_what_was_asked_before_the_steps_ends_it_there(stop: Stop) -> None:
    stop.requested = "SIGTERM"
    with pytest.raises(StoppedError, match="by SIGTERM"):
        stop.begin_steps()


def test_an_error_of_a_handler_is_not_lost_when_the_work_it_waits_for_is_done() -> None:
    """The work ends in the moment in which the signal comes."""
    before, is_done = signal.getsignal(signal.SIGTERM), threading.Event()

    def is_waited_for() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        return frame.f_code.co_name == "wait"  # of threading.Condition

    def handler(number: int, frame: object) -> None:
        wait_until(is_done.is_set)
        raise StoppedError("stopped")

    async def work() -> str:
        await until(is_waited_for)
        os.kill(os.getpid(), signal.SIGTERM)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: is_done.set())  # after that of who waits for it
        return "done"

    signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(StoppedError):
            wait_for(work(), WAIT_S)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_stop_that_a_reader_took_for_a_defect_is_still_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_here(*args: object) -> None:
        raise stop

    stop = StoppedError("stopped by the daemon before the first step")
    path = export(tmp_path / "a.job")
    monkeypatch.setattr("oneflow.jobs.graph_entry.verify", stop_here)
    with pytest.raises(JobFileError, match="stopped by the daemon") as caught:
        JobFile(path)
    assert stop_behind(caught.value) is stop


def test_errors_that_came_of_no_stop_stay_what_they_are() -> None:
    agreed = StoppedError("stopped after step 3")
    agreed.is_agreed = True
    try:
        try:
            raise agreed
        finally:
            raise JobFileError("its outputs cannot be written")
    except JobFileError as error:
        assert stop_behind(error) is None
    assert stop_behind(agreed) is agreed
    looped = ValueError("x")
    looped.__cause__ = KeyError("y")
    looped.__cause__.__context__ = looped
    assert stop_behind(looped) is None
