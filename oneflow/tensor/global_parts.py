"""Ops that pick, place or reorder positions along split dims, eagerly and without gathering.

slice, slice_scatter, slice_update, flip, roll, pad and concat have no signature that keeps such a
dim split: the parts that the ranks hold of the result are not balanced. Here every rank cuts what
it holds of the result out of its shard, and the balanced layout is filled from those parts by
intersecting boxes: each element of the result moves at most once to each rank that wants it, and
not at all to where it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from oneflow.boxing.boxes import Pull, intersection, local_slices, shard_box
from oneflow.core.op import Attr, Box, Op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Split, nd_sbp_str
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.ops.slicing import held_part, local_attrs, slices_of

Boxes = tuple[Box, ...]  # one per rank of a placement, in ascending order
Cut = Callable[[Any], Any]  # of a shard: the part of it that moves, a view
Types = tuple[TensorType, ...]
Sbps = tuple[NdSbp, ...]


@dataclass(frozen=True)
class Move:
    """What one input adds to the result. have, want: the boxes, in positions of the result, that
    the ranks have of it and want of it.  cut: makes this rank's part of its shard."""

    input: int
    have: Boxes
    want: Boxes
    cut: Cut


@dataclass(frozen=True)
class Plan:
    """How an op runs. in_sbps: what the inputs are brought to first.

    start: of (shards, xp): the output, as far as no move fills it.  into: of the output: the part
    of it that the moves fill, which is the box `want` of this rank.
    """

    in_sbps: Sbps
    out_sbp: NdSbp
    moves: tuple[Move, ...]
    start: Callable[[Sequence[Any], Any], Any]
    into: Callable[[Any], Any]


def plan_parts(
    op: type[Op],
    types: Types,
    out_type: TensorType,
    sbps: Sbps,
    attrs: dict[str, Attr],
    placement: Placement,
) -> Plan | None:
    """How `op` runs on parts; None if it is no such op, or needs no such thing in this layout."""
    make = _PLANS.get(op.name)
    if make is None or not any(s.is_split for s in sbps[0]):
        return None
    return make(types, out_type, sbps, attrs, placement)


class BoundParts:
    """A plan as one rank of the placement runs it. what: says of the op all that ranks must agree
    on."""

    def __init__(self, plan: Plan, what: str, placement: Placement) -> None:
        from oneflow.boxing.collectives.exchange import Exchange

        self._plan = plan
        self._on_gpu = placement.type == "cuda"
        self._rank = world().rank
        self._ranks = ranks = placement.rank_ids
        addends = _addends(plan.out_sbp, placement)
        pulls = [_Pulls(ranks, addends, m.have, m.want) for m in plan.moves]
        self._exchanges = [Exchange(ranks, p) for p in pulls]
        self._is_local = [not any(map(e.received_numel, ranks)) for e in self._exchanges]
        self._what = [f"input {m.input} of {what} on {placement.notation}" for m in plan.moves]

    def run(self, shards: Sequence[Any], xp: Any) -> Any:
        """This rank's part of the result. All ranks of the placement must call it."""
        out = self._plan.start(shards, xp)
        self.fill(out, shards, xp)
        return out

    def fill(self, out: Any, shards: Sequence[Any], xp: Any) -> None:
        """Makes the moves into `out`, this rank's part of the result."""
        target = self._plan.into(out)
        filled = target if target.flags.c_contiguous else target.copy()
        for i, move in enumerate(self._plan.moves):
            self._move(i, move.cut(shards[move.input]), filled, xp)
        if filled is not target:
            target[...] = filled

    def _move(self, i: int, part: Any, target: Any, xp: Any) -> None:
        from oneflow.boxing.collectives.base import unpack

        exchange = self._exchanges[i]
        if self._is_local[i]:
            unpack(self._rank, part, target, exchange, _no_peer, xp.add)
            return
        if self._on_gpu:
            group = world().device_collectives(self._ranks)
            part = xp.ascontiguousarray(part)
        else:
            group = world().collectives(self._ranks)
        group.transfer(self._what[i], part, target, exchange)


def _no_peer(rank: int) -> Any:
    raise LookupError(f"a local move that reads from rank {rank}")


class _Pulls:
    """What a rank reads: its own part first, of others' each cell once. Summands stay apart."""

    def __init__(
        self, ranks: tuple[int, ...], addends: list[tuple[int, ...]], have: Boxes, want: Boxes
    ) -> None:
        self._ranks = ranks
        self._addends = addends
        self._have = have
        self._want = want
        self._holders: dict[tuple[Any, Box], list[int]] = {}
        for rank, addend, box in zip(ranks, addends, have, strict=True):
            self._holders.setdefault((addend, box), []).append(rank)

    def __call__(self, rank: int) -> list[Pull]:
        index = self._ranks.index(rank)
        mine, found = self._want[index], []
        for (addend, box), holders in self._holders.items():
            cell = intersection(box, mine)
            if cell is None or addend != self._addends[index]:
                continue
            source = rank if rank in holders else holders[index % len(holders)]
            pull = Pull(source, local_slices(cell, box), local_slices(cell, mine), False)
            found.append(pull)
        return sorted(found, key=lambda p: p.source_rank != rank)


def _addends(nd_sbp: NdSbp, placement: Placement) -> list[tuple[int, ...]]:
    """Which summand each rank holds."""
    return [
        tuple(i for s, i in zip(nd_sbp, placement.coordinate(r), strict=True) if s.is_partial)
        for r in placement.rank_ids
    ]


def _boxes(shape: tuple[int, ...], nd_sbp: NdSbp, placement: Placement) -> Boxes:
    return tuple(shard_box(shape, nd_sbp, placement, r) for r in placement.rank_ids)


def _bare(box: Box) -> Box:
    return Box(box.starts, box.stops)


def _own(boxes: Boxes, placement: Placement) -> Box:
    """Of this rank; of some rank for one that stands outside and will not use it."""
    rank = world().rank
    return boxes[placement.rank_ids.index(rank)] if rank in placement else boxes[0]


def _splits_any(nd_sbp: NdSbp, dims: Sequence[int]) -> bool:
    return any(s.is_split and s.dim in dims for s in nd_sbp)


def _empty(box: Box, dtype: Any) -> Callable[[Sequence[Any], Any], Any]:
    return lambda shards, xp: xp.empty(box.shape, dtype)


def _taking(index: tuple[slice, ...]) -> Cut:
    return lambda array: array[index]


def _all_of(out: Any) -> Any:
    return out


def _fitting(shape: tuple[int, ...], nd_sbp: NdSbp, placement: Placement) -> NdSbp:
    """`nd_sbp`, but splits of dims that became too small for it go to another dim, or become
    copies."""
    counts: dict[int, int] = {}
    for s, n in zip(nd_sbp, placement.hierarchy, strict=True):
        if s.is_split:
            counts[s.dim] = counts.get(s.dim, 1) * n
    small = {d for d, n in counts.items() if shape[d] < n}
    result = list(nd_sbp)
    for axis, (s, n) in enumerate(zip(nd_sbp, placement.hierarchy, strict=True)):
        if s.is_split and s.dim in small:
            free = [d for d, size in enumerate(shape) if d not in counts and size >= n]
            result[axis] = Split(free[0]) if free else BROADCAST
            if free:
                counts[free[0]] = n
    return tuple(result)


def _like(nd_sbp: NdSbp, wanted: NdSbp) -> NdSbp:
    """`nd_sbp` with sums exactly where `wanted` has them."""
    return tuple(
        b if a.is_partial != b.is_partial else a for a, b in zip(nd_sbp, wanted, strict=True)
    )


# ---- slices --------------------------------------------------------------------------------------


def _cut_dims(shape: tuple[int, ...], attrs: dict[str, Attr]) -> list[int]:
    bounds = zip(shape, attrs["starts"], attrs["stops"], attrs["steps"], strict=True)
    return [i for i, (n, a, b, s) in enumerate(bounds) if (a, b, s) != (0, n, 1)]


def _held(shard: Box, attrs: dict[str, Attr]) -> Box:
    return held_part(attrs["starts"], attrs["stops"], attrs["steps"], shard)


def _cutter(shard: Box, attrs: dict[str, Attr]) -> Cut:
    """The part of a slice that a shard holds."""
    part = _held(shard, attrs)
    return _taking(slices_of(**local_attrs(attrs["starts"], attrs["steps"], shard, part)))


def _plan_slice(
    types: Types, out: TensorType, sbps: Sbps, attrs: dict[str, Attr], placement: Placement
) -> Plan | None:
    shape, nd_sbp = types[0].shape, sbps[0]
    if not _splits_any(nd_sbp, _cut_dims(shape, attrs)) or not out.numel:
        return None
    out_sbp = _fitting(out.shape, nd_sbp, placement)
    shards = _boxes(shape, nd_sbp, placement)
    want = _boxes(out.shape, out_sbp, placement)
    have = tuple(_held(b, attrs) for b in shards)
    move = Move(0, have, want, _cutter(_own(shards, placement), attrs))
    return Plan(sbps, out_sbp, (move,), _empty(_own(want, placement), out.dtype.np), _all_of)


def _plan_slice_scatter(
    types: Types, out: TensorType, sbps: Sbps, attrs: dict[str, Attr], placement: Placement
) -> Plan | None:
    if not _splits_any(sbps[0], _cut_dims(out.shape, attrs)):
        return None
    have = tuple(map(_bare, _boxes(types[0].shape, sbps[0], placement)))
    shards = _boxes(out.shape, sbps[0], placement)
    own = _own(shards, placement)
    move = Move(0, have, tuple(_held(b, attrs) for b in shards), _all_of)

    def start(_: Sequence[Any], xp: Any) -> Any:
        return xp.zeros(own.shape, out.dtype.np)

    return Plan(sbps, sbps[0], (move,), start, _cutter(own, attrs))


def _plan_slice_update(
    types: Types, out: TensorType, sbps: Sbps, attrs: dict[str, Attr], placement: Placement
) -> Plan | None:
    if not _splits_any(sbps[0], _cut_dims(out.shape, attrs)):
        return None
    return plan_update(types[1], out, (sbps[0], sbps[1]), attrs, placement)


def plan_update(
    value: TensorType,
    ref: TensorType,
    sbps: tuple[NdSbp, NdSbp],
    attrs: dict[str, Attr],
    placement: Placement,
) -> Plan:
    """Writing `value` over a slice of `ref`: the first shard given to `start` is copied."""
    given = _like(_fitting(value.shape, sbps[1], placement), sbps[0])
    if any(s.is_split and s.dim >= value.ndim for s in given):
        given = tuple(BROADCAST if s.is_split else s for s in given)
    have = tuple(map(_bare, _boxes(value.shape, given, placement)))
    shards = _boxes(ref.shape, sbps[0], placement)
    move = Move(1, have, tuple(_held(b, attrs) for b in shards), _all_of)

    def start(arrays: Sequence[Any], xp: Any) -> Any:
        return xp.ascontiguousarray(arrays[0]).copy()

    return Plan((sbps[0], given), sbps[0], (move,), start, _cutter(_own(shards, placement), attrs))


@lru_cache(maxsize=4096)
def bound_update(
    value: TensorType,
    ref: TensorType,
    sbps: tuple[NdSbp, NdSbp],
    bounds: tuple[tuple[int, ...], ...],
    placement: Placement,
    rank: int,
) -> tuple[NdSbp, BoundParts | None]:
    """How `rank` writes `value` into a slice of `ref` in place: the layout to bring it to, and the
    moves (None outside the placement). bounds: starts, stops, steps."""
    attrs = dict(zip(("starts", "stops", "steps"), bounds, strict=True))
    plan = plan_update(value, ref, sbps, attrs, placement)
    layouts = " and ".join(map(nd_sbp_str, sbps))
    what = f"setitem of {ref} {layouts} at {bounds}"
    return plan.in_sbps[1], BoundParts(plan, what, placement) if rank in placement else None


# ---- other orders --------------------------------------------------------------------------------


def _plan_flip(
    types: Types, out: TensorType, sbps: Sbps, attrs: dict[str, Attr], placement: Placement
) -> Plan | None:
    dims = attrs["dims"]
    if not _splits_any(sbps[0], dims):
        return None
    shards = tuple(map(_bare, _boxes(out.shape, sbps[0], placement)))
    have = tuple(_mirrored(b, out.shape, dims) for b in shards)
    back = tuple(slice(None, None, -1 if i in dims else 1) for i in range(out.ndim))
    move = Move(0, have, shards, _taking(back))
    return Plan(sbps, sbps[0], (move,), _empty(_own(shards, placement), out.dtype.np), _all_of)


def _mirrored(box: Box, shape: tuple[int, ...], dims: Sequence[int]) -> Box:
    starts, stops = list(box.starts), list(box.stops)
    for d in dims:
        starts[d], stops[d] = shape[d] - box.stops[d], shape[d] - box.starts[d]
    return Box(tuple(starts), tuple(stops))


def _plan_roll(
    types: Types, out: TensorType, sbps: Sbps, attrs: dict[str, Attr], placement: Placement
) -> Plan | None:
    """What stays in front of the end and what comes in at the front are moves of their own."""
    if not _splits_any(sbps[0], attrs["dims"]) or not out.numel:
        return None
    shifts = dict(zip(attrs["dims"], attrs["shifts"], strict=True))
    halves = []
    for d, size in enumerate(out.shape):
        shift = shifts.get(d, 0) % size
        halves.append([(0, size - shift, shift), (size - shift, size, shift - size)])
    shards = tuple(map(_bare, _boxes(out.shape, sbps[0], placement)))
    own = _own(shards, placement)
    moves = []
    for chosen in itertools.product(*halves):
        if any(a == b for a, b, _ in chosen):
            continue
        region = Box(tuple(a for a, _, _ in chosen), tuple(b for _, b, _ in chosen))
        by = tuple(s for _, _, s in chosen)
        have = tuple(_shifted(_clipped(b, region), by) for b in shards)
        index = local_slices(_clipped(own, region), own)
        moves.append(Move(0, have, shards, _taking(index)))
    return Plan(sbps, sbps[0], tuple(moves), _empty(own, out.dtype.np), _all_of)


def _clipped(box: Box, region: Box) -> Box:
    """What of `box` lies in `region`; without elements if nothing does."""
    starts = tuple(map(max, box.starts, region.starts))
    stops = tuple(map(min, box.stops, region.stops))
    return Box(starts, tuple(map(max, starts, stops)))


def _shifted(box: Box, by: Sequence[int]) -> Box:
    return Box(
        tuple(a + s for a, s in zip(box.starts, by, strict=True)),
        tuple(b + s for b, s in zip(box.stops, by, strict=True)),
    )


def _plan_pad(
    types: Types, out: TensorType, sbps: Sbps, attrs: dict[str, Attr], placement: Placement
) -> Plan | None:
    pads, value = attrs["pads"], attrs.get("value", 0)
    padded = [d for d in range(out.ndim) if pads[2 * d] or pads[2 * d + 1]]
    if not _splits_any(sbps[0], padded):
        return None
    if value != 0 and any(s.is_partial for s in sbps[0]):
        return None
    shards = _boxes(types[0].shape, sbps[0], placement)
    have = tuple(_shifted(_bare(b), pads[::2]) for b in shards)
    want = tuple(map(_bare, _boxes(out.shape, sbps[0], placement)))
    own = _own(want, placement)

    def start(_: Sequence[Any], xp: Any) -> Any:
        return xp.full(own.shape, value, out.dtype.np)

    return Plan(sbps, sbps[0], (Move(0, have, want, _all_of),), start, _all_of)


def _plan_concat(
    types: Types, out: TensorType, sbps: Sbps, attrs: dict[str, Attr], placement: Placement
) -> Plan | None:
    """In the layout of the largest input, if that splits the dim."""
    dim = attrs["dim"]
    largest = max(range(len(types)), key=lambda i: (types[i].numel, -i))
    out_sbp = sbps[largest]
    if not _splits_any(out_sbp, [dim]):
        return None
    given = tuple(_like(s, out_sbp) for s in sbps)
    want = tuple(map(_bare, _boxes(out.shape, out_sbp, placement)))
    moves, first = [], 0
    for i, (t, nd_sbp) in enumerate(zip(types, given, strict=True)):
        by = tuple(first if d == dim else 0 for d in range(out.ndim))
        have = tuple(_shifted(_bare(b), by) for b in _boxes(t.shape, nd_sbp, placement))
        moves.append(Move(i, have, want, _all_of))
        first += t.shape[dim]
    empty = _empty(_own(want, placement), out.dtype.np)
    return Plan(given, out_sbp, tuple(moves), empty, _all_of)


_PLANS: dict[str, Callable[..., Plan | None]] = {
    "slice": _plan_slice,
    "slice_scatter": _plan_slice_scatter,
    "slice_update": _plan_slice_update,
    "flip": _plan_flip,
    "roll": _plan_roll,
    "pad": _plan_pad,
    "concat": _plan_concat,
}
