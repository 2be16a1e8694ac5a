"""Waiting for what another process does."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 120.0
LOOK_S = 0.02


def wait_until(
    is_so: Callable[[], object],
    timeout_s: float = WAIT_S,
    why_not: Callable[[], str] = lambda: "waited too long",
) -> None:
    """Return as soon as `is_so()` is true. why_not: said when it is not in time."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, why_not()
        time.sleep(LOOK_S)
