"""Clients that wait for longer than a scheduler may be away, and hear nothing, outlive its
restart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import oneflow as flow
from oneflow.cluster import connection as module
from oneflow.cluster.connection import Patience, Retries
from oneflow.scheduler.jobs.records import JobState
from tests.support.cluster import SchedulerProcess
from tests.support.waiting import WAIT_S

PATIENCE = Patience(connect_s=60.0, patience_s=200.0)
SILENCE_S = 1000.0


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[SchedulerProcess]:
    found = SchedulerProcess(tmp_path, allow_scripts=True, tick_s=0.1).start()
    yield found
    found.kill()


class Clock:
    """The client's. Time passes as it does, but can be made to pass at once."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    own = SimpleNamespace(monotonic=found.monotonic, sleep=time.sleep)
    monkeypatch.setattr(module, "time", own)
    return found


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released for each stream that the scheduler has taken."""
    found = threading.Semaphore(0)
    before: Callable[[Retries], None] = Retries.opened

    def tell(retries: Retries) -> None:
        before(retries)
        found.release()

    monkeypatch.setattr(Retries, "opened", tell)
    return found


@pytest.mark.parametrize("ends", [SchedulerProcess.kill, SchedulerProcess.stop])
def test_silence_does_not_use_up_the_patience(
    scheduler: SchedulerProcess, clock: Clock, opened: threading.Semaphore, ends: Any
) -> None:
    address, token = scheduler.known["address"], scheduler.token()
    with flow.cluster.connect(address, token, patience=PATIENCE) as cluster:
        job = cluster.submit_script(["true"])  # nobody is there to run it
        with ThreadPoolExecutor(3) as threads:
            record = threads.submit(job.wait)
            lines = threads.submit(lambda: list(job.logs(follow=True)))
            points = threads.submit(lambda: list(job.metrics()))
            assert all(opened.acquire(timeout=WAIT_S) for _ in range(3))
            clock.ahead_s = SILENCE_S
            ends(scheduler)
            scheduler.start()
            job.cancel()
            assert record.result(WAIT_S).state is JobState.CANCELLED
            assert lines.result(WAIT_S) == points.result(WAIT_S) == []
