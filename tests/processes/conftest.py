"""The ground of tests: jobs that leave nothing; a scheduler and the daemons that a test wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import PATIENT, Rig, Running, table
from tests.support.jobs import Jobs, running_jobs
from tests.support.waiting import wait_until


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with running_jobs(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A scheduler that the tests of a module share; it gives ranks little time to end."""
    found = Rig(tmp_path_factory.mktemp("rig"), armed=False, devices=(), patience=PATIENT)
    found.given["scheduler"] = {"table": table(PATIENT) | {"grace_s": 0.3}}
    with found:
        yield found


@pytest.fixture(scope="module")
def shared(rig: Rig) -> dict[str, Running]:
    """Daemons that run, by device."""
    return {}


@pytest.fixture
def start(rig: Rig, shared: dict[str, Running]) -> Iterator[Callable[..., Running]]:
    """Gives a function that starts a daemon and returns when it may be given work; one of the same
    settings that runs already is taken. Afterwards there is no job.
    """

    def start_one(
        device: str = "cpu:0", more_env: dict[str, str] | None = None, **settings: Any
    ) -> Running:
        there = shared.get(device)
        if there is None or not there.lives_as(more_env, settings):
            if there is not None:
                there.end()
            there = shared[device] = Running(rig, device, more_env, **settings)
        wait_until(there.is_up, f"{device} is up")
        return there

    try:
        yield start_one
    finally:
        for device, found in list(shared.items()):
            print(found.said())
            if not found.lives_as(None, {}) or device != "cpu:0":
                shared.pop(device).end()
        rig.clear()
