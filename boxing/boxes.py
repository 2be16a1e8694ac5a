"""The boxes of a global tensor that ranks hold, and those they must read to change its layout.

Pure functions of shapes, SBP and placements; every rank gets the same answers, so nobody has to ask
anybody.

Words: the *tiles* of a layout are the distinct parts that its split axes make; the *addend* of a
rank says which summand of the partial sums it holds (0 if there are none); ranks that differ only
along broadcast axes hold copies.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from oneflow.core.errors import SbpError
from oneflow.core.op import Box
from oneflow.core.placement import Placement, coordinates
from oneflow.core.sbp import NdSbp, Sbp, check_fits, nd_sbp_str
from oneflow.core.tensor_type import TensorType

Shape = tuple[int, ...]
MAX_WAYS = 1 << 10
"""Most ways to divide addends among addends that are all looked at."""


@dataclass(frozen=True)
class Pull:
    """One read: `source_slices` of the shard of `source_rank` go to `target_slices` of one's own.

    Slices are local to the shards and of equal shape; steps of the target are positive. add: add to
    the target instead of overwriting it.
    """

    source_rank: int
    source_slices: tuple[slice, ...]
    target_slices: tuple[slice, ...]
    add: bool

    @property
    def numel(self) -> int:
        """Number of elements read."""
        return math.prod(-((s.start - s.stop) // (s.step or 1)) for s in self.target_slices)


def balanced_part(size: int, parts: int, index: int) -> tuple[int, int]:
    """[start, stop) of part `index` of `parts`; the first parts take the remainder."""
    base, extra = divmod(size, parts)
    start = index * base + min(index, extra)
    return start, start + base + (index < extra)


def shard_box(shape: Shape, nd_sbp: NdSbp, placement: Placement, rank: int) -> Box:
    """The part of a tensor of `shape` that `rank` holds; P and B axes hold the whole.

    is_first: coordinate 0 on all P axes. Raises PlacementError if `rank` is not in `placement`,
    SbpError if a split does not fit.
    """
    check_layout(shape, nd_sbp, placement)
    return _box(shape, nd_sbp, placement.hierarchy, placement.coordinate(rank))


def local_type(type: TensorType, nd_sbp: NdSbp, placement: Placement, rank: int) -> TensorType:
    """The type of the shard that `rank` holds of a global tensor of `type`."""
    return type.with_shape(shard_box(type.shape, nd_sbp, placement, rank).shape)


def check_layout(shape: Shape, nd_sbp: NdSbp, placement: Placement) -> None:
    """Raises SbpError if `nd_sbp` fits neither the hierarchy nor the dims."""
    if len(nd_sbp) != placement.ndim:
        raise SbpError(
            f"{nd_sbp_str(nd_sbp)} has {len(nd_sbp)} entries, but {placement} has {placement.ndim} "
            "hierarchy axes; give one per axis"
        )
    check_fits(nd_sbp, shape, "boxing")


@lru_cache(maxsize=65536)
def _box(
    shape: Shape, nd_sbp: NdSbp, hierarchy: tuple[int, ...], coordinate: tuple[int, ...]
) -> Box:
    starts, stops = [0] * len(shape), list(shape)
    for sbp, parts, index in zip(nd_sbp, hierarchy, coordinate, strict=True):
        if sbp.is_split:
            start, stop = balanced_part(stops[sbp.dim] - starts[sbp.dim], parts, index)
            stops[sbp.dim] = starts[sbp.dim] + stop
            starts[sbp.dim] += start
    is_first = all(i == 0 for s, i in zip(nd_sbp, coordinate, strict=True) if s.is_partial)
    return Box(tuple(starts), tuple(stops), is_first)


@dataclass(frozen=True)
class _Layout:
    """The ranks of a layout sorted by addend and tile."""

    boxes: tuple[Box, ...]  # of each tile
    ranks: tuple[tuple[tuple[int, ...], ...], ...]  # [addend][tile] -> the ranks that hold it
    places: dict[int, tuple[int, int]]  # rank -> (addend, tile)
    at: dict[int, tuple[int, ...]]  # rank -> where in the grid

    @property
    def num_addends(self) -> int:
        return len(self.ranks)

    def nearest(self, rank: int, holders: tuple[int, ...]) -> tuple[int, ...]:
        """Those of the holders that share most coordinates with `rank`; all if it is outside."""
        mine = self.at.get(rank)
        if mine is None or len(holders) == 1:
            return holders
        shared = [sum(a == b for a, b in zip(mine, self.at[h], strict=True)) for h in holders]
        most = max(shared)
        return tuple(h for h, n in zip(holders, shared, strict=True) if n == most)


@lru_cache(maxsize=4096)
def _layout(shape: Shape, nd_sbp: NdSbp, placement: Placement) -> _Layout:
    check_layout(shape, nd_sbp, placement)
    boxes: dict[tuple[int, ...], Box] = {}
    addends: dict[tuple[int, ...], int] = {}
    tiles: dict[tuple[int, ...], int] = {}
    holders: dict[tuple[int, int], list[int]] = {}
    places: dict[int, tuple[int, int]] = {}
    grid = dict(zip(placement.rank_ids, coordinates(placement.hierarchy), strict=True))
    for rank, at in grid.items():
        addend = tuple(i for s, i in zip(nd_sbp, at, strict=True) if s.is_partial)
        tile = tuple(i for s, i in zip(nd_sbp, at, strict=True) if s.is_split)
        boxes.setdefault(tile, _box(shape, nd_sbp, placement.hierarchy, at))
        place = addends.setdefault(addend, len(addends)), tiles.setdefault(tile, len(tiles))
        places[rank] = place
        holders.setdefault(place, []).append(rank)
    table = tuple(
        tuple(tuple(holders[a, t]) for t in range(len(tiles))) for a in range(len(addends))
    )
    return _Layout(tuple(boxes.values()), table, places, grid)


@lru_cache(maxsize=16384)
def pulls(
    shape: Shape,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    rank: int,
) -> tuple[Pull, ...]:
    """List the reads of `rank` of the destination, in order, that fill its new shard in one hop.

    A rank that holds a copy reads its own; other readers spread evenly over the holders. Partial
    sums are read in ascending rank order, the first as a copy, so that all copies of a sum are
    equal to the last bit. A partial target gets each cell once, at a rank that holds it already if
    there is one, else at the first of the group; cells that no pull fills are zero (see
    `leaves_gaps`). Returns () if `rank` is not in the destination.
    """
    if rank not in dst_placement:
        return ()
    src = _layout(shape, src_sbp, src_placement)
    dst = _layout(shape, dst_sbp, dst_placement)
    slot, tile = dst.places[rank]
    readers = dst.ranks[slot][tile]
    result: list[Pull] = []
    for src_tile, cell in _cells(src, dst, tile, rank):
        addends = _addends_of(src, dst, slot, src_tile, tile)
        holders = [src.ranks[a][src_tile] for a in addends]
        sources = [_source_of(src, h, readers, tile, rank) for h in holders]
        result += _sum_of(sources, cell, src.boxes[src_tile], dst.boxes[tile])
    return tuple(result)


@dataclass(frozen=True)
class TwoPhases:
    """The reads of one rank if sums are made once and then spread.

    sums: of shards of the source, as `pulls`.  spread: of the new shards of peers, into the own
    new shard, when all sums are done.
    """

    sums: tuple[Pull, ...]
    spread: tuple[Pull, ...]


@lru_cache(maxsize=16384)
def two_phases(
    shape: Shape,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    rank: int,
) -> TwoPhases:
    """Return the reads of `rank` of the destination if every sum is made by one rank only.

    The readers of a cell divide it: each adds up its piece in its new shard, in ascending rank
    order, and then takes the other pieces from the readers that made them. Readers that hold an
    addend already have their piece of the sum for one transfer less, so only they add if there are
    any. This moves as few bytes as any way can (see `boxing.bound`); without sums it equals
    `pulls`.
    """
    if rank not in dst_placement:
        return TwoPhases((), ())
    src = _layout(shape, src_sbp, src_placement)
    dst = _layout(shape, dst_sbp, dst_placement)
    slot, tile = dst.places[rank]
    readers = dst.ranks[slot][tile]
    sums: list[Pull] = []
    spread: list[Pull] = []
    slots = tuple(ranks[tile] for ranks in dst.ranks)
    for src_tile, cell in _cells(src, dst, tile, rank):
        src_box, dst_box = src.boxes[src_tile], dst.boxes[tile]
        held = tuple(ranks[src_tile] for ranks in src.ranks)
        nearest = tuple(_nearest(h, slots, dst) if len(slots) > 1 else 0 for h in held)
        way = _cheapest_slots(held, slots, nearest)
        holders = [h for h, s in zip(held, way, strict=True) if s == slot]
        if len(holders) < 2:
            sums += _sum_of(
                [_source_of(src, h, readers, tile, rank) for h in holders], cell, src_box, dst_box
            )
            continue
        owners = _owners(holders, readers)
        for owner, piece in zip(owners, _pieces(cell, len(owners)), strict=False):
            if owner == rank:
                sources = [_source_of(src, h, owners, tile, rank) for h in holders]
                sums += _sum_of(sources, piece, src_box, dst_box)
            else:
                at = local_slices(piece, dst_box)
                spread.append(Pull(owner, at, at, False))
    return TwoPhases(tuple(sums), tuple(spread))


def copies_of(shape: Shape, nd_sbp: NdSbp, placement: Placement) -> dict[int, tuple[int, ...]]:
    """rank -> the ranks that hold the same part (and addend) as it does, itself included."""
    layout = _layout(shape, nd_sbp, placement)
    return {rank: holders for tiles in layout.ranks for holders in tiles for rank in holders}


def groups_of(placement: Placement, axes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks that differ only along `axes`, each in ascending order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank, at in zip(placement.rank_ids, coordinates(placement.hierarchy), strict=True):
        key = tuple(i for axis, i in enumerate(at) if axis not in axes)
        found.setdefault(key, []).append(rank)
    return tuple(tuple(group) for group in found.values())


def changed_axes(src: NdSbp, dst: NdSbp) -> tuple[int, ...]:
    """The hierarchy axes along which two SBP of one hierarchy differ."""
    return tuple(i for i, (a, b) in enumerate(zip(src, dst, strict=True)) if a is not b)


def stays_in_groups(src: NdSbp, dst: NdSbp, axis: int, group_axes: tuple[int, ...]) -> bool:
    """May `axis` change from src to dst inside the groups along `group_axes`?

    Not if a later axis outside the group splits the same dim: its parts are cut from parts of this
    axis, so they would move too.
    """
    dims = {s.dim for s in (src[axis], dst[axis]) if s.is_split}
    later = [i for i in range(axis + 1, len(src)) if i not in group_axes]
    return not any(_splits(nd_sbp[i], dims) for nd_sbp in (src, dst) for i in later)


def _splits(sbp: Sbp, dims: set[int]) -> bool:
    return sbp.is_split and sbp.dim in dims


def _cells(src: _Layout, dst: _Layout, tile: int, rank: int) -> list[tuple[int, Box]]:
    """(tile of the source, its common part with a tile of the destination); a tile that `rank`
    holds itself comes first, as it needs no waiting."""
    cells = [
        (src_tile, cell)
        for src_tile, box in enumerate(src.boxes)
        if (cell := intersection(box, dst.boxes[tile])) is not None
    ]
    own = next((c for c in cells if src.places.get(rank, (0, -1))[1] == c[0]), None)
    if own is not None:
        cells.remove(own)
        cells.insert(0, own)
    return cells


def _addends_of(src: _Layout, dst: _Layout, slot: int, src_tile: int, dst_tile: int) -> list[int]:
    """The addends of a cell that one addend of the destination takes."""
    return [
        addend
        for addend in range(src.num_addends)
        if _slot_of(src, dst, addend, src_tile, dst_tile) == slot
    ]


@lru_cache(maxsize=4096)
def _cheapest_slots(
    holders: tuple[tuple[int, ...], ...],
    slots: tuple[tuple[int, ...], ...],
    nearest: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the addend of the destination that takes each addend of a cell, so that least is moved
    if every sum is made once. Of very many ways only the obvious one is looked at: each to the
    nearest.
    """
    if len(slots) == 1 or len(slots) ** len(holders) > MAX_WAYS:
        return nearest
    ways = itertools.product(range(len(slots)), repeat=len(holders))
    return min(itertools.chain([nearest], ways), key=lambda way: _moves(holders, slots, way))


def _moves(
    holders: tuple[tuple[int, ...], ...], slots: tuple[tuple[int, ...], ...], way: tuple[int, ...]
) -> int:
    """Count how often a cell is sent if its addends are divided in this way."""
    return sum(
        tree_edges([h for h, s in zip(holders, way, strict=True) if s == i], readers)
        for i, readers in enumerate(slots)
    )


def tree_edges(holders: Sequence[Iterable[int]], readers: Iterable[int]) -> int:
    """The fewest transfers that bring the sum of addends, each at its holders, to all readers."""
    wanting = set(readers)
    if not holders:
        return 0
    if len(holders) == 1:
        return len(wanting.difference(holders[0]))
    meets = any(wanting.intersection(h) for h in holders)
    return len(holders) + len(wanting) - 1 - meets


def _sum_of(sources: list[int], cell: Box, src_box: Box, dst_box: Box) -> list[Pull]:
    """One pull per addend, the first as a copy."""
    source_slices, target_slices = local_slices(cell, src_box), local_slices(cell, dst_box)
    return [Pull(s, source_slices, target_slices, i > 0) for i, s in enumerate(sources)]


def _owners(holders: list[tuple[int, ...]], readers: tuple[int, ...]) -> tuple[int, ...]:
    """The readers that add up: those that hold an addend, or all."""
    held = {rank for ranks in holders for rank in ranks}
    return tuple(r for r in readers if r in held) or readers


def _pieces(cell: Box, count: int) -> list[Box]:
    """A cell in at most `count` pieces of about one size, along its first dim that is long enough,
    else along its longest."""
    sizes = [b - a for a, b in zip(cell.starts, cell.stops, strict=True)]
    if not sizes:
        return [cell]
    dim = next((d for d, n in enumerate(sizes) if n >= count), sizes.index(max(sizes)))
    pieces = []
    for start, stop in (balanced_part(sizes[dim], count, i) for i in range(count)):
        if start < stop:
            starts, stops = list(cell.starts), list(cell.stops)
            starts[dim], stops[dim] = cell.starts[dim] + start, cell.starts[dim] + stop
            pieces.append(Box(tuple(starts), tuple(stops)))
    return pieces


def _slot_of(src: _Layout, dst: _Layout, addend: int, src_tile: int, dst_tile: int) -> int:
    """Return the addend of the destination that takes this cell: the one that has to move least."""
    if dst.num_addends == 1:
        return 0
    slots = tuple(ranks[dst_tile] for ranks in dst.ranks)
    return _nearest(src.ranks[addend][src_tile], slots, dst)


def _nearest(holders: tuple[int, ...], slots: tuple[tuple[int, ...], ...], dst: _Layout) -> int:
    """Return the slot where most readers hold the cell already; of equals, of which the holders
    have other tiles, so that sums stay within the groups that a step works in.
    """
    homes = [dst.places[h][0] for h in holders if h in dst.places]
    ranked = [
        (len(set(readers).intersection(holders)), homes.count(slot))
        for slot, readers in enumerate(slots)
    ]
    return ranked.index(max(ranked))


def _source_of(
    src: _Layout, holders: tuple[int, ...], readers: tuple[int, ...], tile: int, rank: int
) -> int:
    """The holder that `rank` reads: itself, or one of its own row or column of the source's grid,
    else each reader another in turn."""
    if rank in holders:
        return rank
    near = src.nearest(rank, holders)
    turn = tile * len(readers) + readers.index(rank)
    return near[turn % len(near)]


def intersection(a: Box, b: Box) -> Box | None:
    """Return the common part of two boxes of one tensor; None if that has no elements."""
    starts = tuple(map(max, a.starts, b.starts))
    stops = tuple(map(min, a.stops, b.stops))
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        return None
    return Box(starts, stops)


def local_slices(cell: Box, within: Box) -> tuple[slice, ...]:
    """Return the slices of `cell` in an array that holds the box `within`."""
    return tuple(
        slice(a - o, b - o) for a, b, o in zip(cell.starts, cell.stops, within.starts, strict=True)
    )
