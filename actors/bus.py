"""The bus by which messages reach actors of other ranks.

A message travels as one number, its code: which register, which slot, and whether it is Ready or
Freed. The receiver looks a code up in its code book, made when the plan is bound. The sender's rank
is known from the way it came.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from oneflow.core.plan import RegisterSpec

_SLOT_BITS = 8


def ready_code(register: RegisterSpec, slot: int) -> int:
    return (register.id << _SLOT_BITS | slot) << 1


def freed_code(register: RegisterSpec, slot: int) -> int:
    return ready_code(register, slot) | 1


def describe_code(code: int) -> str:
    """Describe a message's code for reports."""
    kind = "Freed" if code & 1 else "Ready"
    return f"{kind} of register {code >> (1 + _SLOT_BITS)} slot {(code >> 1) & 255}"


class Bus(Protocol):
    """Between this rank and the others of one job. Messages of one sender arrive in order, each
    exactly once.
    """

    def post(self, rank: int, code: int) -> None:
        """Sends; never blocks."""

    def poll(self) -> list[tuple[int, int]]:
        """(sender, code) of each message that has arrived."""

    def flush(self) -> bool:
        """Send the messages that had to wait for room; True if none waits any more."""

    def wait(self, timeout_s: float) -> None:
        """Returns when something may have arrived, or after `timeout_s`."""

    def watch(self, file: int) -> bool:
        """Let waits end, soon at least, when this file can be read, too. False: it moves no bytes
        between hosts, and kernels need no thread of their own."""

    def close(self) -> None: ...


class InProcessBus:
    """Ranks that live in one process, run in turn by one thread. `inboxes` is shared by all of
    them.
    """

    def __init__(self, rank: int, inboxes: dict[int, deque[tuple[int, int]]]) -> None:
        self._rank = rank
        self._inboxes = inboxes
        inboxes.setdefault(rank, deque())

    def post(self, rank: int, code: int) -> None:
        self._inboxes[rank].append((self._rank, code))

    def poll(self) -> list[tuple[int, int]]:
        inbox = self._inboxes[self._rank]
        arrived = list(inbox)
        inbox.clear()
        return arrived

    def flush(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> None:
        return

    def watch(self, file: int) -> bool:
        return False

    def close(self) -> None:
        return
