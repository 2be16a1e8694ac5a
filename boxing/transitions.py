"""The table of transitions along one axis of a hierarchy (or several that change alike).

T is what a group along the axis holds together, p its size; the bytes are what one rank receives,
balanced. A new collective is a new row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from oneflow.boxing.boxes import changed_axes, pulls, shard_box, stays_in_groups
from oneflow.boxing.link import Link
from oneflow.core.errors import SbpError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Sbp, Split, nd_sbp_str
from oneflow.core.tensor_type import TensorType

_MAX_RANKS_COUNTED = 16
"""Of more readers than this, so many stand for the rest: an estimate stays cheap at any size."""


@dataclass(frozen=True)
class Transition:
    """kind: name of the step.  hops: dependent exchanges.  bytes_in: (T, p) -> into one rank."""

    kind: str
    hops: int
    bytes_in: Callable[[int, int], float]


def _none(total: int, p: int) -> float:
    return 0.0


def _share(total: int, p: int) -> float:
    return total * (p - 1) / p


TRANSITIONS: dict[tuple[str, str], Transition] = {
    ("P", "B"): Transition("all_reduce", 2, lambda total, p: 2 * total * (p - 1) / p),
    ("P", "S"): Transition("reduce_scatter", 1, _share),
    ("S", "B"): Transition("all_gather", 1, _share),
    ("S", "S"): Transition("all_to_all", 1, lambda total, p: total * (p - 1) / p**2),
    ("B", "S"): Transition("slice", 0, _none),
    ("B", "P"): Transition("keep_first", 0, _none),
    ("S", "P"): Transition("pad", 0, _none),
}
"""(from, to) -> how. Equal SBP need nothing; all else is a "transfer" of intersecting boxes."""

LOCAL_KINDS = frozenset(t.kind for t in TRANSITIONS.values() if t.hops == 0)
"""Steps that move nothing between ranks."""


@dataclass(frozen=True)
class RouteStep:
    """One change of layout. kind: of a row of the table, or "transfer" (one hop, any pair)."""

    kind: str
    src_sbp: NdSbp
    src_placement: Placement
    dst_sbp: NdSbp
    dst_placement: Placement

    def __str__(self) -> str:
        return (
            f"{self.kind} {nd_sbp_str(self.src_sbp)}@{self.src_placement} -> "
            f"{nd_sbp_str(self.dst_sbp)}@{self.dst_placement}"
        )


def make_step(
    src_sbp: NdSbp, src_placement: Placement, dst_sbp: NdSbp, dst_placement: Placement
) -> RouteStep:
    """The step that does this change in one go: a row of the table if one fits, else a transfer."""
    kind = "transfer"
    if src_placement == dst_placement:
        kind = _table_kind(src_sbp, dst_sbp) or kind
    return RouteStep(kind, src_sbp, src_placement, dst_sbp, dst_placement)


def refuse_bool_sums(type: TensorType, *layouts: NdSbp) -> None:
    """Raises SbpError for partial sums of booleans, which would turn into logical ors."""
    if type.dtype.name == "bool" and any(s.is_partial for nd_sbp in layouts for s in nd_sbp):
        raise SbpError(
            f"{type} cannot be partial sums: a sum of booleans is not a boolean; cast it to an "
            "integer type first"
        )


def step_axes(step: RouteStep) -> tuple[int, ...]:
    """The hierarchy axes along which the groups of a step work; all axes for a transfer."""
    if step.kind == "transfer":
        return tuple(range(step.dst_placement.ndim))
    return changed_axes(step.src_sbp, step.dst_sbp)


def step_seconds(type: TensorType, step: RouteStep, link: Link) -> float:
    """Estimated time of one step over `link`: its busiest rank decides."""
    if step.kind == "transfer":
        return link.seconds(1, _transfer_bytes(type, step))
    axes = step_axes(step)
    p = math.prod(step.src_placement.hierarchy[a] for a in axes)
    total = _group_bytes(type, step, axes)
    row = _row(step.src_sbp[axes[0]], step.dst_sbp[axes[0]])
    seconds = link.seconds(row.hops, row.bytes_in(total, p))
    if row.kind == "all_reduce":  # small ones are done in one hop: everyone reads everything
        return min(seconds, link.seconds(1, total * (p - 1)))
    return seconds


def received_bytes(type: TensorType, step: RouteStep, rank: int) -> int:
    """Exact bytes `rank` receives from others in one step; an all_reduce counts as two phases."""
    if step.kind == "all_reduce":
        return sum(received_bytes(type, phase, rank) for phase in all_reduce_phases(type, step))
    mine = pulls(
        type.shape, step.src_sbp, step.src_placement, step.dst_sbp, step.dst_placement, rank
    )
    return int(type.dtype.bytes) * sum(pull.numel for pull in mine if pull.source_rank != rank)


def all_reduce_phases(type: TensorType, step: RouteStep) -> tuple[RouteStep, ...]:
    """An all_reduce as reduce_scatter and all_gather; one transfer if no dim can be split."""
    axes = step_axes(step)
    p = math.prod(step.src_placement.hierarchy[a] for a in axes)
    dims = dims_to_split(type.shape, step.dst_sbp, p)
    if not dims:
        return (replace(step, kind="transfer"),)
    middle = tuple(Split(dims[0]) if i in axes else s for i, s in enumerate(step.dst_sbp))
    first = make_step(step.src_sbp, step.src_placement, middle, step.src_placement)
    return first, make_step(middle, step.src_placement, step.dst_sbp, step.dst_placement)


def dims_to_split(shape: tuple[int, ...], nd_sbp: NdSbp, p: int) -> tuple[int, ...]:
    """Dims along which p ranks could share a tensor: untouched, large enough ones first."""
    taken = {s.dim for s in nd_sbp if s.is_split}
    free = [d for d in range(len(shape)) if d not in taken]
    enough = [d for d in free if shape[d] >= p]
    rest = sorted((d for d in free if d not in enough), key=lambda d: -shape[d])
    return tuple(enough + rest)


def _table_kind(src: NdSbp, dst: NdSbp) -> str | None:
    axes = changed_axes(src, dst)
    if not axes:
        return "identity"
    if len({(src[a], dst[a]) for a in axes}) != 1:
        return None
    if not all(stays_in_groups(src, dst, a, axes) for a in axes):
        return None
    return _row(src[axes[0]], dst[axes[0]]).kind if _has_row(src[axes[0]], dst[axes[0]]) else None


def _has_row(src: Sbp, dst: Sbp) -> bool:
    return (_letter(src), _letter(dst)) in TRANSITIONS


def _row(src: Sbp, dst: Sbp) -> Transition:
    return TRANSITIONS[_letter(src), _letter(dst)]


def _letter(sbp: Sbp) -> str:
    return "S" if sbp.is_split else "B" if sbp.is_broadcast else "P"


def _group_bytes(type: TensorType, step: RouteStep, axes: tuple[int, ...]) -> int:
    whole = tuple(BROADCAST if i in axes else s for i, s in enumerate(step.src_sbp))
    box = shard_box(type.shape, whole, step.src_placement, step.src_placement.rank_ids[0])
    return math.prod(box.shape) * int(type.dtype.bytes)


@lru_cache(maxsize=16384)
def _transfer_bytes(type: TensorType, step: RouteStep) -> float:
    """Bytes through the busiest rank, in or out."""
    readers = step.dst_placement.rank_ids
    stride = -(-len(readers) // _MAX_RANKS_COUNTED)
    incoming, outgoing = [0], Counter[int]()
    for rank in readers[::stride]:
        mine = pulls(
            type.shape, step.src_sbp, step.src_placement, step.dst_sbp, step.dst_placement, rank
        )
        incoming.append(sum(pull.numel for pull in mine if pull.source_rank != rank))
        for pull in mine:
            outgoing[pull.source_rank] += pull.numel * (pull.source_rank != rank)
    busiest_out = max(outgoing.values(), default=0)
    return float(max(max(incoming), busiest_out) * type.dtype.bytes)
