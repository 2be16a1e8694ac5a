"""A longer search for offsets: the order of blocks is annealed.

Each block has a number; the lowest ones come first wherever `offsets.py` asks for a priority. A
move changes the numbers of one block or two, and the arena that follows is computed anew, in tens
of microseconds for some hundred blocks, by code that numba compiles at its first use. The number of
moves is fixed, so that the same blocks always get the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from oneflow.actors.offsets import Blocks, Ints, Placed, least_offsets, place
from oneflow.core.jit import compiled

Floats = np.ndarray[Any, np.dtype[np.float64]]
Narrow = np.ndarray[Any, np.dtype[np.int32]]
Search = Callable[[Floats, Narrow, Narrow, Narrow, int, int], Floats]

GONE = np.int32(1 << 30)
"""The edge of a block that is placed: beyond every arena that is searched."""

PAIRS = 10_000_000_000
"""Comparisons of two blocks in one search: some seconds."""

MOST_MOVES = 100_000
HOT, COLD = 0.02, 0.001
"""First and last temperature, in parts of the peak of live sizes."""


def search_offsets(blocks: Blocks, most_moves: int = MOST_MOVES) -> Placed:
    """The best arena found from two starts; most_moves: from each of them."""
    areas = blocks.sizes * (blocks.last - blocks.first + 1)
    moves = min(PAIRS // len(areas) ** 2, most_moves)
    found = [least_offsets(blocks)]
    if int(blocks.sizes.sum()) >= GONE:
        return found[0]
    sizes, first, last = (x.astype(np.int32) for x in (blocks.sizes, blocks.first, blocks.last))
    for weights in (areas, blocks.sizes):
        numbers = _annealer()(-np.log(weights), sizes, first, last, blocks.peak, moves)
        found.append(place(blocks, np.argsort(numbers, kind="stable")))
        if found[-1].max_end == blocks.peak:
            break
    return min(found, key=lambda placed: placed.max_end)


def _arena(
    numbers: Floats, sizes: Narrow, first: Narrow, last: Narrow, peak: int, skyline: Ints
) -> tuple[int, float]:
    """Size of the arena, and a cost that also counts all that stands out above the peak."""
    order = np.argsort(numbers)
    sizes, first, last = sizes[order], first[order], last[order]
    edges = np.zeros(order.size, np.int32)
    skyline[:] = 0
    least, most, start = np.int32(sizes.min()), np.int32(0), 0
    for _ in range(order.size):
        while edges[start] == GONE:
            start += 1
        at = start
        while edges[at] >= least:
            at += 1
        end, begin, stop = edges[at] + sizes[at], first[at], last[at]
        most = max(most, end)
        skyline[begin : stop + 1] = end
        edges[at] = GONE
        least = GONE
        for k in range(order.size):  # without branches, so that it becomes vector code
            meets = (first[k] <= stop) & (last[k] >= begin)
            edge = max(edges[k], end) if meets else edges[k]
            edges[k] = edge
            least = min(least, np.int32(edge + sizes[k]))
    above = 0
    for height in skyline:
        above += max(height - peak, 0)
    return most, most + 0.3 * above / skyline.size


_arena_of = _arena
"""The compiled one, once there is a search."""


def _anneal(
    numbers: Floats, sizes: Narrow, first: Narrow, last: Narrow, peak: int, moves: int
) -> Floats:
    """The numbers with the smallest arena that some moves from `numbers` have met."""
    np.random.seed(0)
    n = sizes.size
    skyline = np.zeros(last.max() + 1, np.int64)
    least, cost = _arena_of(numbers, sizes, first, last, peak, skyline)
    best: Floats = numbers.copy()
    tried = numbers.copy()
    for move in range(moves):
        tried[:] = numbers
        for _ in range(1 + int(np.random.exponential(1.0))):
            i, j, kind = np.random.randint(n), np.random.randint(n), np.random.randint(5)
            if kind < 2:
                tried[i] += 0.7 * np.random.standard_normal()
            elif kind < 4:
                tried[i], tried[j] = tried[j], tried[i]
            else:
                tried[i] = tried[j] - 1e-6 * np.random.random()
        arena, new = _arena_of(tried, sizes, first, last, peak, skyline)
        heat = peak * HOT * (COLD / HOT) ** (move / moves)
        if new <= cost or np.random.random() < np.exp((cost - new) / heat):
            numbers[:] = tried
            cost = new
            if arena < least:
                least = arena
                best[:] = tried
                if least == peak:
                    break
    return best


@cache
def _annealer() -> Search:
    """The loop over moves, compiled."""
    global _arena_of
    _arena_of = compiled(_arena)
    made: Search = compiled(_anneal)
    return made
