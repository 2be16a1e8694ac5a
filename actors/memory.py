"""The plan of memory: offsets of values in slots, of slots in arenas, of temporaries in scratch
memory.

All sizes are in bytes and aligned to 64 (a cache line, and what BLAS likes).
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

ALIGNMENT = 64
MANY = 3000


def aligned(nbytes: int) -> int:
    return (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def aligned_buffer(nbytes: int) -> np.ndarray[Any, Any]:
    """Zeroed uint8 memory that starts at a multiple of 64."""
    raw = np.zeros(nbytes + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes]


@dataclass(frozen=True)
class Lifetime:
    """A temporary: nbytes, live from the end of step `first` to the end of step `last` of a
    straight-line program.
    """

    key: int
    nbytes: int
    first: int
    last: int


def plan_offsets(lifetimes: Iterable[Lifetime]) -> tuple[dict[int, int], int]:
    """Offset of every temporary, and the size of the arena they need.

    Greedy by size, first gap that fits best (Pisarchyk and Lee, arXiv 2001.03288). Temporaries that
    live at the same time never overlap. Compared with `lower_bound`, the peak of live bytes, it is
    usually exact for training graphs. Its time grows with the square of their number, so many are
    placed in the order of time instead.
    """
    lifetimes = list(lifetimes)
    if len(lifetimes) > MANY:
        return _in_order_of_time(lifetimes)
    placed: list[tuple[int, int, Lifetime]] = []  # offset, end, what; sorted by offset
    offsets: dict[int, int] = {}
    total = 0
    for item in sorted(lifetimes, key=lambda t: (-t.nbytes, t.first, t.key)):
        size = aligned(item.nbytes)
        offset = _best_gap(placed, item, size)
        offsets[item.key] = offset
        total = max(total, offset + size)
        _insert(placed, (offset, offset + size, item))
    return offsets, total


def _in_order_of_time(lifetimes: list[Lifetime]) -> tuple[dict[int, int], int]:
    """Each takes the smallest free block that is large enough, or new memory at the end; freed
    neighbours are joined.
    """
    offsets: dict[int, int] = {}
    free: list[tuple[int, int]] = []  # offset, size; sorted by offset
    ending: list[tuple[int, int, int]] = []  # last, offset, size
    total = 0
    for item in sorted(lifetimes, key=lambda t: (t.first, -t.nbytes, t.key)):
        while ending and ending[0][0] < item.first:
            _, offset, size = heapq.heappop(ending)
            _give_back(free, offset, size)
        size = aligned(item.nbytes)
        fits = [i for i, (_, room) in enumerate(free) if room >= size]
        if fits:
            best = min(fits, key=lambda i: free[i][1])
            offset, room = free.pop(best)
            if room > size:
                bisect.insort(free, (offset + size, room - size))
        else:
            offset, total = total, total + size
        offsets[item.key] = offset
        heapq.heappush(ending, (item.last, offset, size))
    return offsets, total


def _give_back(free: list[tuple[int, int]], offset: int, size: int) -> None:
    at = bisect.bisect(free, (offset, size))
    if at < len(free) and free[at][0] == offset + size:
        size += free.pop(at)[1]
    if at and sum(free[at - 1]) == offset:
        before, room = free.pop(at - 1)
        offset, size, at = before, room + size, at - 1
    free.insert(at, (offset, size))


def _best_gap(placed: list[tuple[int, int, Lifetime]], item: Lifetime, size: int) -> int:
    best, best_gap, end = -1, -1, 0
    for offset, stop, other in placed:
        if other.last < item.first or item.last < other.first:
            continue
        gap = offset - end
        if gap >= size and (best < 0 or gap < best_gap):
            best, best_gap = end, gap
        end = max(end, stop)
    return best if best >= 0 else end


def _insert(placed: list[tuple[int, int, Lifetime]], entry: tuple[int, int, Lifetime]) -> None:
    bisect.insort(placed, entry, key=lambda e: e[0])


def lower_bound(lifetimes: Iterable[Lifetime]) -> int:
    """Peak of live bytes over time: no placement can need less."""
    changes: dict[int, int] = {}
    for item in lifetimes:
        size = aligned(item.nbytes)
        changes[item.first] = changes.get(item.first, 0) + size
        changes[item.last + 1] = changes.get(item.last + 1, 0) - size
    live = peak = 0
    for time in sorted(changes):
        live += changes[time]
        peak = max(peak, live)
    return peak
