"""Admission of peers that join: a bounded number at a time; the others get a time to come again.

A join costs a server many times what a heartbeat costs. After a break of the network all peers come
at once; without a bound each of their joins takes longer than they wait for it, so that all of them
begin anew, and the heartbeats of those that are in wait behind them. With a bound the server's loop
has never more than `MAX_AT_ONCE` joins to serve before the next heartbeat. Those turned away get
moments of their own, `EACH_S` apart: they come back evenly, and keep their connection until then.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oneflow.core.errors import TransportError

MAX_AT_ONCE = 32
EACH_S = 0.01
LEAST_S, MOST_S = 0.2, 60.0  # until a peer comes again
COMING_S = 5.0  # after the last promise: for its join to be done
CROWD_S = 300.0  # the longest that a crowd excuses those who are away
FORGET_S = 30.0  # a join that has neither ended nor failed by then counts no longer


class ComeAgainError(TransportError):
    """Too many join at once. pause_s: when to come again."""

    def __init__(self, pause_s: float) -> None:
        super().__init__(f"many join at once: come again in {pause_s:.1f} s")
        self.pause_s = pause_s


class Admission:
    """The joins that are under way, and the moments promised to those that were turned away."""

    def __init__(
        self, at_once: int = MAX_AT_ONCE, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once, self._now = at_once, now
        self._under_way: dict[int, float] = {}  # number of a join -> when it is forgotten
        self._numbers = itertools.count()
        self._promised = self._crowded_since = -math.inf

    @property
    def is_crowded(self) -> bool:
        """Whether peers that were turned away may still be about to come."""
        now = self._now()
        return now < self._promised + COMING_S and now < self._crowded_since + CROWD_S

    @contextmanager
    def join(self) -> Iterator[None]:
        """Hold a place for one join. Raises ComeAgainError."""
        number = next(self._numbers)
        self._take_place(number)
        try:
            yield
        finally:
            self._under_way.pop(number, None)

    def _take_place(self, number: int) -> None:
        now = self._now()
        if len(self._under_way) >= self._at_once:
            self._under_way = {n: end for n, end in self._under_way.items() if end > now}
        if len(self._under_way) >= self._at_once:
            if now >= self._promised + COMING_S:
                self._crowded_since = now
            earliest = max(self._promised, now + LEAST_S)
            self._promised = min(earliest + EACH_S, now + MOST_S)
            raise ComeAgainError(self._promised - now)
        self._under_way[number] = now + FORGET_S
