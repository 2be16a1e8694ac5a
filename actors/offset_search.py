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

from oneflow.actors.offsets import Blocks, Ints, Placed, place
from oneflow.core.jit import compiled

Floats = np.ndarray[Any, np.dtype[np.float64]]

PAIRS = 3_000_000_000
"""Comparisons of two blocks in one search: some seconds."""

MOST_MOVES = 150_000
HOT, COLD = 0.02, 0.001
"""First and last temperature, in parts of the peak of live sizes."""


def search_offsets(blocks: Blocks, most_moves: int = MOST_MOVES) -> Placed:
    """The best arena found from two starts, with so many moves from each at most."""
    areas = blocks.sizes * (blocks.last - blocks.first + 1)
    moves = min(PAIRS // len(areas) ** 2, most_moves)
    found: list[Placed] = []
    for weights in (areas, blocks.sizes):
        numbers = _annealer()(
            -np.log(weights), blocks.sizes, blocks.first, blocks.last, blocks.peak, moves
        )
        found.append(place(blocks, np.argsort(numbers, kind="stable")))
        if found[-1].max_end == blocks.peak:
            break
    return min(found, key=lambda placed: placed.max_end)


def _arena(
    numbers: Floats, sizes: Ints, first: Ints, last: Ints, peak: int, skyline: Ints, work: Ints
) -> tuple[int, float]:
    """Size of the arena, and a cost that also counts all that stands out above the peak."""
    edges, ends, left = work
    for i in range(sizes.size):
        edges[i], ends[i], left[i] = 0, sizes[i], i
    skyline[:] = 0
    most = 0
    for num_left in range(sizes.size, 0, -1):
        least = ends[left[0]]
        for k in range(1, num_left):
            least = min(least, ends[left[k]])
        at = -1
        for k in range(num_left):
            i = left[k]
            if edges[i] < least and (at < 0 or numbers[i] < numbers[left[at]]):
                at = k
        chosen = left[at]
        left[at] = left[num_left - 1]
        end, begin, stop = ends[chosen], first[chosen], last[chosen]
        most = max(most, end)
        skyline[begin : stop + 1] = end
        for k in range(num_left - 1):
            i = left[k]
            if first[i] <= stop and last[i] >= begin and edges[i] < end:
                edges[i], ends[i] = end, end + sizes[i]
    above = 0
    for height in skyline:
        above += max(height - peak, 0)
    return most, most + 0.3 * above / skyline.size


@cache
def _annealer() -> Callable[[Floats, Ints, Ints, Ints, int, int], Floats]:
    """The loop over moves, compiled."""
    arena_of = compiled(_arena)

    def anneal(
        numbers: Floats, sizes: Ints, first: Ints, last: Ints, peak: int, moves: int
    ) -> Floats:
        """The numbers with the smallest arena that some moves from `numbers` have met."""
        np.random.seed(0)
        n = sizes.size
        skyline = np.zeros(last.max() + 1, np.int64)
        work = np.zeros((3, n), np.int64)
        least, cost = arena_of(numbers, sizes, first, last, peak, skyline, work)
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
            arena, new = arena_of(tried, sizes, first, last, peak, skyline, work)
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

    made: Callable[[Floats, Ints, Ints, Ints, int, int], Floats] = compiled(anneal)
    return made
