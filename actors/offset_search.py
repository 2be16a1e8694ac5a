"""A longer search for offsets: the order of blocks is annealed.

A move shifts blocks in the order of priorities from which `offsets.py` starts, or swaps two; all
blocks are then placed anew, in tens of microseconds for some hundred of them. The number of moves
is fixed, so that the same blocks always get the same offsets.
"""

from __future__ import annotations

import math
import random

from oneflow.actors.offsets import ORDERS, Blocks, Ints, Placed, place, placer_of

PAIRS = 10_000_000_000
"""Comparisons of two blocks in one search, which takes a second."""

MOVE_PAIRS = 60_000
"""Comparisons that take as long as a move without them."""

MOST_MOVES = 100_000
HOT, COLD = 0.01, 0.0005
"""First and last temperature, in parts of the peak of live sizes."""

OVER = 3.0
"""Weight, beside the arena itself, of the mean height by which blocks stand out above the peak."""


def search_offsets(blocks: Blocks, most_moves: int = MOST_MOVES) -> Placed:
    """The best arena found from the best of the fixed orders."""
    number, peak = len(blocks.sizes), blocks.peak
    placer = placer_of(blocks.sizes, blocks.first, blocks.last, peak=peak)
    draw = random.Random(0)
    order = min((by(blocks) for by in ORDERS), key=lambda by: placer.place(by)[0])
    moves = min(PAIRS // (number**2 + MOVE_PAIRS), most_moves)

    def cost_of(order: Ints) -> tuple[int, float]:
        arena, over = placer.place(order)
        return arena, arena + OVER * over / number

    arena, cost = cost_of(order)
    least, best = arena, order.copy()
    tried = order.copy()
    for move in range(moves):
        if least == peak:
            break
        tried[:] = order
        _move(tried, draw)
        arena, new = cost_of(tried)
        heat = peak * HOT * (COLD / HOT) ** (move / moves)
        if new <= cost or draw.random() < math.exp((cost - new) / heat):
            order, tried, cost = tried, order, new
            if arena < least:
                least = arena
                best[:] = order
    return place(blocks, best)


def _move(order: Ints, draw: random.Random) -> None:
    """Changes an order in one place, seldom in some: half of the time a block goes before another
    one, else behind one, or two are swapped.
    """
    more = True
    while more:
        kind = draw.random()
        i, j = sorted((int(draw.random() * len(order)), int(draw.random() * len(order))))
        if kind < 0.5:
            block = order[j]
            order[i + 1 : j + 1] = order[i:j]
            order[i] = block
        elif kind < 0.7:
            block = order[i]
            order[i:j] = order[i + 1 : j + 1]
            order[j] = block
        else:
            order[i], order[j] = order[j], order[i]
        more = draw.random() < 0.3
