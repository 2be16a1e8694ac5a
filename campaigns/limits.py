"""Descriptors that run out."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cluster import DEVICES, Rig
from tests.support.waiting import wait_until

from .ground import (
    END_S,
    Ground,
    ends_well,
    expect,
    expect_next,
    train,
)


def descriptors(ground: Ground) -> str:
    """A service has no descriptor left: connected clients are served, others wait."""
    with ground.cluster() as rig:
        job = train(rig, ground)
        wait_until(lambda: job.status().last_step >= 5, "it runs")
        with _no_descriptors(rig.pid("scheduler")):
            code, said = _stranger(rig)
            expect(code == 69, f"a connection without a descriptor: {code} {said}")
            wait_until(lambda: job.status().state.is_final, "who is connected is served", END_S)
        ends_well(job, ground)
        wait_until(lambda: _stranger(rig)[0] == 0, "strangers are served again", 30.0)
        with _no_descriptors(rig.pid(DEVICES[0])):
            record = train(rig, ground, max_restarts=0).wait(END_S)
            expect(str(record.state) == "FAILED", f"it is {record.state}")
            expect("open files" in record.cause, f"unclear: {record.reason} {record.cause}")
        for name in ("scheduler", *DEVICES):
            expect(rig.is_alive(name), f"{name} died")
        expect_next(rig, ground)
        return f"{said[:50]}...; {record.reason}: {record.cause[:80]}"


def _stranger(rig: Rig) -> tuple[int, str]:
    """Another process that asks: it has no connection yet."""
    words = [sys.executable, "-m", "oneflow", "cluster", "status"]
    more = {
        "ONEFLOW_SCHEDULER_ADDRESS": rig.address,
        "ONEFLOW_AUTH_TOKEN_FILE": str(rig.folder / "scheduler" / "token"),
    }
    done = subprocess.run(
        words, env=rig.env | more, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


@contextmanager
def _no_descriptors(pid: int) -> Iterator[None]:
    """No new one, whichever of its own it closes."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
