"""Who holds which part of a global tensor, and who must read what to change its layout.

Pure functions of shapes, SBP and placements; every rank gets the same answers, so nobody has to ask
anybody.

Words: the *tiles* of a layout are the distinct parts that its split axes make; the *addend* of a
rank says which summand of the partial sums it holds (0 if there are none); ranks that differ only
along broadcast axes hold copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from oneflow.core.errors import SbpError
from oneflow.core.op import Box
from oneflow.core.placement import Placement, coordinates
from oneflow.core.sbp import NdSbp, Sbp, check_fits, nd_sbp_str
from oneflow.core.tensor_type import TensorType

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Pull:
    """One read: `source_slices` of the shard of `source_rank` go to `target_slices` of one's own.

    Slices are local to the shards and of equal shape. add: add to what is there instead of
    overwriting it.
    """

    source_rank: int
    source_slices: tuple[slice, ...]
    target_slices: tuple[slice, ...]
    add: bool

    @property
    def numel(self) -> int:
        """Number of elements read."""
        return math.prod(s.stop - s.start for s in self.target_slices)


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
    """The ranks of a layout sorted by what they hold."""

    boxes: tuple[Box, ...]  # of each tile
    ranks: tuple[tuple[tuple[int, ...], ...], ...]  # [addend][tile] -> the ranks that hold it
    places: dict[int, tuple[int, int]]  # rank -> (addend, tile)

    @property
    def num_addends(self) -> int:
        return len(self.ranks)


@lru_cache(maxsize=4096)
def _layout(shape: Shape, nd_sbp: NdSbp, placement: Placement) -> _Layout:
    check_layout(shape, nd_sbp, placement)
    boxes: dict[tuple[int, ...], Box] = {}
    addends: dict[tuple[int, ...], int] = {}
    tiles: dict[tuple[int, ...], int] = {}
    holders: dict[tuple[int, int], list[int]] = {}
    places: dict[int, tuple[int, int]] = {}
    for rank, at in zip(placement.rank_ids, coordinates(placement.hierarchy), strict=True):
        addend = tuple(i for s, i in zip(nd_sbp, at, strict=True) if s.is_partial)
        tile = tuple(i for s, i in zip(nd_sbp, at, strict=True) if s.is_split)
        boxes.setdefault(tile, _box(shape, nd_sbp, placement.hierarchy, at))
        place = addends.setdefault(addend, len(addends)), tiles.setdefault(tile, len(tiles))
        places[rank] = place
        holders.setdefault(place, []).append(rank)
    table = tuple(
        tuple(tuple(holders[a, t]) for t in range(len(tiles))) for a in range(len(addends))
    )
    return _Layout(tuple(boxes.values()), table, places)


@lru_cache(maxsize=16384)
def pulls(
    shape: Shape,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    rank: int,
) -> tuple[Pull, ...]:
    """What `rank` of the destination reads, in order, to fill its new shard in one hop.

    A rank that holds a copy reads its own; other readers spread evenly over the holders. Partial
    sums are read in ascending rank order, the first as a copy, so that all copies of a sum are
    equal to the last bit. A partial target gets each cell once, at a rank that holds it already if
    there is one, else at the first of the group; what nobody fills is zero (`needs_zero_fill`).
    Returns () if `rank` is not in the destination.
    """
    if rank not in dst_placement:
        return ()
    src = _layout(shape, src_sbp, src_placement)
    dst = _layout(shape, dst_sbp, dst_placement)
    slot, tile = dst.places[rank]
    result: list[Pull] = []
    cells = [
        (src_tile, cell)
        for src_tile, box in enumerate(src.boxes)
        if (cell := _intersection(box, dst.boxes[tile])) is not None
    ]
    own = next((c for c in cells if src.places.get(rank, (0, -1))[1] == c[0]), None)
    if own is not None:  # own data first: it needs no waiting
        cells.remove(own)
        cells.insert(0, own)
    for src_tile, cell in cells:
        filled = False
        for addend in range(src.num_addends):
            if _slot_of(src, dst, addend, src_tile, tile) != slot:
                continue
            source = _source_of(src.ranks[addend][src_tile], dst.ranks[slot][tile], tile, rank)
            result.append(
                Pull(
                    source,
                    _local(cell, src.boxes[src_tile]),
                    _local(cell, dst.boxes[tile]),
                    filled,
                )
            )
            filled = True
    return tuple(result)


def needs_zero_fill(
    shape: Shape,
    src_sbp: NdSbp,
    src_placement: Placement,
    dst_sbp: NdSbp,
    dst_placement: Placement,
    rank: int,
) -> bool:
    """True if the pulls of `rank` leave some of its new shard unwritten (partial targets only)."""
    if rank not in dst_placement:
        return False
    mine = pulls(shape, src_sbp, src_placement, dst_sbp, dst_placement, rank)
    written = sum(pull.numel for pull in mine if not pull.add)
    return written < math.prod(shard_box(shape, dst_sbp, dst_placement, rank).shape)


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


def _slot_of(src: _Layout, dst: _Layout, addend: int, src_tile: int, dst_tile: int) -> int:
    """Which addend of the destination takes this cell: the one that has to move least."""
    if dst.num_addends == 1:
        return 0
    holders = src.ranks[addend][src_tile]
    counts = [len(set(dst.ranks[s][dst_tile]) & set(holders)) for s in range(dst.num_addends)]
    return counts.index(max(counts))


def _source_of(holders: tuple[int, ...], readers: tuple[int, ...], tile: int, rank: int) -> int:
    if rank in holders:
        return rank
    turn = tile * len(readers) + readers.index(rank)
    return holders[turn % len(holders)]


def _intersection(a: Box, b: Box) -> Box | None:
    starts = tuple(map(max, a.starts, b.starts))
    stops = tuple(map(min, a.stops, b.stops))
    if any(start >= stop for start, stop in zip(starts, stops, strict=True)):
        return None
    return Box(starts, stops)


def _local(cell: Box, within: Box) -> tuple[slice, ...]:
    return tuple(
        slice(a - o, b - o) for a, b, o in zip(cell.starts, cell.stops, within.starts, strict=True)
    )
