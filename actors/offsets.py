"""Offsets of blocks that live for a while, in an arena as small as possible.

A block may lie on another one or beside it in time. The skyline is the upper edge of what is placed
at each moment; a block comes to rest on the highest edge within its life. Of all blocks that would
come to rest so low that no other one fits below them, the next one placed is the first by a fixed
priority: the area (size times life) is the best single one for training graphs, whose lives are
nested. The space below a block is lost, so this rule, of MiniMalloc (Moffitt, ASPLOS 2023), leaves
none that another block could have used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]

PLACED = np.iinfo(np.int64).max // 4
"""An offset beyond all others: of a block that needs no place any more."""

TOGETHER = 8000
"""Blocks that are placed in one go: its time grows with the square of their number. Further ones
stand on the skyline of those before."""

FEW = 4096
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
        moments = np.unique(first)
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


def _by_crowd(blocks: Blocks) -> Ints:
    """Those first that live through the most crowded moment, the largest areas before others."""
    ranges = zip(blocks.first.tolist(), blocks.last.tolist(), strict=True)
    crowd = np.array([blocks.live[a : b + 1].max() for a, b in ranges])
    return np.lexsort((-blocks.sizes * (blocks.last - blocks.first + 1), -crowd))


ORDERS: tuple[Callable[[Blocks], Ints], ...] = (_by_area, _by_size, _by_crowd, _by_life)
"""Priorities, in the order in which they are tried."""


def least_offsets(blocks: Blocks) -> Placed:
    """The best of several orders; the first one that reaches the peak of live sizes ends it."""
    orders = ORDERS if len(blocks.sizes) <= FEW else ORDERS[:1]
    found: Placed | None = None
    for order in orders:
        placed = place(blocks, order(blocks))
        if found is None or placed.max_end < found.max_end:
            found = placed
        if found.max_end == blocks.peak:
            break
    assert found is not None
    return found


def place(blocks: Blocks, order: Ints) -> Placed:
    """Place all blocks; `order` lists them by priority."""
    sizes, first, last = blocks.sizes[order], blocks.first[order], blocks.last[order]
    skyline = np.zeros(len(blocks.live), np.int64)
    placed = np.zeros(len(order), np.int64)
    for begin in range(0, len(order), TOGETHER):
        some = slice(begin, begin + TOGETHER)
        edges = np.zeros(len(sizes[some]), np.int64)
        if begin:
            ranges = zip(first[some].tolist(), last[some].tolist(), strict=True)
            edges[:] = [skyline[a : b + 1].max() for a, b in ranges]
        placed[some] = _place_together(sizes[some], first[some], last[some], edges)
        for i in (begin + np.argsort(placed[some])).tolist() if len(order) > TOGETHER else ():
            skyline[first[i] : last[i] + 1] = placed[i] + sizes[i]
    offsets = np.zeros(len(order), np.int64)
    offsets[order] = placed
    return Placed(offsets, int((placed + sizes).max()))


def _place_together(sizes: Ints, first: Ints, last: Ints, edges: Ints) -> Ints:
    """edges: the offset at which each block would come to rest; overwritten."""
    offsets = np.zeros(len(sizes), np.int64)
    left = np.arange(len(sizes))
    ends = edges + sizes
    while len(left):
        for _ in range((len(left) + 1) // 2):
            i = int((edges < ends.min()).argmax())
            end = ends[i]
            offsets[left[i]] = edges[i]
            edges[i] = ends[i] = PLACED
            raised = ((first <= last[i]) & (last >= first[i]) & (edges < end)).nonzero()[0]
            edges[raised] = end
            ends[raised] = sizes[raised] + end
        keep = edges < PLACED
        sizes, first, last = sizes[keep], first[keep], last[keep]
        edges, ends, left = edges[keep], ends[keep], left[keep]
    return offsets
