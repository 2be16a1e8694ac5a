"""The table of transitions along one axis of a hierarchy (or several that change alike).

T is the size of all that a group along the axis holds, p its number of ranks; the bytes are those
that one rank receives, balanced. A new collective is a new row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from oneflow.boxing.boxes import (
    Pull,
    balanced_part,
    changed_axes,
    groups_of,
    pulls,
    shard_box,
    stays_in_groups,
    two_phases,
)
from oneflow.boxing.link import Network
from oneflow.core.errors import SbpError
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp, Sbp, nd_sbp_str
from oneflow.core.tensor_type import TensorType

ONE_HOP_NBYTES = 16 << 10
ONE_HOP_READ_NBYTES = 48 << 10
"""An all_reduce of so few bytes a shard, and into a rank, is one exchange, in which everyone reads
everything; else a sum is divided between the ranks. More bytes, but one wait less."""

PullsOf = Callable[[tuple[int, ...], int], tuple[Pull, ...]]

_MAX_RANKS_COUNTED = 16
"""Most readers that are counted; they stand for the rest: an estimate stays cheap at any size."""


@dataclass(frozen=True)
class Transition:
    """One row of the table.

    kind: name of the step. hops: dependent exchanges. bytes_in: (T, p) -> into one rank.
    """

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

BOX_KINDS = frozenset({"transfer", "sum_and_spread"})
"""Steps that serve every pair of layouts, box by box."""

SUMMING_KINDS = frozenset({"sum_and_spread", "all_reduce"})
"""Steps of two dependent exchanges."""

LOCAL_KINDS = frozenset(t.kind for t in TRANSITIONS.values() if t.hops == 0)
"""Steps that move nothing between ranks."""


@dataclass(frozen=True)
class RouteStep:
    """One change of layout.

    kind: of a row of the table; or "transfer" (one hop of intersecting boxes, any pair), or
    "sum_and_spread" (each sum made once, then passed on, any pair).
    """

    kind: str
    src_sbp: NdSbp
    src_placement: Placement
    dst_sbp: NdSbp
    dst_placement: Placement

    def __str__(self) -> str:
        return (
            f"{self.kind} {nd_sbp_str(self.src_sbp)}@{self.src_placement.notation} -> "
            f"{nd_sbp_str(self.dst_sbp)}@{self.dst_placement.notation}"
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
    if step.kind in BOX_KINDS:
        return tuple(range(step.dst_placement.ndim))
    return changed_axes(step.src_sbp, step.dst_sbp)


def group_of(step: RouteStep, rank: int) -> tuple[int, ...]:
    """The ranks, ascending, that `rank` works with in a step of the table."""
    return next(g for g in groups_of(step.src_placement, step_axes(step)) if rank in g)


def phases(step: RouteStep) -> tuple[PullsOf, ...]:
    """Return the reads of a step: (shape, rank) -> pulls, for each of its dependent exchanges.

    The first reads shards of the source, a second the new shards of peers.
    """
    layouts = step.src_sbp, step.src_placement, step.dst_sbp, step.dst_placement
    if step.kind not in SUMMING_KINDS:
        return (lambda shape, rank: pulls(shape, *layouts, rank),)
    return (
        lambda shape, rank: two_phases(shape, *layouts, rank).sums,
        lambda shape, rank: two_phases(shape, *layouts, rank).spread,
    )


def leaves_gaps(shape: tuple[int, ...], step: RouteStep, rank: int) -> bool:
    """True if the pulls of `rank` leave some of its new shard unwritten (partial targets only)."""
    if rank not in step.dst_placement:
        return False
    written = sum(
        pull.numel for pulls_of in phases(step) for pull in pulls_of(shape, rank) if not pull.add
    )
    return written < math.prod(shard_box(shape, step.dst_sbp, step.dst_placement, rank).shape)


def step_cost(type: TensorType, step: RouteStep, network: Network) -> tuple[float, float]:
    """Estimated seconds of one step, and bytes through its busiest rank.

    The seconds count the bytes of all ranks, evenly divided: ranks of a host share its memory bus,
    hosts of a network its switch. The busiest rank decides between ways that move the same.
    """
    is_far = network.spans((*step.src_placement.rank_ids, *step.dst_placement.rank_ids))
    if step.kind in BOX_KINDS or is_far:
        counted = _counted_bytes(type, step, network.hosts if is_far else ())
        hops = len(phases(step))
        is_far = counted.far > 0
        return network.seconds(hops, counted.near, counted.far, is_far), counted.busiest
    axes = step_axes(step)
    p = math.prod(step.src_placement.hierarchy[a] for a in axes)
    total = _group_bytes(type, step, axes)
    row = _row(step.src_sbp[axes[0]], step.dst_sbp[axes[0]])
    if row.kind == "all_reduce" and is_one_hop(total, p):
        nbytes = float(total * (p - 1))
        return network.seconds(1, nbytes, 0.0, False), nbytes
    nbytes = row.bytes_in(total, p)
    return network.seconds(row.hops, nbytes, 0.0, False), nbytes


def received_bytes(type: TensorType, step: RouteStep, rank: int) -> int:
    """Exact bytes `rank` receives from others in one step."""
    itemsize = int(type.dtype.bytes)
    if step.kind == "all_reduce":
        return itemsize * _all_reduce_numel(type, step, rank)
    return itemsize * sum(
        pull.numel
        for pulls_of in phases(step)
        for pull in pulls_of(type.shape, rank)
        if pull.source_rank != rank
    )


def is_one_hop(nbytes: int, p: int) -> bool:
    """Is an all_reduce of `nbytes` on each of `p` ranks one exchange?"""
    return nbytes <= ONE_HOP_NBYTES and nbytes * (p - 1) <= ONE_HOP_READ_NBYTES


def _all_reduce_numel(type: TensorType, step: RouteStep, rank: int) -> int:
    """An all_reduce cuts flat shards: everybody sums a part and reads the others'."""
    if rank not in step.src_placement:
        return 0
    group = group_of(step, rank)
    numel = math.prod(shard_box(type.shape, step.src_sbp, step.src_placement, rank).shape)
    if is_one_hop(numel * type.dtype.bytes, len(group)):
        return numel * (len(group) - 1)
    start, stop = balanced_part(numel, len(group), group.index(rank))
    return (stop - start) * (len(group) - 1) + numel - (stop - start)


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


@dataclass(frozen=True)
class _Counted:
    """Bytes of one step over several hosts.

    near: into the mean of all ranks, of its own host. far: into the mean of all hosts. busiest:
    through the busiest rank, in or out.
    """

    near: float
    far: float
    busiest: float


@lru_cache(maxsize=16384)
def _counted_bytes(type: TensorType, step: RouteStep, hosts: tuple[int, ...]) -> _Counted:
    """Count the bytes of a step; of many readers only some are looked at. hosts: of each rank; ()
    if all are on one.
    """
    readers = step.dst_placement.rank_ids
    looked_at = readers[:: -(-len(readers) // _MAX_RANKS_COUNTED)]
    incoming, outgoing = Counter[int](), Counter[int]()
    near = far = 0
    for pulls_of in phases(step):
        for rank in looked_at:
            for pull in pulls_of(type.shape, rank):
                source = pull.source_rank
                if source == rank:
                    continue
                incoming[rank] += pull.numel
                outgoing[source] += pull.numel
                if hosts and hosts[source] != hosts[rank]:
                    far += pull.numel
                else:
                    near += pull.numel
    ranks = {*step.src_placement.rank_ids, *readers}
    num_hosts = len({hosts[r] for r in ranks}) if hosts else 1
    scale = type.dtype.bytes * len(readers) / len(looked_at)
    busiest = max([*incoming.values(), *outgoing.values()], default=0)
    return _Counted(
        near * scale / len(ranks), far * scale / num_hosts, float(busiest * type.dtype.bytes)
    )
