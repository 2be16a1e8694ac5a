"""Groups nodes into actors.

The level of a node is the longest chain of actors before it: a compute node has the level of its
producers if they run in the same place at the same rate, one more otherwise; a node that waits for
another device or changes rate has one more than its producers; and one that overwrites a variable
is not below anybody who reads it. Compute nodes of one place, rate and level form one segment.
Edges between actors then always go up in level, so no cycle can arise, and no search for cycles is
needed.

Boxing nodes of one level between the same ranks become one actor that carries all their tensors:
the gradients of a data-parallel model are reduced together, bucket by bucket (`_Buckets`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from oneflow.boxing.boxes import groups_of
from oneflow.boxing.route import choose_route
from oneflow.boxing.transitions import make_step, step_axes
from oneflow.core.actor_kinds import ActorKind
from oneflow.core.errors import InternalError
from oneflow.core.graph import PIECE, LogicalGraph, Node
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.plan import ActorSpec, Plan
from oneflow.core.sbp import NdSbp
from oneflow.scheduler.compiler.layout.signatures import local_nbytes, plan_network
from oneflow.scheduler.compiler.lower.fusion import fused
from oneflow.scheduler.compiler.schedule.order import is_reduction
from oneflow.scheduler.compiler.schedule.phases import late_nodes

_KINDS = {
    "input": ActorKind.INPUT,
    "output": ActorKind.OUTPUT,
    "unpack": ActorKind.UNPACK,
    "pack": ActorKind.PACK,
    "accumulate": ActorKind.ACCUMULATE,
    "boxing": ActorKind.BOXING,
    "parts": ActorKind.BOXING,
    "exchange": ActorKind.BOXING,
}

FLAT_TWO_PHASE_NBYTES = 256 * 1024
"""If an all_reduce in one go would read more bytes than this of others, it is a reduce-scatter and
an all-gather: 2T(p-1)/p bytes a rank instead of T(p-1), against two messages more. At p == 2 both
read the same, but the halves also share the adding."""

BUCKETS = 8
"""Gradients of a stage that are parts after they were exchanged, or sums over micro-batches, go in
as many buckets, so that few of them lie in memory whole."""
BUCKET_NBYTES = 64 * 1024
"""The least such bucket: smaller ones cost more time than they free memory."""


def group_segments(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> Plan:
    """Return a plan of the actors of a graph, by level, without registers. Linear in the number of
    nodes.
    """
    late = late_nodes(graph, config)  # they form segments of their own
    floor = _least_level(graph)
    levels: dict[int, int] = {}
    groups: dict[Hashable, list[Node]] = {}
    places: dict[int, int] = {}
    buckets, gathers = _Buckets(graph, config), _Gathers()
    for place, node in enumerate(graph):
        places[node.id] = place
        if node.op in ("variable", "repeat"):
            levels[node.id] = _source_level(node, levels)
            continue
        is_late = node.id in late
        least = 0 if node.is_structural else floor
        level = gathers.level(node, max(least, _level(node, levels, late)))
        level = levels[node.id] = buckets.level(node, level, is_late)
        groups.setdefault(_key(node, level, cluster, is_late), []).append(node)
    parts: list[list[Node]] = []
    for nodes in groups.values():
        if nodes[0].op in ("boxing", "parts", "exchange"):
            # In the order in which what they read is made, and so lies in its register: neighbours
            # stay neighbours.
            nodes.sort(key=lambda n: places[n.inputs[0].node.id])
            parts += fused(nodes, config)
        else:
            parts.append(nodes)
    actors = _number(graph, parts, levels, _Phases(config, cluster))
    return Plan(graph, actors, [], cluster.world_size)


class _Buckets:
    """The gradients that are exchanged, or added to those of other micro-batches, in one go.

    A segment ends where it has made a bucket of them, and later nodes of the graph go
    to a level above: so the bucket moves while the next one is computed, and is freed.
    """

    def __init__(self, graph: LogicalGraph, config: JobConfig) -> None:
        self._shares: dict[int, float] = {}
        """The share of a bucket that a node makes, by its id."""
        self._full: dict[Hashable, float] = {}
        self._floors: dict[Hashable, int] = {}
        if not config.bucket_nbytes:
            return
        stages: dict[Hashable, dict[int, int]] = {}
        sent: dict[int, int] = {}
        for node in graph:
            if node.op == "accumulate" or is_reduction(node):
                source = node.inputs[0]
                kept = stages.setdefault((source.placement, source.node.stage), {})
                is_split = any(s.is_split for s in _sbp(node.outputs[0].sbp))
                some = kept if node.op == "accumulate" or is_split else sent
                if not source.node.is_structural:
                    nbytes = some.get(source.node.id, 0) + local_nbytes(source)
                    some[source.node.id] = nbytes
        limits = [(sent, config.bucket_nbytes)]
        for kept in stages.values():
            least = max(sum(kept.values()) // BUCKETS, BUCKET_NBYTES)
            limits.append((kept, min(config.bucket_nbytes, least)))
        for some, limit in limits:
            for number, nbytes in some.items():
                self._shares[number] = self._shares.get(number, 0) + nbytes / limit

    def level(self, node: Node, level: int, is_late: bool) -> int:
        """The level of a node that can have `level`; called in the order of the graph. A
        node that only starts a gather keeps it, so that parameters are there before they are read.
        is_late: see `late_nodes`.
        """
        if node.is_structural or node.op == "depend":
            return level
        place = node.placement, node.stage, node.rate, is_late
        level = max(level, self._floors.get(place, 0))
        share = self._shares.get(node.id)
        if share:
            full = self._full.get(place, 0.0) + share
            if full > 1 - 1e-9:
                full, self._floors[place] = 0.0, level + 1
            self._full[place] = full
        return level


class _Gathers:
    """The gathers of parameters that are sent ahead of the op that reads them (graph/zero.py).

    Those of each op are an actor of their own, above those of the op before: so an op waits for its
    own parameters alone, a segment ends where the next ones are read, and its parameters leave
    their memory to the gather after that.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[int, int]] = {}
        """The reader of the last gather, by id, and its level."""

    def level(self, node: Node, level: int) -> int:
        """The level of a node that can have `level`; called in the order of the graph."""
        if node.op != "boxing" or not _is_sent_ahead(node.inputs[0].node):
            return level
        place, reader = (node.placement, node.stage, node.rate), node.outputs[0].users[0].id
        before, last = self._last.get(place, (reader, level))
        level = max(level, last + (before != reader))
        self._last[place] = reader, level
        return level


def _is_sent_ahead(node: Node) -> bool:
    """Is it a parameter, as it is or cast, that waits for another value?"""
    if node.op != "depend":
        return False
    while node.op in ("depend", "cast"):
        node = node.inputs[0].node
    return node.op == "variable"


def _source_level(node: Node, levels: dict[int, int]) -> int:
    return max((levels[v.node.id] for v in node.inputs), default=-1)


def _least_level(graph: LogicalGraph) -> int:
    """The level of compute nodes that read no input: on one rank that of those that do, or views of
    variables would be copied from one segment to the next. Several ranks can run them meanwhile."""
    return int(len(graph.rank_ids) == 1 and any(node.op == "input" for node in graph))


def _level(node: Node, levels: dict[int, int], late: frozenset[int]) -> int:
    level = 0
    for value in node.inputs:
        producer = value.node
        below = levels[producer.id]
        joins = not node.is_structural and (
            producer.op == "variable" or _same_place(node, producer, late)
        )
        level = max(level, below if joins else below + 1)
    for reader in overtaken_readers(node):
        below = levels[reader.id]
        level = max(level, below if _same_place(node, reader, late) else below + 1)
    return level


def overtaken_readers(node: Node) -> list[Node]:
    """List the readers of a variable that `node` overwrites: they must have done before it runs."""
    return [
        user
        for value in node.overwritten
        if value.node.op == "variable"
        for user in value.users
        if user is not node
    ]


def _same_place(a: Node, b: Node, late: frozenset[int]) -> bool:
    return (
        not b.is_structural
        and a.placement == b.placement
        and a.rate == b.rate
        and a.stage == b.stage
        and (not late or (a.id in late) == (b.id in late))
    )


def _key(node: Node, level: int, cluster: Cluster, is_late: bool) -> Hashable:
    if node.op == "output":
        return "output", node.placement
    if node.op == "boxing":
        source = node.inputs[0]
        way = boxing_way(node, cluster)
        dtype = source.type.dtype.name if isinstance(way, tuple) else ""
        moves = source.placement, node.placement, node.rate, is_reduction(node)
        return "boxing", level, *moves, way, dtype
    if node.op in ("parts", "exchange"):
        return node.op, level, node.placement, node.rate
    if node.is_structural:
        return node.op, level, node.placement, node.stage
    return "segment", level, node.placement, node.stage, node.rate, is_late


def boxing_way(node: Node, cluster: Cluster) -> tuple[int, ...] | str:
    """Return how a boxing node is done: the hierarchy axes of a plain all_reduce, else the kind of
    its one step, of which only "sum_and_spread" has two halves.
    """
    source, target = node.inputs[0], node.outputs[0]
    layouts = _sbp(source.sbp), source.placement, _sbp(target.sbp), target.placement
    direct = make_step(*layouts)
    if direct.kind == "all_reduce":
        return step_axes(direct)
    network = plan_network(cluster, source.placement, target.placement)
    chosen = choose_route(source.type, *layouts, network)
    return "sum_and_spread" if [s.kind for s in chosen] == ["sum_and_spread"] else "transfer"


def _sbp(nd_sbp: NdSbp | None) -> NdSbp:
    if nd_sbp is None:
        raise InternalError("a boxing node before its SBP is known")
    return nd_sbp


def _number(
    graph: LogicalGraph, groups: list[list[Node]], levels: dict[int, int], phases: _Phases
) -> list[ActorSpec]:
    actors = []
    for nodes in groups:
        level = max(levels[n.id] for n in nodes)
        actors.append(ActorSpec(-1, _kind(nodes[0]), nodes, level, _acts(graph, nodes[0])))
    actors.sort(key=lambda a: a.level)  # stable: first in the graph first
    result: list[ActorSpec] = []
    for actor in actors:
        result.extend(phases.of(actor))
    for i, actor in enumerate(result):
        actor.id = i
    return result


def _kind(node: Node) -> ActorKind:
    return _KINDS.get(node.op, ActorKind.SEGMENT)


def _acts(graph: LogicalGraph, node: Node) -> int:
    if node.op in ("unpack", "pack", "accumulate") or node.rate == PIECE:
        return graph.num_pieces
    return 1


class _Phases:
    """The ways in which boxing actors run, asked in the order of the plan.

    An all_reduce runs flat over the bytes of its register: in one go, a large one in two halves, or
    as a call of the backend's own. A rank that is in such a call waits there for its group, so the
    groups of all such calls must be equal or have no rank in common: then a rank that waits in
    a call waits for ranks that have done all calls before it, and nobody waits in a circle. Boxing
    that runs several times in a step would need an order among its pieces too, and is not lowered.
    """

    def __init__(self, config: JobConfig, cluster: Cluster) -> None:
        self._lowers, self._cluster = config.lower_all_reduce, cluster
        self._group_of: dict[int, tuple[int, ...]] = {}

    def of(self, actor: ActorSpec) -> list[ActorSpec]:
        """A boxing actor, or its two halves if each sum is to be made by one rank and then
        spread."""
        if actor.kind is not ActorKind.BOXING:
            return [actor]
        way = boxing_way(actor.nodes[0], self._cluster)
        if way == "transfer":
            return [actor]
        first, second = ActorKind.BOX_SUM, ActorKind.BOX_SPREAD
        if isinstance(way, tuple):
            p = math.prod(actor.placement.hierarchy[axis] for axis in way)
            if self._lowers and actor.acts == 1 and self._may_wait(actor):
                actor.kind = ActorKind.ALL_REDUCE
                return [actor]
            if (
                sum(local_nbytes(n.outputs[0]) for n in actor.nodes) * (p - 1)
                < FLAT_TWO_PHASE_NBYTES
            ):
                actor.kind = ActorKind.FLAT_REDUCE
                return [actor]
            first, second = ActorKind.FLAT_REDUCE_SCATTER, ActorKind.FLAT_ALL_GATHER
        actor.kind = second
        return [ActorSpec(-1, first, actor.nodes, actor.level, actor.acts), actor]

    def _may_wait(self, actor: ActorSpec) -> bool:
        """Whether its groups fit those of the calls before it; if so, they are noted."""
        source, target = actor.nodes[0].inputs[0], actor.nodes[0].outputs[0]
        step = make_step(_sbp(source.sbp), source.placement, _sbp(target.sbp), target.placement)
        groups = {rank: g for g in groups_of(step.src_placement, step_axes(step)) for rank in g}
        fits = all(self._group_of.get(rank, group) == group for rank, group in groups.items())
        if fits:
            self._group_of.update(groups)
        return fits
