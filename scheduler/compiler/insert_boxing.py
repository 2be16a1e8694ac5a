"""Puts boxing nodes wherever a reader wants a value to lie otherwise than it does: one for each
step of the route.

All readers that want the same share one node; it stands right before the first of them. A to_global
becomes a boxing node, or goes if its input lies so already.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from oneflow.boxing.route import choose_route
from oneflow.boxing.transitions import RouteStep, make_step
from oneflow.core.errors import InternalError, SbpError
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, nd_sbp_str
from oneflow.scheduler.compiler.signatures import (
    MOVES,
    Choice,
    Signatures,
    plan_network,
    same_layout,
)

_SAME = frozenset({"input", "variable", "output"})
"""Kinds that take their input, if any, as it is."""

_Moved = dict[tuple[int, NdSbp, Placement], Value]


def insert_boxing(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Afterwards producer and reader agree on every edge, but for output nodes, which take what
    they get."""
    wanted = _Wanted(cluster)
    moved: _Moved = {}
    for node in graph:
        if node.op in MOVES:
            _settle(graph, node, moved, cluster)
        elif node.inputs and node.op not in _SAME:
            _box_inputs(graph, node, wanted.inputs(node), moved, cluster)


def _settle(graph: LogicalGraph, node: Node, moved: _Moved, cluster: Cluster) -> None:
    """Makes a to_global the last boxing node of a route, or removes it."""
    source, target = node.inputs[0], node.outputs[0]
    if source.sbp == target.sbp and source.placement == target.placement:
        same = source
    else:
        node.op, node.attrs = "boxing", {}
        same = moved.setdefault((source.id, _known(target), target.placement), target)
        if same is target:
            *first, _ = _steps(source, _known(target), target.placement, cluster)
            graph.set_input(node, 0, _follow(graph, node, source, first))
    if same is not target:
        hand_over(target, same)
        graph.erase(node)


def hand_over(old: Value, new: Value) -> None:
    """Every reader of `old` reads `new`. Linear in the number of readers, where
    `graph.replace_uses` searches for each."""
    users, old.users = old.users, []
    for user in dict.fromkeys(users):
        user.inputs = [new if v is old else v for v in user.inputs]
    new.users.extend(users)


def _steps(
    value: Value, nd_sbp: NdSbp, placement: Placement, cluster: Cluster
) -> tuple[RouteStep, ...]:
    """The route of a value; one step if only the name of its layout changes."""
    layouts = _known(value), value.placement, nd_sbp, placement
    network = plan_network(cluster, value.placement, placement)
    return choose_route(value.type, *layouts, network) or (make_step(*layouts),)


def _follow(graph: LogicalGraph, before: Node, value: Value, steps: Sequence[RouteStep]) -> Value:
    """The value after some steps, each a boxing node right before a node."""
    for step in steps:
        sbp = [step.dst_sbp]
        boxing = graph.insert(before, "boxing", [value], [value.type], step.dst_placement, sbp=sbp)
        value = boxing.outputs[0]
    return value


def _box_inputs(
    graph: LogicalGraph, node: Node, wanted: tuple[NdSbp, ...], moved: _Moved, cluster: Cluster
) -> None:
    placement = node.placement
    for i, (value, nd_sbp) in enumerate(zip(node.inputs, wanted, strict=True)):
        same_place = value.placement is placement or value.placement == placement
        if same_place and (
            value.sbp == nd_sbp or same_layout(_known(value), nd_sbp, placement.hierarchy)
        ):
            continue
        key = (value.id, nd_sbp, placement)
        boxed = moved.get(key)
        if boxed is None:
            steps = _steps(value, nd_sbp, placement, cluster)
            boxed = moved[key] = _follow(graph, node, value, steps)
        graph.set_input(node, i, boxed)


def _known(value: Value) -> NdSbp:
    if value.sbp is None:
        raise InternalError(f"{value} of {value.node.describe()} has no SBP")
    return value.sbp


class _Wanted:
    """How each node wants its inputs to lie: the cheapest of the signatures that make its outputs
    as they were chosen."""

    def __init__(self, cluster: Cluster) -> None:
        self._signatures = Signatures(cluster)
        self._found: dict[Hashable, tuple[NdSbp, ...]] = {}

    def inputs(self, node: Node) -> tuple[NdSbp, ...]:
        sources = tuple([(v.sbp, v.placement) for v in node.inputs])
        key = (self._signatures.key(node), sources, tuple([v.sbp for v in node.outputs]))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._cheapest(node)
        return found

    def _cheapest(self, node: Node) -> tuple[NdSbp, ...]:
        outputs = tuple(_known(v) for v in node.outputs)
        best, least = None, math.inf
        for choice in self._signatures.of(node):
            if choice.outputs != outputs:
                continue
            seconds = self._seconds(node, choice)
            if seconds < least:
                best, least = choice, seconds
        if best is None:
            inputs = ", ".join(f"{v} {v.type} {nd_sbp_str(_known(v))}" for v in node.inputs)
            raise SbpError(
                f"{node.describe()}: no SBP signature makes "
                f"{' '.join(map(nd_sbp_str, outputs))} of {inputs}"
            )
        return best.inputs

    def _seconds(self, node: Node, choice: Choice) -> float:
        total = 0.0
        fixed = () if node.is_structural else find_op(node.op).mutates.values()
        for i, (value, nd_sbp) in enumerate(zip(node.inputs, choice.inputs, strict=True)):
            before = _known(value)
            if i in fixed and not same_layout(before, nd_sbp, node.placement.hierarchy):
                return math.inf  # what is overwritten cannot be a copy
            edge = self._signatures.edge(value.type, value.placement, node.placement)
            total += edge[before, nd_sbp]
        return total
