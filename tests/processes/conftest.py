"""The ground of tests: jobs that leave nothing; a scheduler that records, with its daemons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Running
from tests.support.jobs import Jobs, running_jobs
from tests.support.simulated.scheduler_peer import FakeScheduler, daemons, fake_scheduler


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with running_jobs(tmp_path) as found:
        yield found


@pytest.fixture
def scheduler() -> Iterator[FakeScheduler]:
    with fake_scheduler() as found:
        yield found


@pytest.fixture
def start(scheduler: FakeScheduler, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with daemons(scheduler, tmp_path) as found:
        yield found
