"""Whether ranks make the same calls, found out with few round trips.

NCCL cannot say that ranks call different things: it hangs, or mixes their data up. To ask the
others before every call costs more than a small call itself. So a call is compared with theirs
before it starts only if it is the first of its kind here; calls that all ranks have agreed on
before are noted down and compared later, at the latest with the `EVERY`th call. Ranks that stop
agreeing in between are found by those comparisons if both calls end, and by `DeviceWatch` if one
of them never does.
"""

from __future__ import annotations

import json
from collections import deque

import numpy as np

from oneflow.boxing.collectives.base import ADVICE, CallInfo, Collectives, lines_of
from oneflow.core.errors import DesyncError

EVERY = 64
"""Calls between two comparisons, at the most: 1/64 of a round trip of some 15 us each."""

MAX_KNOWN = 4096
_MASK = (1 << 63) - 1


class CallLog:
    """The calls of one rank on one set. guard: the host collectives of the same ranks."""

    def __init__(self, guard: Collectives) -> None:
        self._guard = guard
        self._known: set[int] = set()
        self._digest = 0
        self._recent: deque[tuple[int, int, str]] = deque(maxlen=2 * EVERY)
        self._since = 0
        self.comparisons = 0

    def agree(self, number: int, info: CallInfo) -> None:
        """Notes down the call `number`, before it starts. Raises DesyncError that names the first
        call in which the ranks differ."""
        self._digest = (self._digest * 0x9E3779B97F4A7C15 + info.signature) & _MASK
        self._recent.append((number, info.signature, info.text))
        self._since += 1
        if info.signature not in self._known or self._since >= EVERY:
            self._compare(number)
            if len(self._known) >= MAX_KNOWN:  # ranks that agree forget alike
                self._known.clear()
            self._known.add(info.signature)

    def _compare(self, number: int) -> None:
        self._since = 0
        self.comparisons += 1
        mine = np.array([number, self._digest], np.int64)
        found = self._guard.all_gather(mine, None, "comparison of GPU calls").reshape(-1, 2)
        if (found != mine).any():
            self._raise_first_difference()

    def _raise_first_difference(self) -> None:
        """All ranks come here together."""
        said = self._guard.gather_bytes(json.dumps(list(self._recent)).encode(), "recent GPU calls")
        logs = [{n: (sig, text) for n, sig, text in json.loads(log)} for log in said]
        last = max(max(log, default=0) for log in logs)
        begin = max(min(log, default=0) for log in logs)
        for number in range(begin, last + 1):
            calls = {r: log.get(number) for r, log in zip(self._guard.ranks, logs, strict=True)}
            if len({call and call[0] for call in calls.values()}) > 1:
                raise_difference(
                    number, {r: call[1] if call else "nothing" for r, call in calls.items()}
                )
        raise DesyncError(
            f"the ranks {list(self._guard.ranks)} made different GPU calls more than {EVERY} calls "
            f"ago. {ADVICE}"
        )


def raise_difference(number: int, texts: dict[int, str]) -> None:
    """Raise DesyncError for call `number` with the text of each rank."""
    lines = lines_of(texts, number)
    raise DesyncError(
        f"the ranks {sorted(texts)} make different collective calls (their call {number} on GPUs): "
        f"{lines}. {ADVICE}"
    )
