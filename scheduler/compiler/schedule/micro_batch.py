"""Tells nodes that run once a step from those that run once a piece, and puts a node where the rate
changes.
"""

from __future__ import annotations

from oneflow.core.draws import is_drawn_once
from oneflow.core.errors import GraphError
from oneflow.core.graph import PIECE, STEP, LogicalGraph, Node, Value, hand_over, written_variable
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.sbp import NdSbp
from oneflow.scheduler.compiler.layout.pieces import packed_layout, packed_type

RATE_CHANGES = frozenset({"unpack", "accumulate", "pack", "repeat"})


def micro_batch(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Sets `rate` of every node: that of its outputs.

    With one piece a step the rate-changing nodes go. Otherwise everything made of a piece is made
    per piece, until `accumulate` or `pack` makes one value of all pieces; a step's value that a
    piece needs passes a `repeat`, except variables, which are memory and may be read at any rate; a
    piece's value that leaves the graph passes a `pack`.
    """
    if graph.num_pieces == 1:
        _remove_rate_changes(graph)
        return
    written = _written_each_piece(graph)
    repeated: dict[int, Value] = {}
    packed: dict[int, Value] = {}
    piece: Value | None = None
    for node in graph:
        _set_rate(graph, node, written)
        if node.op == "unpack":
            piece = piece or node.outputs[0]
        if node.op == "output":
            _pack(graph, node, packed, piece)
        elif node.rate == PIECE and node.op != "unpack":
            _repeat_inputs(graph, node, repeated)


def _remove_rate_changes(graph: LogicalGraph) -> None:
    for node in graph:
        if node.op in RATE_CHANGES:
            hand_over(node.outputs[0], node.inputs[0])
            graph.erase(node)
        else:
            node.rate = STEP


def _is_piece(value: Value) -> bool:
    return value.node.rate == PIECE


def _set_rate(graph: LogicalGraph, node: Node, written: set[int]) -> None:
    has_piece = any(_is_piece(v) or v.id in written for v in node.inputs)
    if node.op == "unpack" and has_piece:
        raise GraphError(f"{node.describe()}: a piece cannot be cut into pieces again")
    if node.op in ("accumulate", "pack"):
        node.rate = STEP
        if not has_piece:
            _settle_step_value(graph, node)
    elif node.op in ("unpack", "repeat"):
        node.rate = PIECE
    else:
        is_of_piece = has_piece or _runs_each_piece(node)
        node.rate = PIECE if is_of_piece and node.op != "output" else STEP


def _written_each_piece(graph: LogicalGraph) -> set[int]:
    """Variables that are overwritten by each piece. So a reader of one reads it for each piece:
    the next one finds another value.
    """
    written: set[int] = set()
    while True:
        found = _written_by_pieces(graph, written)
        if found <= written:
            return written
        written |= found


def _written_by_pieces(graph: LogicalGraph, written: set[int]) -> set[int]:
    """The same, if those in `written` are known to be."""
    made: set[int] = set()
    found: set[int] = set()
    for node in graph:
        is_of_piece = any(v.id in made or v.id in written for v in node.inputs)
        if node.op in ("accumulate", "pack") or not (
            is_of_piece or node.op == "unpack" or _runs_each_piece(node)
        ):
            continue
        made.update(v.id for v in node.outputs)
        roots = map(written_variable, node.overwritten)
        found.update(v.id for v in roots if v.node.op == "variable")
    return found


def _runs_each_piece(node: Node) -> bool:
    """Tell whether a node runs for each piece, even if all that it reads is the same: a random op
    draws anew, and a write in build() happens for each micro-batch, which the tracer notes as its
    rate.
    """
    if node.declared.is_random:
        return not is_drawn_once(int(node.attrs["seed"]))
    return bool(node.declared.mutates) and node.rate == PIECE


def _settle_step_value(graph: LogicalGraph, node: Node) -> None:
    """Replace the mean over the pieces of a value that is the same for all by that value."""
    if node.op == "pack":
        raise GraphError(f"{node.describe()}: only what is made per piece can be packed")
    hand_over(node.outputs[0], node.inputs[0])
    graph.erase(node)


def _repeat_inputs(graph: LogicalGraph, node: Node, repeated: dict[int, Value]) -> None:
    if node.op == "repeat":
        return
    for i, value in enumerate(node.inputs):
        if _is_piece(value) or value.node.op == "variable":
            continue
        again = repeated.get(value.id)
        if again is None:
            repeat = graph.insert(
                node, "repeat", [value], [value.type], value.placement, sbp=[value.sbp]
            )
            repeat.rate = PIECE
            again = repeated[value.id] = repeat.outputs[0]
        graph.set_input(node, i, again)


def _pack(graph: LogicalGraph, node: Node, packed: dict[int, Value], piece: Value | None) -> None:
    value = node.inputs[0]
    if not _is_piece(value):
        return
    whole = packed.get(value.id)
    if whole is None:
        nd_sbp = packed_layout(value, value.sbp or (), piece, piece.sbp if piece else None)
        source = value if nd_sbp == value.sbp else _box_piece(graph, node, value, nd_sbp)
        type_ = packed_type(value.type, graph.num_pieces)
        pack = graph.insert(node, "pack", [source], [type_], value.placement, sbp=[nd_sbp])
        pack.stage = value.node.stage
        whole = packed[value.id] = pack.outputs[0]
    graph.set_input(node, 0, whole)


def _box_piece(graph: LogicalGraph, before: Node, value: Value, nd_sbp: NdSbp) -> Value:
    boxing = graph.insert(before, "boxing", [value], [value.type], value.placement, sbp=[nd_sbp])
    boxing.stage, boxing.rate = value.node.stage, PIECE
    return boxing.outputs[0]
