"""Ops that run on parts of shards: their layouts, and the reads of each rank.

The declaration of an op says where elements go (core/parts.py); this module says for a placement
in which layout the result comes out and which intersections of boxes fill it. Pure: every rank, and
the compiler, gets the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from oneflow.boxing.boxes import Pull, intersection, local_slices, shard_box
from oneflow.core.errors import InternalError
from oneflow.core.graph import Node
from oneflow.core.op import Box, Op, find_op
from oneflow.core.operand import Attrs
from oneflow.core.parts import Index, Parts, bare
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Split, nd_sbp_str
from oneflow.core.tensor_type import TensorType

Boxes = tuple[Box, ...]
"""One per rank of a placement, in ascending order."""
Types = tuple[TensorType, ...]
Sbps = tuple[NdSbp, ...]


@dataclass(frozen=True)
class PartsPlan:
    """An op that runs on parts. in_sbps: the layouts to which its inputs are brought first."""

    parts: Parts
    types: Types
    in_sbps: Sbps
    out_type: TensorType
    out_sbp: NdSbp
    placement: Placement

    @cached_property
    def out_boxes(self) -> Boxes:
        """Return the boxes of the result that the ranks hold."""
        return _boxes(self.out_type.shape, self.out_sbp, self.placement)

    @cached_property
    def wanted(self) -> Boxes:
        """The positions that the ranks take from the parts."""
        return tuple(map(self.parts.wanted, self.out_boxes))

    @cached_property
    def moves(self) -> tuple[PartMove, ...]:
        """One for each part, in the order in which they are made."""
        return tuple(self._move(i) for i in range(len(self.parts.parts)))

    @property
    def received_nbytes(self) -> int:
        """Bytes that all ranks together read from others."""
        numel = sum(
            pull.numel
            for move in self.moves
            for rank in self.placement.rank_ids
            for pull in move.pulls(rank)
            if pull.source_rank != rank
        )
        return numel * int(self.out_type.dtype.bytes)

    def reads(self, rank: int) -> list[tuple[int, Pull]]:
        """List the reads of `rank`, each with its input, from whole shards into its whole shard of
        the result, in order. Elements that nothing is read into are `parts.fill`.
        """
        own = self.placement.rank_ids.index(rank)
        target = self.out_boxes[own]
        found = []
        if self.parts.base is not None:
            everything = tuple(slice(0, n) for n in target.shape)
            found.append((self.parts.base, Pull(rank, everything, everything, False)))
        for part, move in zip(self.parts.parts, self.moves, strict=True):
            for pull in move.pulls(rank):
                shard = move.shards[self.placement.rank_ids.index(pull.source_rank)]
                source = _within(shard.shape, part.cut(shard), pull.source_slices)
                into = _within(target.shape, self.parts.into(target), pull.target_slices)
                found.append((move.input, Pull(pull.source_rank, source, into, False)))
        return found

    def _move(self, index: int) -> PartMove:
        part = self.parts.parts[index]
        shape, nd_sbp = self.types[part.input].shape, self.in_sbps[part.input]
        shards = _boxes(shape, nd_sbp, self.placement)
        have = tuple(map(part.held, shards))
        return PartMove(self.placement, part.input, shards, have, self.wanted, self._addends)

    @cached_property
    def _addends(self) -> list[tuple[int, ...]]:
        """Return which summand each rank holds."""
        place, ranks = self.placement.coordinate, self.placement.rank_ids
        return [
            tuple(i for s, i in zip(self.out_sbp, place(r), strict=True) if s.is_partial)
            for r in ranks
        ]


class PartMove:
    """The reads of one part by all ranks. A rank reads its own elements first, and each element of
    others once; summands stay apart.

    shards: the ranks' parts of the input.  have: the positions of these elements in the result.
    """

    def __init__(
        self,
        placement: Placement,
        index: int,
        shards: Boxes,
        have: Boxes,
        want: Boxes,
        addends: Sequence[tuple[int, ...]],
    ) -> None:
        self.input = index
        self.shards = shards
        self._ranks = placement.rank_ids
        self._addends = addends
        self._have = tuple(map(bare, have))
        self._want = want
        self._holders: dict[tuple[tuple[int, ...], Box], list[int]] = {}
        for rank, addend, box in zip(self._ranks, addends, self._have, strict=True):
            self._holders.setdefault((addend, box), []).append(rank)

    def pulls(self, rank: int) -> list[Pull]:
        """List the reads of `rank`. Source slices are within the part that the source cuts out of
        its shard, target slices within the part of the own shard that is filled.
        """
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


def parts_layouts(
    op: type[Op],
    types: Types,
    out_type: TensorType,
    sbps: Sbps,
    attrs: Attrs,
    placement: Placement,
) -> tuple[Sbps, NdSbp] | None:
    """The layouts of inputs and result if `op` runs on parts; None if it has no parts, or none of
    the dims concerned is split."""
    parts = op.parts(*types, **attrs) if op.parts is not None else None
    if parts is None:
        return None
    lead = sbps[parts.lead]
    if not any(s.is_split and s.dim in parts.dims for s in lead):
        return None
    if not parts.of_sums and any(s.is_partial for s in lead):
        return None
    return _layouts(parts, types, out_type, sbps, placement)


def plan_parts(
    op: type[Op],
    types: Types,
    out_type: TensorType,
    sbps: Sbps,
    attrs: Attrs,
    placement: Placement,
) -> PartsPlan:
    """Plan how `op`, one with parts, runs on inputs that come in `sbps`."""
    if op.parts is None or (parts := op.parts(*types, **attrs)) is None:
        raise LookupError(f"{op.name} does not run on parts")
    in_sbps, out_sbp = _layouts(parts, types, out_type, sbps, placement)
    return PartsPlan(parts, types, in_sbps, out_type, out_sbp, placement)


def node_plan(node: Node) -> PartsPlan:
    """Return the plan of a `parts` node of a compiled graph."""
    attrs = {name: value for name, value in node.attrs.items() if name != "of"}
    sbps = tuple(v.sbp for v in node.inputs if v.sbp is not None)
    types = tuple(v.type for v in node.inputs)
    out = node.outputs[0]
    plan = plan_parts(find_op(node.attrs["of"]), types, out.type, sbps, attrs, node.placement)
    if (plan.in_sbps, plan.out_sbp) != (sbps, out.sbp):
        raise InternalError(f"{node.describe()} on parts makes {nd_sbp_str(plan.out_sbp)}")
    return plan


def _layouts(
    parts: Parts, types: Types, out_type: TensorType, sbps: Sbps, placement: Placement
) -> tuple[Sbps, NdSbp]:
    out_sbp = sbps[parts.lead]
    if out_type.shape != types[parts.lead].shape:
        out_sbp = _fitting(out_type.shape, out_sbp, placement)
    given = (s if i == parts.lead else _like(s, out_sbp) for i, s in enumerate(sbps))
    return tuple(given), out_sbp


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


def _within(shape: tuple[int, ...], outer: Index, inner: Index) -> Index:
    """`inner` of the part `outer` of an array, as one part of the array."""
    if not outer:
        return inner
    result = []
    for size, first, second in zip(shape, outer, inner, strict=True):
        picked = range(size)[first][second]
        stop = picked.stop if picked.stop >= 0 else None
        result.append(slice(picked.start, stop, picked.step))
    return tuple(result)


def _boxes(shape: tuple[int, ...], nd_sbp: NdSbp, placement: Placement) -> Boxes:
    return tuple(shard_box(shape, nd_sbp, placement, r) for r in placement.rank_ids)
