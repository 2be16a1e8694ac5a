"""Mailboxes in shared memory: how messages reach actors of other ranks of this host.

Every rank owns one block of memory that the others map:

    word 0            1 while the owner sleeps (or is about to), else 0; what sleepers wait on
    word 2            when a message was posted that woke the owner, in ns; 0: read already
    word 1            GPU registers only: 1 once the owner maps no peer's memory any more
    (cuda_link.py)
    rings             one for each sender: [written, read, SLOTS messages]; only the sender writes
    `written` and the messages, only the
                      owner writes `read`
    registers         the owner's registers that others read in place

A ring cannot overflow for long: a sender keeps what does not fit and sends it later. Waking: the
sender writes its message, then looks whether the owner sleeps; the owner says that it sleeps, then
looks for messages. With a full fence between the two steps on either side, one of them sees the
other.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Any

import numpy as np

from oneflow.actors.memory import ALIGNMENT, aligned
from oneflow.boxing.shared import (
    QUIET_SPIN_S,
    SharedPage,
    full_fence,
    futex_wait,
    futex_wake,
)
from oneflow.core.config import current_config
from oneflow.core.metrics import METRICS

RING_SLOTS = 510
_RING_WORDS = RING_SLOTS + 2  # a multiple of a cache line
_HEADER_WORDS = ALIGNMENT // 8
_MESSAGE_NBYTES = 8
_WOKEN_AT = 2  # a word of the header


def block_nbytes(num_ranks: int, register_nbytes: int) -> int:
    """Size of one rank's block."""
    return aligned((_HEADER_WORDS + num_ranks * _RING_WORDS) * 8) + aligned(register_nbytes)


def registers_offset(num_ranks: int) -> int:
    return aligned((_HEADER_WORDS + num_ranks * _RING_WORDS) * 8)


class SharedMemoryBus:
    """ranks: of the job, ascending; their blocks in the same order."""

    def __init__(self, rank: int, ranks: list[int], blocks: list[SharedPage]) -> None:
        self._ranks = ranks
        me = ranks.index(rank)
        self._mine = blocks[me].words
        self._my_page = blocks[me]
        self._senders = [
            (r, _HEADER_WORDS + i * _RING_WORDS) for i, r in enumerate(ranks) if r != rank
        ]
        self._read = dict.fromkeys(ranks, 0)
        self._out = {
            r: _Outbox(blocks[i], _HEADER_WORDS + me * _RING_WORDS)
            for i, r in enumerate(ranks)
            if r != rank
        }
        self._stuck: set[int] = set()
        self._spin_s = current_config().spin_s if len(ranks) <= _num_cores() else 0.0
        self._counters = METRICS.transport("shm")
        self._counters.message_nbytes = _MESSAGE_NBYTES
        self._blocks = blocks

    def post(self, rank: int, code: int) -> None:
        outbox = self._out[rank]
        self._counters.sent += 1
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
            self._stuck = {r for r in self._stuck if not self._out[r].flush()}
        if arrived:
            self._counters.took(len(arrived))
        return arrived

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
        words[_WOKEN_AT] = 0
        words[0] = 1
        full_fence()
        if not self._has_mail():
            futex_wait(self._my_page, 0, 1, timeout_s)
            posted = words[_WOKEN_AT]
            if posted:  # the clock is one for all processes of a host
                seconds = (time.monotonic_ns() - int(posted)) * 1e-9
                self._counters.latency.observe(max(seconds, 0.0))
        words[0] = 0

    def close(self) -> None:
        self._out.clear()
        self._senders = []


def _num_cores() -> int:
    """The cores that ranks of this host have, as far as this one knows: one that is pinned to a
    core has peers on others. More ranks than cores must not spin: it keeps a core from whom they
    wait for (a small step of four ranks on two cores took 1.3 ms instead of 0.5)."""
    mine = len(os.sched_getaffinity(0))
    return mine if mine > 1 else os.cpu_count() or 1


class _Outbox:
    """The sender's side of one ring in somebody else's block."""

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
        """Sends what waits; True if nothing waits any more."""
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
        if words[0]:
            words[_WOKEN_AT] = time.monotonic_ns()  # only here: to wake costs far more than this
            words[0] = 0
            futex_wake(self._page, 0)
        return True


def register_bytes(page: SharedPage, num_ranks: int) -> np.ndarray[Any, Any]:
    """The registers in a block, as uint8."""
    array: np.ndarray[Any, Any] = page.bytes[registers_offset(num_ranks) :]
    return array
