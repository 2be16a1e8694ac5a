"""A worker that waits for its job, and the end of one that does not live so long."""

from __future__ import annotations

import asyncio
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.launcher.daemon.fork_server import ForkServer, WorkerLostError
from oneflow.launcher.daemon.pulse import Patience
from oneflow.launcher.daemon.workers import Pipes


@pytest.mark.parametrize(("status", "code", "reason"), [(-9, 137, "SIGNAL"), (1, 70, "INTERNAL")])
def test_a_job_whose_worker_ended_before_it_began_says_how(
    status: int, code: int, reason: str
) -> None:
    settings: Any = SimpleNamespace(warm=True)
    forks = ForkServer(settings, lambda: None, tuple, lambda _: None)

    async def lose() -> None:
        process = subprocess.Popen(["sleep", "100"])
        pipes = Pipes.open()
        pipes.close_theirs()
        patience = Patience(5.0, 10.0, 60.0)
        forks._worker = pipes.worker(process.pid, None, None, tuple, patience)
        forks._is_waiting = True
        process.kill()
        process.wait()
        forks.ended(process.pid, status)

    asyncio.run(lose())
    with pytest.raises(WorkerLostError, match=f"before its job began: .* status {status}") as lost:
        forks.take()
    assert (lost.value.exit_code, lost.value.reason) == (code, reason)


def test_a_worker_that_is_reaped_before_its_words_are_read_does_not_wait_for_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: Any = SimpleNamespace(warm=True)
    forks = ForkServer(settings, lambda: None, tuple, lambda _: None)

    async def fork(server: object) -> object:
        process = subprocess.Popen(["sleep", "100"])
        pipes = Pipes.open()
        pipes.close_theirs()
        worker = forks._worker = pipes.worker(
            process.pid, None, None, tuple, Patience(5.0, 10.0, 60.0)
        )
        process.kill()
        forks.ended(process.pid, process.wait())
        return worker

    monkeypatch.setattr(forks, "_fork", fork)
    asyncio.run(forks._make(settings))
    assert not forks.pids
    assert not forks._is_waiting
