"""Places the stages of a pipeline on ranks of their own, as auto-parallel has decided.

A graph is traced with all values on one set of ranks, and `assign_stages` has cut it. When layouts
are searched, `place_stages` gives every stage its share of the ranks, or all of them another
hierarchy, and moves the values between stages. Inputs are fed, and outputs handed out, as before.
"""

from __future__ import annotations

import numpy as np

from oneflow.core.graph import LogicalGraph, Node, Value, written_variable
from oneflow.core.job_config import AutoParallel
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp
from oneflow.scheduler.compiler.layout.infer_sbp import Follower
from oneflow.scheduler.compiler.layout.pieces import ROWS, packed_layout, packed_type
from oneflow.scheduler.compiler.layout.signatures import edge_weights


def the_placement(graph: LogicalGraph) -> Placement | None:
    """The set of several ranks on which all of a graph runs, if it can be divided into stages:
    everything that it overwrites is its own to lay out.
    """
    found = {node.placement for node in graph}
    if len(found) != 1 or (one := found.pop()).size == 1:
        return None
    written = (written_variable(value).node for node in graph for value in node.overwritten)
    if any(node.op == "variable" and not node.attrs.get("free") for node in written):
        return None
    return one


def place_stages(graph: LogicalGraph, settings: AutoParallel) -> None:
    """Divides the ranks among the stages, if the settings say so."""
    if settings.num_stages == 1 and not settings.grid:
        return
    everyone = the_placement(graph)
    if everyone is None:
        return
    places = stage_placements(everyone, settings)
    nodes = list(graph)
    handed = _handed_out(graph)
    for node in nodes:
        if node.op == "input" or (node.op == "variable" and not node.attrs.get("free")):
            continue
        if node.op != "output":
            node.placement = places[node.stage]
            for value in node.outputs:
                value.sbp = _translated(node, value.sbp)
    moved: dict[tuple[int, Placement], Value] = {}
    for node in nodes:
        if node.op == "output":
            _hand_out(graph, node, handed[node.id], len(places) - 1)
        elif node.op != "to_global":
            _bring_inputs(graph, node, moved)


def stage_placements(everyone: Placement, settings: AutoParallel) -> list[Placement]:
    """The ranks of each stage, in order."""
    count = everyone.size // settings.num_stages
    grid = settings.grid or (count,)
    ranks = np.array(everyone.rank_ids).reshape(settings.num_stages, *grid)
    return [Placement(everyone.type, part) for part in ranks]


def _translated(node: Node, nd_sbp: NdSbp | None) -> NdSbp | None:
    """The layout that was fixed, over the axes of a node's new placement. Rows of micro-batches are
    split over the first one alone, so that the others are left for the model.
    """
    ndim = node.placement.ndim
    if nd_sbp is None or len(nd_sbp) == ndim:
        return nd_sbp
    if node.op == "unpack":
        return tuple(ROWS if ROWS in nd_sbp and not i else BROADCAST for i in range(ndim))
    same = len(set(nd_sbp)) == 1
    return (nd_sbp[0] if same else BROADCAST,) * ndim


def _handed_out(graph: LogicalGraph) -> dict[int, NdSbp]:
    """The layout of each output in eager execution, by the node's id."""
    layouts, weights = Follower(graph).layouts, edge_weights(graph)
    found = {}
    unpack = next(iter(graph.of_kind("unpack")), None)
    piece = unpack.outputs[0] if unpack is not None else None
    of_piece = layouts[piece.id] if piece is not None else None
    for node in graph.of_kind("output"):
        (value,) = node.inputs
        nd_sbp = found[node.id] = layouts[value.id]
        if weights[value.id] > 1:
            found[node.id] = packed_layout(value, nd_sbp, piece, of_piece)
    return found


def _hand_out(graph: LogicalGraph, node: Node, nd_sbp: NdSbp, last: int) -> None:
    """Brings an output back to all ranks, once a step: micro-batches are packed before."""
    (value,) = node.inputs
    if edge_weights(graph)[value.id] > 1:
        value = _packed(graph, node, value)
    call = "to_global", [value], [value.type], node.placement
    back = graph.insert(node, *call, sbp=[nd_sbp])
    back.stage = node.stage = last
    graph.set_input(node, 0, back.outputs[0])


def _packed(graph: LogicalGraph, node: Node, value: Value) -> Value:
    whole = (BROADCAST,) * value.placement.ndim
    piece = next((n.outputs[0] for n in graph.of_kind("unpack")), None)
    nd_sbp = packed_layout(value, whole, piece, piece.sbp if piece is not None else None)
    types = [packed_type(value.type, graph.num_pieces)]
    for op, results in (("to_global", [value.type]), ("pack", types)):
        made = graph.insert(node, op, [value], results, value.placement, sbp=[nd_sbp])
        made.stage = value.node.stage
        value = made.outputs[0]
    return value


def _bring_inputs(
    graph: LogicalGraph, node: Node, moved: dict[tuple[int, Placement], Value]
) -> None:
    for i, value in enumerate(node.inputs):
        if value.placement == node.placement:
            continue
        nd_sbp = node.outputs[0].sbp if node.op == "unpack" else None
        key = value.id, node.placement
        if key not in moved:
            moved[key] = _brought(graph, node, value, nd_sbp)
        graph.set_input(node, i, moved[key])
        if value.node.op == "input" and not value.users:
            graph.erase(value.node)


def _brought(graph: LogicalGraph, node: Node, value: Value, nd_sbp: NdSbp | None) -> Value:
    """The value where a node runs. A number is fed to every rank anyway, by its name."""
    if value.node.op == "input" and not value.type.ndim:
        whole = (BROADCAST,) * node.placement.ndim
        attrs, types = value.node.attrs, [value.type]
        return graph.insert(node, "input", [], types, node.placement, attrs, sbp=[whole]).outputs[0]
    call = "to_global", [value], [value.type], node.placement
    return graph.insert(node, *call, sbp=[nd_sbp]).outputs[0]
