"""Mailboxes in shared memory: how messages reach actors of other ranks of this host.

Every rank owns one page that the others map:

    header            that of all pages of ranks (see `rank_pages`): the owner sleeps on word 0,
                      which is 1 while it does or is about to
    rings             one for each sender: [written, read, SLOTS messages]; only the sender writes
                      `written` and the messages, only the owner writes `read`
    registers         the owner's registers that others read in place

A ring cannot overflow for long: a sender keeps messages that do not fit and sends them later.
Waking: the sender writes its message, then looks whether the owner sleeps; the owner says that it
sleeps, then looks for messages. With a full fence between the two steps on either side, one of them
sees the other.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

import numpy as np

from oneflow.actors.memory import aligned
from oneflow.boxing.transport.pages import SharedPage
from oneflow.boxing.transport.rank_pages import EVENT, WOKEN_AT, RankPages
from oneflow.boxing.transport.waking import QUIET_SPIN_S, full_fence, futex_wait, futex_wake
from oneflow.core.config import current_config
from oneflow.core.metrics import METRICS

RING_SLOTS = 510
_RING_WORDS = RING_SLOTS + 2  # a multiple of a cache line
_MESSAGE_NBYTES = 8


def areas_nbytes(num_ranks: int, register_nbytes: int) -> int:
    """Size of the areas in one rank's page: rings and registers."""
    return _rings_nbytes(num_ranks) + aligned(register_nbytes)


def _rings_nbytes(num_ranks: int) -> int:
    return aligned(num_ranks * _RING_WORDS * 8)


class SharedMemoryBus:
    """Messages between the ranks of `pages`, whose areas have the size that `areas_nbytes` says."""

    def __init__(self, pages: RankPages) -> None:
        self._my_page = pages.mine
        self._mine = pages.mine.words
        first = pages.areas_at // 8
        self._senders = [
            (r, first + i * _RING_WORDS) for i, r in enumerate(pages.ranks) if r != pages.rank
        ]
        self._read = dict.fromkeys(pages.ranks, 0)
        self._out = {
            r: _Outbox(page, first + pages.index * _RING_WORDS)
            for r, page in pages.by_rank.items()
            if r != pages.rank
        }
        self._stuck: set[int] = set()
        self._spin_s = pages.spin_s(current_config().spin_s)

    def post(self, rank: int, code: int) -> None:
        outbox = self._out[rank]
        METRICS.message_sent("shm", _MESSAGE_NBYTES)
        if not outbox.send(code):
            self._stuck.add(rank)

    def poll(self) -> list[tuple[int, int]]:
        arrived: list[tuple[int, int]] = []
        words, read = self._mine, self._read
        for sender, base in self._senders:
            done = read[sender]
            written = words[base]
            while done < written:
                arrived.append((sender, words[base + 2 + done % RING_SLOTS]))
                done += 1
            if done != read[sender]:
                read[sender] = words[base + 1] = done
        if self._stuck:
            self.flush()
        if arrived:
            METRICS.messages_taken("shm", len(arrived), len(arrived) * _MESSAGE_NBYTES)
        return arrived

    def flush(self) -> bool:
        if self._stuck:
            self._stuck = {r for r in self._stuck if not self._out[r].flush()}
        return not self._stuck

    def _has_mail(self) -> bool:
        words, read = self._mine, self._read
        return any(words[base] != read[sender] for sender, base in self._senders)

    def wait(self, timeout_s: float) -> None:
        """Spins for a short while, then sleeps until a sender wakes this rank."""
        now = time.perf_counter()
        deadline, patience = now + self._spin_s, now + QUIET_SPIN_S
        while now < deadline:
            if self._has_mail():
                return
            if now > patience:
                os.sched_yield()
            now = time.perf_counter()
        if self._stuck:
            return  # somebody's ring is full: come back at once and try again
        words = self._mine
        words[WOKEN_AT] = 0
        words[EVENT] = 1
        full_fence()
        if not self._has_mail():
            futex_wait(self._my_page, EVENT, 1, timeout_s)
            posted = words[WOKEN_AT]
            if posted:  # the clock is one for all processes of a host
                seconds = (time.monotonic_ns() - int(posted)) * 1e-9
                METRICS.message_latency_seconds["shm"].observe(max(seconds, 0.0))
        words[EVENT] = 0

    def watch(self, file: int) -> bool:
        return False

    def close(self) -> None:
        self._out.clear()
        self._senders = []


class _Outbox:
    """The sender's side of one ring in somebody else's page."""

    __slots__ = ("_base", "_page", "_waiting", "_words", "_written")

    def __init__(self, page: SharedPage, base: int) -> None:
        self._page = page
        self._words = page.words
        self._base = base
        self._written = 0
        self._waiting: deque[int] = deque()

    def send(self, code: int) -> bool:
        """False if it must wait for room."""
        if self._waiting:
            self._waiting.append(code)
            return self.flush()
        return self._put(code)

    def flush(self) -> bool:
        """Send the waiting messages; True if none waits any more."""
        waiting = self._waiting
        while waiting:
            code = waiting.popleft()
            if not self._has_room():
                waiting.appendleft(code)
                return False
            self._put(code)
        return True

    def _has_room(self) -> bool:
        return bool(self._written - self._words[self._base + 1] < RING_SLOTS)

    def _put(self, code: int) -> bool:
        words, base = self._words, self._base
        if not self._has_room():
            self._waiting.append(code)
            return False
        words[base + 2 + self._written % RING_SLOTS] = code
        self._written += 1
        words[base] = self._written  # after the message: x86 keeps the order of stores
        full_fence()
        if words[EVENT]:
            words[WOKEN_AT] = time.monotonic_ns()  # only here: to wake costs far more than this
            words[EVENT] = 0
            futex_wake(self._page, EVENT)
        return True


def register_bytes(pages: RankPages, rank: int) -> np.ndarray[Any, Any]:
    """The registers in the page of a rank, as uint8."""
    start = pages.areas_at + _rings_nbytes(len(pages.ranks))
    array: np.ndarray[Any, Any] = pages.by_rank[rank].bytes[start:]
    return array
