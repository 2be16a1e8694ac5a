"""A longer search for offsets: which of the lower heights can hold all blocks?

Each try is a systematic search below one height, `offset_fit.py`, with one
priority of blocks and a limited amount of work. Its time has a heavy tail: a search that is not
done soon made an early choice that is bad, and takes it back late, while another height or priority
may succeed at once. A low height is not harder than a high one, because more states are given up
early. So rounds of tries go over heights and priorities, each round with more work for a try. A
height that is shown to be too low raises the least one. Work is counted, so that the same blocks
always get the same offsets.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from oneflow.actors.offsets import Blocks, Ints, Placed, highest, least_offsets

WORK = 60_000_000
"""Blocks that one search looks at, again in each state, which takes 0.5 to 2 s."""

FIRST_WORK = 3
"""Work of a try of the first round, in squares of the number of blocks: its way down needs one."""

MORE_WORK = 4
"""Work of a try over that in the round before."""

HEIGHTS = 8
"""Heights that are tried in each round."""

PRIORITIES = (
    "crowd life area",
    "meets life area",
    "crowd area life",
    "life crowd area",
    "meets area life",
    "life area crowd",
    "meets crowd life",
)
"""Greater values go first; a value decides where those before it are equal. crowd: the peak of live
sizes within the block's life. meets: number of blocks that live with it."""


def search_offsets(blocks: Blocks, most_work: int = WORK) -> Placed:
    """The best arena found, at least as good as that of `least_offsets`."""
    from oneflow.actors.offset_fit import FOUND, NONE, fit  # numba takes a moment to import

    found, least, left = least_offsets(blocks), blocks.peak, most_work
    orders = _orders(blocks)
    work = FIRST_WORK * len(blocks.sizes) ** 2
    while True:
        for place, order in product(range(HEIGHTS), orders):
            if least >= found.max_end or left <= 0:
                return found
            height = least + (found.max_end - 1 - least) * place // HEIGHTS
            answer, offsets, done = fit(blocks, order, height, min(work, left))
            if answer == FOUND:
                found = Placed(offsets, int((offsets + blocks.sizes).max()))
            elif answer == NONE:
                least = height + 1
            left -= done
        work *= MORE_WORK


def _orders(blocks: Blocks) -> list[Ints]:
    life = blocks.last - blocks.first + 1
    meets = (blocks.first[:, None] <= blocks.last) & (blocks.last[:, None] >= blocks.first)
    values = {
        "life": life,
        "area": blocks.sizes * life,
        "crowd": highest(blocks.live, blocks.first, blocks.last),
        "meets": meets.sum(1),
    }
    return [np.lexsort([-values[key] for key in reversed(keys.split())]) for keys in PRIORITIES]
