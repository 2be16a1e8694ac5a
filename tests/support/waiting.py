"""Waiting for another thread, task or process; the only place where tests sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

WAIT_S = 180.0  # a net: a busy machine takes half a minute to start one interpreter
CALL_S = 60.0  # a net for one call that a server answers at once
LOOK_S = 0.005

T = TypeVar("T")


class SceneError(AssertionError):
    """A scene did not go as it has to."""


def wait_until(
    look: Callable[[], T], what: str | Callable[[], str] = "", timeout_s: float = WAIT_S
) -> T:
    """Return the first true value that `look` finds. what: the event that is waited for, or was
    seen instead.
    """
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            said = what if isinstance(what, str) else what()
            raise SceneError(f"waited {timeout_s:g} s in vain: {said}")
        time.sleep(LOOK_S)
    return found


async def until(look: Callable[[], T], timeout_s: float = WAIT_S) -> T:
    """Return the first true value that `look` finds, while other tasks go on."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        assert time.monotonic() < deadline, "waited too long"
        await asyncio.sleep(LOOK_S)
    return found


def be_late(seconds: float) -> None:
    """Do nothing for a time: for scenes with somebody late in them, never as a wait."""
    time.sleep(seconds)
