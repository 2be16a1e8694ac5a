"""What tests of daemons begin with: a scheduler that records, and daemons that join it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .daemon_harness import Running, daemons, fake_scheduler
from .fake_scheduler import FakeScheduler


@pytest.fixture
def scheduler() -> Iterator[FakeScheduler]:
    with fake_scheduler() as found:
        yield found


@pytest.fixture
def start(scheduler: FakeScheduler, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    with daemons(scheduler, tmp_path) as found:
        yield found
