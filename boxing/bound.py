"""The fewest bytes that any way from one layout to another can move, by counting, cell by cell.

A cell is a part of the tensor that no tile of either layout cuts. For one cell, let A addends lie
in the source (A = 1 without partial sums), each at its holders, and let R ranks want the sum. If
A = 1, every reader that holds no copy receives one. If A > 1, the addends have to meet and the sum
has to come to all readers: that joins A holders and R readers in one tree, whose A + R - 1 edges
are one less if a reader holds an addend itself. (Copies of addends could feed several trees, but k
trees have R + k (A - 2) edges: one is never worse.) A partial target splits the addends between
its own addends, the best way of which is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from oneflow.boxing.boxes import check_layout, shard_box, tree_edges
from oneflow.core.op import Box
from oneflow.core.placement import Placement, coordinates
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType

MAX_WAYS = 1 << 16
"""Most ways to split addends between addends; of more, a bound that may be too low is taken."""

_Holders = list[frozenset[int]]


def lower_bound_nbytes(
    type: TensorType,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
) -> int:
    """Bytes that must cross between ranks, over all of them.

    Looks at every cell: meant for tests, benchmarks and the planner view, not for each call.
    Raises SbpError if a layout does not fit the tensor.
    """
    check_layout(type.shape, src_sbp, src_placement)
    check_layout(type.shape, dst_sbp, dst_placement)
    source = _Tiles(type.shape, src_sbp, src_placement)
    target = _Tiles(type.shape, dst_sbp, dst_placement)
    numel = 0
    for cell in _cells(type.shape, [*source.boxes, *target.boxes]):
        size = math.prod(b - a for a, b in zip(cell.starts, cell.stops, strict=True))
        numel += size * _moves(source.holders(cell), target.holders(cell))
    return numel * int(type.dtype.bytes)


class _Tiles:
    """The holders of each tile in one layout."""

    def __init__(self, shape: tuple[int, ...], nd_sbp: NdSbp, placement: Placement) -> None:
        self._held: list[tuple[Box, tuple[int, ...], int]] = []
        for rank, at in zip(placement.rank_ids, coordinates(placement.hierarchy), strict=True):
            addend = tuple(i for s, i in zip(nd_sbp, at, strict=True) if s.is_partial)
            self._held.append((shard_box(shape, nd_sbp, placement, rank), addend, rank))
        self.boxes = list(dict.fromkeys(box for box, _, _ in self._held))

    def holders(self, cell: Box) -> _Holders:
        """The holders of each addend of a cell."""
        found: dict[tuple[int, ...], set[int]] = {}
        for box, addend, rank in self._held:
            if _covers(box, cell):
                found.setdefault(addend, set()).add(rank)
        return [frozenset(ranks) for ranks in found.values()]


def _covers(box: Box, cell: Box) -> bool:
    return all(a <= b for a, b in zip(box.starts, cell.starts, strict=True)) and all(
        a >= b for a, b in zip(box.stops, cell.stops, strict=True)
    )


def _cells(shape: tuple[int, ...], boxes: Sequence[Box]) -> Iterator[Box]:
    """The parts between all the edges of the boxes."""
    intervals = []
    for dim, size in enumerate(shape):
        edges = sorted({0, size, *(b.starts[dim] for b in boxes), *(b.stops[dim] for b in boxes)})
        intervals.append(list(itertools.pairwise(edges)))
    for cell in itertools.product(*intervals):
        yield Box(tuple(a for a, _ in cell), tuple(b for _, b in cell))


def _moves(addends: _Holders, slots: _Holders) -> int:
    """Return how often a cell must be sent, at the least."""
    if len(slots) == 1:
        return tree_edges(addends, slots[0])
    if len(slots) ** len(addends) > MAX_WAYS:
        return sum(min(min(len(s - a), 1) for s in slots) for a in addends)
    return min(
        sum(
            tree_edges([a for a, s in zip(addends, way, strict=True) if s == i], slot)
            for i, slot in enumerate(slots)
        )
        for way in itertools.product(range(len(slots)), repeat=len(addends))
    )
