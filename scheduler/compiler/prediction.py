"""Bytes that a step moves and holds, predicted from the layouts that a search has chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from oneflow.boxing.parts import plan_parts
from oneflow.boxing.route import boxing_bytes
from oneflow.boxing.rows import likely_nbytes
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.scheduler.compiler.signatures import (
    Choice,
    edge_weights,
    num_parts,
    plan_network,
    same_layout,
)

Copy = tuple[int, NdSbp, Placement]
"""A value by its id, and the layout and the place to which it is moved."""


@dataclass(frozen=True)
class Prediction:
    """Costs of a step.

    moved_nbytes: between ranks, of all of them together.  memory_nbytes: the most that a rank holds
    at a time, with the nodes in the order of the graph; `variable_nbytes` of it are variables.
    """

    moved_nbytes: int
    memory_nbytes: int
    variable_nbytes: int


def predict(
    graph: LogicalGraph, nodes: Sequence[Node], choices: Sequence[Choice], cluster: Cluster
) -> Prediction:
    """The bytes of a step in which node i takes choice i."""
    layouts = {
        value.id: nd_sbp
        for node, choice in zip(nodes, choices, strict=True)
        for value, nd_sbp in zip(node.outputs, choice.outputs, strict=True)
    }
    copies = _copies(nodes, choices, layouts)
    moved = _moved(graph, nodes, choices, layouts, copies, cluster)
    stored = sum(
        local_nbytes(v, layouts[v.id], v.placement)
        for node in nodes
        if node.op == "variable"
        for v in node.outputs
    )
    return Prediction(moved, _memory(nodes, layouts, copies), stored)


def _copies(
    nodes: Sequence[Node], choices: Sequence[Choice], layouts: dict[int, NdSbp]
) -> dict[Copy, tuple[Value, list[int]]]:
    """The moves of a step, each with the value and the positions of the nodes that want it."""
    found: dict[Copy, tuple[Value, list[int]]] = {}
    for position, (node, choice) in enumerate(zip(nodes, choices, strict=True)):
        for value, wanted in zip(node.inputs, choice.inputs, strict=False):
            if value.placement != node.placement or layouts[value.id] != wanted:
                key = value.id, wanted, node.placement
                found.setdefault(key, (value, []))[1].append(position)
    return found


def _moved(
    graph: LogicalGraph,
    nodes: Sequence[Node],
    choices: Sequence[Choice],
    layouts: dict[int, NdSbp],
    copies: dict[Copy, tuple[Value, list[int]]],
    cluster: Cluster,
) -> int:
    weights = edge_weights(graph)
    total = 0
    for (_, wanted, placement), (value, _) in copies.items():
        source, had = value.placement, layouts[value.id]
        if source == placement and same_layout(had, wanted, placement.hierarchy):
            continue
        network = plan_network(cluster, source, placement)
        moved = boxing_bytes(value.type, had, source, wanted, placement, network)
        total += weights[value.id] * moved
    for node, choice in zip(nodes, choices, strict=True):
        if choice.by_parts:
            types = tuple([v.type for v in node.inputs])
            op = find_op(node.op)
            if op.moves_rows:
                moved = likely_nbytes(types, node.placement)
            else:
                call = op, types, node.outputs[0].type, choice.inputs, node.attrs
                moved = plan_parts(*call, node.placement).received_nbytes
            total += weights[node.outputs[0].id] * moved
    return total


def _memory(
    nodes: Sequence[Node],
    layouts: dict[int, NdSbp],
    copies: dict[Copy, tuple[Value, list[int]]],
) -> int:
    lives = Lives(nodes)
    begins, ends = Counter[int](), Counter[int]()
    for position, value in lives.made:
        nbytes = local_nbytes(value, layouts[value.id], value.placement)
        begins[position] += nbytes
        ends[lives.last[value.id]] += nbytes
    for (_, wanted, placement), (value, readers) in copies.items():
        nbytes = local_nbytes(value, wanted, placement)
        begins[readers[0]] += nbytes
        ends[readers[-1]] += nbytes
    live = most = 0
    for position in range(len(nodes)):
        live += begins[position]
        most = max(most, live)
        live -= ends[position]
    return most


def local_nbytes(value: Value, nd_sbp: NdSbp, placement: Placement) -> int:
    """Bytes of a value on a rank that holds an even share of it."""
    return -(-value.type.nbytes // num_parts(nd_sbp, placement.hierarchy))


class Lives:
    """The times at which values hold memory of their own, in the order of the graph.

    made: position and value, of each that is not another's memory.  last: position at which the
    memory of such a value is read last, by its id; variables stay to the end.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.made: list[tuple[int, Value]] = []
        self.last: dict[int, int] = {}
        self._root: dict[int, int] = {}
        for position, node in enumerate(nodes):
            for value in node.inputs:
                self._read(self._root[value.id], position)
            for index, value in enumerate(node.outputs):
                shared = _shares(node, index)
                if shared is None:
                    self._root[value.id] = value.id
                    stays = node.op == "variable"
                    self.last[value.id] = len(nodes) - 1 if stays else position
                    self.made.append((0 if stays else position, value))
                else:
                    self._root[value.id] = self._root[shared.id]

    def _read(self, root: int, position: int) -> None:
        self.last[root] = max(self.last[root], position)

    def at_peak(self) -> frozenset[int]:
        """Ids of the values that hold memory when most of it is held, if nothing is split."""
        changes = Counter[int]()
        for position, value in self.made:
            changes[position] += value.type.nbytes
            changes[self.last[value.id] + 1] -= value.type.nbytes
        live = most = peak = 0
        for position in sorted(changes):
            live += changes[position]
            if live > most:
                most, peak = live, position
        return frozenset(v.id for p, v in self.made if p <= peak <= self.last[v.id])


def _shares(node: Node, index: int) -> Value | None:
    """The input whose memory an output is; None: it has its own."""
    if node.is_structural:
        return None
    op = find_op(node.op)
    source = op.mutates.get(index, 0 if op.is_view or op.is_alias else None)
    return None if source is None else node.inputs[source]
