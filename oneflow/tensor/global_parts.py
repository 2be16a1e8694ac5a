"""Ops that run on parts of shards (core/parts.py), eagerly and without gathering."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from oneflow.boxing.collectives.base import unpack
from oneflow.boxing.collectives.exchange import Exchange
from oneflow.boxing.parts import PartsPlan, plan_parts
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, nd_sbp_str
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.kernels.array import Array, ArrayModule, at
from oneflow.ops.slicing import SliceUpdate


class BoundParts:
    """A plan as one rank of the placement runs it. what: says of the op all that ranks must agree
    on."""

    def __init__(self, plan: PartsPlan, what: str) -> None:
        placement = plan.placement
        self._kind = placement.type
        self._rank = world().rank
        self._ranks = ranks = placement.rank_ids
        self._exchanges = [Exchange(ranks, m.pulls) for m in plan.moves]
        self._is_local = [not any(map(e.received_numel, ranks)) for e in self._exchanges]
        self._what = [f"input {m.input} of {what} on {placement.notation}" for m in plan.moves]
        own = ranks.index(self._rank)
        parts = plan.parts
        moves = zip(parts.parts, plan.moves, strict=True)
        self._cuts = [(m.input, part.cut(m.shards[own])) for part, m in moves]
        self._base, self._fill = parts.base, parts.fill
        self._into = parts.into(plan.out_boxes[own])
        self._shape, self._dtype = plan.out_boxes[own].shape, plan.out_type.dtype.np

    def run(self, shards: Sequence[Array], xp: ArrayModule) -> list[Array]:
        """This rank's part of the result, the only one. All ranks of the placement must call it."""
        out = self._start(shards, xp)
        self.fill(out, shards, xp)
        return [out]

    def _start(self, shards: Sequence[Array], xp: ArrayModule) -> Array:
        made: Array
        if self._base is not None:
            made = xp.ascontiguousarray(shards[self._base]).copy()
        elif self._fill is not None:
            made = xp.full(self._shape, self._fill, self._dtype)
        else:
            made = xp.empty(self._shape, self._dtype)
        return made

    def fill(self, out: Array, shards: Sequence[Array], xp: ArrayModule) -> None:
        """Makes the moves into `out`, this rank's part of the result."""
        target = out[at(*self._into, ...)]  # with dots also without dims a view
        filled = target if target.flags.c_contiguous else target.copy()
        for i, (source, cut) in enumerate(self._cuts):
            self._move(i, shards[source][cut], filled, xp)
        if filled is not target:
            target[...] = filled

    def _move(self, i: int, part: Array, target: Array, xp: ArrayModule) -> None:
        exchange = self._exchanges[i]
        if self._is_local[i]:
            unpack(self._rank, part, target, exchange, _no_peer, xp.add)
            return
        group = world().collectives_on(self._kind, self._ranks)
        if self._kind != "cpu":
            part = xp.ascontiguousarray(part)
        group.transfer(self._what[i], part, target, exchange)


def _no_peer(rank: int) -> Any:
    raise LookupError(f"a local move that reads from rank {rank}")


@lru_cache(maxsize=4096)
def bound_update(
    value: TensorType,
    ref: TensorType,
    sbps: tuple[NdSbp, NdSbp],
    bounds: tuple[tuple[int, ...], ...],
    placement: Placement,
    rank: int,
) -> tuple[NdSbp, BoundParts | None]:
    """Bind how `rank` writes `value` into a slice of `ref` in place: the layout to bring it to, and
    the moves (None outside the placement). bounds: starts, stops, steps.
    """
    attrs = dict(zip(("starts", "stops", "steps"), bounds, strict=True))
    plan = plan_parts(SliceUpdate, (ref, value), ref, sbps, attrs, placement)
    layouts = " and ".join(map(nd_sbp_str, sbps))
    what = f"setitem of {ref} {layouts} at {bounds}"
    return plan.in_sbps[1], BoundParts(plan, what) if rank in placement else None
