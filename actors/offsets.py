"""Offsets of blocks that live for a while, in an arena as small as possible.

A block may lie on another one or beside it in time. The skyline is the upper edge of the placed
blocks at each moment; a block comes to rest on the highest edge within its life. Of all blocks that
would come to rest so low that no other one fits below them, the next one placed is the first by a
fixed priority: the area (size times life) is the best single one for training graphs, whose lives
are nested. The space below a block is lost, so this rule, of MiniMalloc (Moffitt, ASPLOS 2023),
leaves none that another block could have used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]

TOGETHER = 8000
"""Blocks that are placed in one go: its time grows with the square of their number. Further ones
stand on the skyline of those before."""

FEW = 8000
"""Number of blocks up to which every order is tried."""


@dataclass(frozen=True)
class Blocks:
    """sizes: in any unit, > 0.  first, last: moments at which each is live, counted from 0 without
    gaps.
    """

    sizes: Ints
    first: Ints
    last: Ints

    @classmethod
    def of(cls, blocks: Sequence[tuple[int, int, int]]) -> Blocks:
        """Blocks of (size, first, last). Only moments at which one begins count."""
        sizes, first, last = np.array(blocks, np.int64).reshape(-1, 3).T
        moments = np.array(sorted(set(first.tolist())), np.int64)  # np.unique imports masked arrays
        first = np.searchsorted(moments, first)
        return cls(sizes.copy(), first, np.searchsorted(moments, last, "right") - 1)

    @cached_property
    def live(self) -> Ints:
        """Sum of sizes at each moment."""
        changes = np.zeros(int(self.last.max()) + 2, np.int64)
        np.add.at(changes, self.first, self.sizes)
        np.add.at(changes, self.last + 1, -self.sizes)
        return np.cumsum(changes)[:-1]

    @property
    def peak(self) -> int:
        """The least size of an arena."""
        return int(self.live.max())


@dataclass(frozen=True)
class Placed:
    """Offsets of all blocks, and the end of the last."""

    offsets: Ints
    max_end: int


def _by_area(blocks: Blocks) -> Ints:
    return np.argsort(-blocks.sizes * (blocks.last - blocks.first + 1), kind="stable")


def _by_size(blocks: Blocks) -> Ints:
    return np.lexsort((blocks.first - blocks.last, -blocks.sizes))


def _by_life(blocks: Blocks) -> Ints:
    return np.lexsort((-blocks.sizes, blocks.first - blocks.last))


def highest(heights: Ints, first: Ints, last: Ints) -> Ints:
    """The highest of each range of moments."""
    bounds = np.stack((first, last + 1), 1).ravel()
    return np.maximum.reduceat(np.append(heights, 0), bounds)[::2]


def _by_crowd(blocks: Blocks) -> Ints:
    """Those first that live through the most crowded moment, the largest areas before others."""
    crowd = highest(blocks.live, blocks.first, blocks.last)
    return np.lexsort((-blocks.sizes * (blocks.last - blocks.first + 1), -crowd))


Order = Callable[[Blocks], Ints]
ORDERS: tuple[Order, ...] = (_by_area, _by_size, _by_life, _by_crowd)
"""Priorities, in the order in which they are tried."""


def least_offsets(blocks: Blocks, orders: Sequence[Order] = ORDERS) -> Placed:
    """The best of some orders; the first one that reaches the peak of live sizes ends it."""
    found: Placed | None = None
    for order in orders if len(blocks.sizes) <= FEW else orders[:1]:
        placed = place(blocks, order(blocks))
        if found is None or placed.max_end < found.max_end:
            found = placed
        if found.max_end == blocks.peak:
            break
    assert found is not None
    return found


def place(blocks: Blocks, order: Ints) -> Placed:
    """Place all blocks; `order` lists them by priority."""
    from oneflow.kernels.native.placing import offsets_of  # llvmlite takes a moment to import

    offsets = np.zeros(len(order), np.int64)
    skyline = np.zeros(len(blocks.live), np.int64)
    for begin in range(0, len(order), TOGETHER):
        some = order[begin : begin + TOGETHER]
        sizes, first, last = blocks.sizes[some], blocks.first[some], blocks.last[some]
        edges = highest(skyline, first, last) if begin else None
        offsets[some] = offsets_of(sizes, first, last, edges)
        ends = offsets[some] + sizes
        for i in np.argsort(ends).tolist() if len(order) > TOGETHER else ():
            skyline[first[i] : last[i] + 1] = ends[i]
    return Placed(offsets, int((offsets + blocks.sizes).max()))
