"""Puts boxing nodes wherever a reader wants a value to lie otherwise than it does: one for each
step of the route.

All readers that want the same share one node; it stands right before the first of them. A to_global
becomes a boxing node, or goes if its input lies so already. An op that runs on parts of shards
becomes a `parts` node, which moves its operands itself; one that moves rows between ranks becomes
an `exchange`, whose inputs one node has made for it alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from oneflow.boxing.route import choose_route
from oneflow.boxing.rows import has_rows_of_one_node
from oneflow.boxing.signatures import NdSignature
from oneflow.boxing.transitions import RouteStep, make_step
from oneflow.core.errors import InternalError
from oneflow.core.graph import LogicalGraph, Node, Value, hand_over
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.scheduler.compiler.layout.signatures import (
    MOVES,
    op_signature,
    plan_network,
    same_layout,
)

_SAME = frozenset({"input", "variable", "output"})
"""Kinds that take their input, if any, as it is."""

_Moved = dict[tuple[int, NdSbp, Placement], Value]


def insert_boxing(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Afterwards producer and reader agree on every edge, but for output nodes, which
    take any layout."""
    wanted = _Wanted()
    moved: _Moved = {}
    for node in graph:
        if node.op in MOVES:
            _settle(graph, node, moved, cluster)
        elif node.inputs and node.op not in _SAME:
            signature = wanted.of(node)
            if signature is None:
                continue
            _box_inputs(graph, node, signature.inputs, moved, cluster)
            if signature.by_parts:
                kind = "exchange" if node.declared.moves_rows else "parts"
                node.op, node.attrs = kind, {"of": node.op, **node.attrs}
                if kind == "exchange" and not has_rows_of_one_node(node):
                    _pack_rows(graph, node)


def _settle(graph: LogicalGraph, node: Node, moved: _Moved, cluster: Cluster) -> None:
    """Makes a to_global the last boxing node of a route, or removes it."""
    source, target = node.inputs[0], node.outputs[0]
    if source.sbp == target.sbp and source.placement == target.placement:
        same = source
    else:
        same = moved.setdefault((source.id, _known(target), target.placement), target)
        if same is target:
            *first, last = _steps(source, _known(target), target.placement, cluster)
            node.op, node.attrs = _step_node(source, last)
            graph.set_input(node, 0, _follow(graph, node, source, first))
    if same is not target:
        hand_over(target, same)
        graph.erase(node)


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
        op, attrs = _step_node(value, step)
        moved = [value.type], step.dst_placement, attrs
        value = graph.insert(before, op, [value], *moved, sbp=[step.dst_sbp]).outputs[0]
    return value


def _step_node(value: Value, step: RouteStep) -> tuple[str, Attrs]:
    """The kind and attributes of the node that makes a step. A cut of copies waits for nobody:
    it is a slice of everything, a view inside a segment."""
    if step.kind != "slice":
        return "boxing", {}
    shape = value.type.shape
    return "slice", {"starts": (0,) * len(shape), "stops": shape, "steps": (1,) * len(shape)}


def _box_inputs(
    graph: LogicalGraph, node: Node, wanted: tuple[NdSbp, ...], moved: _Moved, cluster: Cluster
) -> None:
    placement = node.placement
    for i, (value, nd_sbp) in enumerate(zip(node.inputs, wanted, strict=True)):
        if not _is_elsewhere(node, value, nd_sbp):
            continue
        key = (value.id, nd_sbp, placement)
        boxed = moved.get(key)
        if boxed is None:
            steps = _steps(value, nd_sbp, placement, cluster)
            boxed = moved[key] = _follow(graph, node, value, steps)
        graph.set_input(node, i, boxed)


def _pack_rows(graph: LogicalGraph, node: Node) -> None:
    """Let an exchange read values made for it alone."""
    attrs = {name: node.attrs[name] for name in ("num_parts", "lead")}
    types, sbps = [v.type for v in node.inputs], [v.sbp for v in node.inputs]
    given = list(node.inputs)
    packed = graph.insert(node, "pack_rows", given, types, node.placement, attrs, sbp=sbps)
    for i, value in enumerate(packed.outputs):
        graph.set_input(node, i, value)


def _known(value: Value) -> NdSbp:
    if value.sbp is None:
        raise InternalError(f"{value} of {value.node.describe()} has no SBP")
    return value.sbp


class _Wanted:
    """The layouts in which each node wants its inputs so that it makes its outputs as they were
    chosen. Equal calls are decided once.
    """

    def __init__(self) -> None:
        self._found: dict[Hashable, NdSignature | None] = {}
        self._kinds: dict[Hashable, int] = {}
        self._kind_of: dict[int, int] = {}

    def of(self, node: Node) -> NdSignature | None:
        """None: the node takes its inputs as they are."""
        key = (
            node.op,
            node.kind_key,
            node.placement,
            tuple([self._kind(v) for v in node.inputs]),
            tuple([self._kind(v) for v in node.outputs]),
        )
        if key not in self._found:
            signature = _signature(node)
            is_there = not signature.by_parts and not any(
                _is_elsewhere(node, value, nd_sbp)
                for value, nd_sbp in zip(node.inputs, signature.inputs, strict=True)
            )
            self._found[key] = None if is_there else signature
        return self._found[key]

    def _kind(self, value: Value) -> int:
        """A number for values of one type, layout and placement."""
        found = self._kind_of.get(value.id)
        if found is None:
            kind = value.type, value.node.placement, _known(value)
            found = self._kind_of[value.id] = self._kinds.setdefault(kind, len(self._kinds))
        return found


def _signature(node: Node) -> NdSignature:
    outputs = tuple([_known(v) for v in node.outputs])
    if node.is_structural:
        return NdSignature(outputs[:1], outputs)
    return op_signature(node, {v.id: _known(v) for v in node.inputs}, outputs)


def _is_elsewhere(node: Node, value: Value, nd_sbp: NdSbp) -> bool:
    """Whether an input of a node has to be moved to lie as `nd_sbp` on the node's placement."""
    if value.placement != node.placement:
        return True
    hierarchy = node.placement.hierarchy
    return value.sbp != nd_sbp and not same_layout(_known(value), nd_sbp, hierarchy)
