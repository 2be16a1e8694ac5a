"""A longer search for offsets: the order of blocks is annealed.

A move changes the order of priorities from which `offsets.py` starts: half of the time a block that
stands out above the peak of live sizes goes before one that it meets, else two blocks are drawn.
All blocks are then placed anew, in tens of microseconds for some hundred of them. The number of
moves is fixed, so that the same blocks always get the same offsets.
"""

from __future__ import annotations

import math
import random

from oneflow.actors.offsets import ORDERS, Blocks, Ints, Placed, place, placer_of

PAIRS = 7_000_000_000
"""Comparisons of two blocks in one search, which takes 0.7 s."""

MOVE_PAIRS = 120_000
"""Comparisons that take as long as a move without them."""

MOST_MOVES = 100_000
HOT, COLD = 0.005, 0.0003
"""First and last temperature, in parts of the peak of live sizes."""

OVER = 3.0
"""Weight, beside the arena itself, of the mean height by which blocks stand out above the peak."""


def search_offsets(blocks: Blocks, most_moves: int = MOST_MOVES) -> Placed:
    """The best arena found from the best of the fixed orders."""
    sizes, number, peak = blocks.sizes, len(blocks.sizes), blocks.peak
    placer = placer_of(sizes, blocks.first, blocks.last, peak=peak)
    draw = random.Random(0)
    order = min((by(blocks) for by in ORDERS), key=lambda by: placer.place(by)[0])
    moves = min(PAIRS // (number**2 + MOVE_PAIRS), most_moves)

    def cost_of(order: Ints) -> tuple[int, float]:
        arena, over = placer.place(order)
        return arena, arena + OVER * over / number

    arena, cost = cost_of(order)
    ends = placer.offsets + sizes
    least, best = arena, order.copy()
    for move in range(moves):
        if least == peak:
            break
        tried = order.copy()
        if draw.random() < 0.5:
            _advance_high(tried, blocks, ends, peak + draw.random() * (arena - peak), draw)
        else:
            _change_any(tried, draw)
        new_arena, new = cost_of(tried)
        heat = peak * HOT * (COLD / HOT) ** (move / moves)
        if new <= cost or draw.random() < math.exp((cost - new) / heat):
            order, cost, arena = tried, new, new_arena
            ends = placer.offsets + sizes
            if arena < least:
                least, best = arena, order
    return place(blocks, best)


def _advance_high(
    order: Ints, blocks: Blocks, ends: Ints, limit: float, draw: random.Random
) -> None:
    """Let a block that ends above `limit`, which one does, go before an earlier one that it meets,
    or take its place.
    """
    high = (ends[order] > limit).nonzero()[0]
    i = int(draw.choice(high))
    block, before = order[i], order[:i]
    meets = blocks.first[before] <= blocks.last[block]
    meets &= blocks.last[before] >= blocks.first[block]
    found = meets.nonzero()[0]
    if not len(found):
        return
    j = int(draw.choice(found))
    if draw.random() < 0.5:
        _shift_later(order, j, i)
    else:
        order[i], order[j] = order[j], order[i]


def _change_any(order: Ints, draw: random.Random) -> None:
    """Let a block go before another one or behind it, or swap the two."""
    kind = draw.random()
    i, j = sorted((int(draw.random() * len(order)), int(draw.random() * len(order))))
    if kind < 0.25:
        _shift_later(order, i, j)
    elif kind < 0.5:
        block = order[i]
        order[i:j] = order[i + 1 : j + 1]
        order[j] = block
    else:
        order[i], order[j] = order[j], order[i]


def _shift_later(order: Ints, i: int, j: int) -> None:
    """Put the block at j before the one at i <= j."""
    block = order[j]
    order[i + 1 : j + 1] = order[i:j]
    order[i] = block
