"""Offsets of blocks below a given height, or the answer that none exist. Needs numba.

Every placement can be pushed down until each block lies on another one or on the floor, and its
blocks can be listed by rising offsets (Moffitt, ASPLOS 2023). So blocks are placed in that order,
each as low as those below it allow, and a choice that cannot be completed is taken back. A state is
given up as soon as the lowest edge at a moment and the sizes of the blocks to come exceed the
height. Moments that no block to come crosses part the rest, each part of which is then alone.
"""

from __future__ import annotations

import numpy as np

from oneflow.actors.offsets import Blocks, Ints
from oneflow.core.jit import compiled

NONE, FOUND, UNKNOWN = 0, 1, -1
_FAR = 1 << 61


def fit(blocks: Blocks, order: Ints, height: int, most_work: int) -> tuple[int, Ints, int]:
    """Look for offsets below `height`, and try blocks that `order` lists first before others.

    most_work: the search ends when it has looked at so many blocks, again in each state.
    Returns NONE, FOUND or UNKNOWN, the offsets, and the work done.
    """
    sizes, first, last = (
        np.ascontiguousarray(x[order], np.int64) for x in (blocks.sizes, blocks.first, blocks.last)
    )
    moments = int(last.max()) + 1
    edges, placed = np.zeros((2, len(order)), np.int64)
    floors, sums = np.empty((2, moments), np.int64)
    left = np.array([most_work])
    members = np.arange(len(order))
    answer = _fit(
        members, 0, moments, 0, -1, height, left, sizes, first, last, edges, placed, floors, sums
    )
    offsets = np.zeros(len(order), np.int64)
    offsets[order] = placed
    return int(answer), offsets, most_work - int(left[0])


def _search(
    members: Ints,
    begin: int,
    end: int,
    level: int,
    after: int,
    height: int,
    left: Ints,
    sizes: Ints,
    first: Ints,
    last: Ints,
    edges: Ints,
    offsets: Ints,
    floors: Ints,
    sums: Ints,
) -> int:
    """Place the blocks of one part. begin, end: its moments. level, after: the offset of the block
    that was placed last, and the block. edges: where each block would lie now.
    """
    left[0] -= len(members)
    if left[0] < 0:
        return UNKNOWN
    floors[begin:end] = _FAR
    sums[begin:end] = 0
    lowest = _FAR
    for block in members:
        lies = max(edges[block], level)
        if lies + sizes[block] > height:
            return NONE
        for s in range(first[block], last[block] + 1):
            sums[s] += sizes[block]
            floors[s] = min(floors[s], lies)
        lowest = min(lowest, edges[block] + sizes[block])
    for s in range(begin, end):
        if sums[s] and sums[s] + floors[s] > height:
            return NONE
    saved = edges[members]
    choices = np.empty(len(members), np.int64)  # blocks that may come next, the lowest first
    count = 0
    for block in members:
        edge = edges[block]
        if edge < lowest and (edge > level or (edge == level and block > after)):
            at = count
            while at > 0 and edges[choices[at - 1]] > edge:
                choices[at] = choices[at - 1]
                at -= 1
            choices[at] = block
            count += 1
    for block in choices[:count]:
        edge = offsets[block] = edges[block]
        for other in members:
            if first[other] <= last[block] and last[other] >= first[block]:
                edges[other] = max(edges[other], edge + sizes[block])
        rest = members[members != block]
        crossing = np.zeros(end - begin, np.int64)
        for other in rest:
            crossing[first[other] - begin] += 1
            crossing[last[other] - begin] -= 1
        answer, live, start = FOUND, 0, begin
        for s in range(begin, end):
            live += crossing[s - begin]
            if live == 0:
                part = rest[(first[rest] >= start) & (last[rest] <= s)]
                if len(part):
                    answer = _fit(
                        part,
                        start,
                        s + 1,
                        edge,
                        block,
                        height,
                        left,
                        sizes,
                        first,
                        last,
                        edges,
                        offsets,
                        floors,
                        sums,
                    )
                if answer != FOUND:
                    break
                start = s + 1
        if answer != NONE:
            return answer
        edges[members] = saved
    return NONE


_fit = compiled(_search)
