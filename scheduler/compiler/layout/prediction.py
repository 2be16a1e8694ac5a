"""Time and bytes of a step, predicted from the layouts that a search has chosen."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from oneflow.boxing.route import boxing_bytes
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.scheduler.compiler.layout.critical_path import node_seconds
from oneflow.scheduler.compiler.layout.signatures import (
    Choice,
    edge_weights,
    moved_by_parts,
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
    at a time, with the nodes in the order of the graph; `variable_nbytes` of it are variables. A
    stage of a pipeline holds as many micro-batches as there are stages from it on.
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
    weights = edge_weights(graph)
    moved = _moved(nodes, choices, layouts, copies, cluster, weights)
    held = [
        _memory(nodes, layouts, copies, places, _slots(nodes, places, weights, graph.num_pieces))
        for places in _profiles(node.placement for node in nodes)
    ]
    return Prediction(moved, *max(held))


Busy = Mapping[Placement, tuple[float, float]]
"""Seconds of a step in which the ranks of a placement are busy with micro-batches, all together,
and with what is done once a step."""


def step_seconds(busy: Busy, num_pieces: int) -> float:
    """The time of a step: of ranks that all do the same it is the time for which they are busy;
    stages of a pipeline (1F1B) wait while the first micro-batch comes and the last one leaves.
    """
    each = _profiles(busy)
    sums = [[sum(busy[place][i] for place in places) for i in (0, 1)] for places in each]
    if num_pieces == 1:  # one stage after the other
        return sum(piece + once for piece, once in sums)
    pieces = [piece / num_pieces for piece, _ in sums]
    rest = max((once for _, once in sums), default=0.0)
    return sum(pieces) + (num_pieces - 1) * max(pieces, default=0.0) + rest


def least_seconds(graph: LogicalGraph) -> float:
    """A time that no layouts of a step stay below: that of computing, which all ranks share."""
    seconds, weights = node_seconds(graph), edge_weights(graph)
    busy: dict[Placement, tuple[float, float]] = {}
    for node in graph:
        weight = weights[node.outputs[0].id] if node.outputs else 1
        each, once = busy.get(node.placement, (0.0, 0.0))
        spent = weight * seconds[node.id]
        busy[node.placement] = (each + spent, once) if weight > 1 else (each, once + spent)
    return step_seconds(busy, graph.num_pieces)


def _profiles(placements: Iterable[Placement]) -> list[tuple[Placement, ...]]:
    """Sets of these placements, each of those that some rank belongs to."""
    found = list(dict.fromkeys(placements))
    ranks = dict.fromkeys(r for place in found for r in place.rank_ids)
    return list(dict.fromkeys(tuple(p for p in found if rank in p.rank_ids) for rank in ranks))


def _slots(
    nodes: Sequence[Node],
    places: Sequence[Placement],
    weights: Mapping[int, int],
    num_pieces: int,
) -> dict[int, int]:
    """Micro-batches of which a value is held at a time, by its id, where they are several."""
    stages = {node.placement: node.stage for node in nodes if not node.is_structural}
    behind = max(stages.values(), default=0) - max((stages.get(p, 0) for p in places), default=0)
    if num_pieces == 1 or not behind:
        return {}
    slots = min(num_pieces, behind + 1)
    return {
        v.id: slots
        for node in nodes
        if node.placement in places and not node.is_structural
        for v in node.outputs
        if weights[v.id] > 1
    }


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
    nodes: Sequence[Node],
    choices: Sequence[Choice],
    layouts: dict[int, NdSbp],
    copies: dict[Copy, tuple[Value, list[int]]],
    cluster: Cluster,
    weights: Mapping[int, int],
) -> int:
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
            total += weights[node.outputs[0].id] * moved_by_parts(node, choice.inputs)
    return total


def _memory(
    nodes: Sequence[Node],
    layouts: dict[int, NdSbp],
    copies: dict[Copy, tuple[Value, list[int]]],
    places: Sequence[Placement],
    slots: Mapping[int, int],
) -> tuple[int, int]:
    """Bytes that a rank holds at the most, and those of its variables."""
    lives = Lives(nodes)
    changes = Counter[int]()
    stored = 0
    for position, value in lives.made:
        if value.placement in places:
            nbytes = local_nbytes(value, layouts[value.id], value.placement)
            nbytes *= slots.get(value.id, 1)
            changes[position] += nbytes
            changes[lives.last[value.id] + 1] -= nbytes
            stored += nbytes if value.node.op == "variable" else 0
    for (_, wanted, placement), (value, readers) in copies.items():
        if placement in places:
            nbytes = local_nbytes(value, wanted, placement)
            changes[readers[0]] += nbytes
            changes[readers[-1] + 1] -= nbytes
    live = itertools.accumulate(changes[position] for position in range(len(nodes)))
    return max(live, default=0), stored


def local_nbytes(value: Value, nd_sbp: NdSbp, placement: Placement) -> int:
    """Bytes of a value on a rank that holds an even share of it."""
    return -(-value.type.nbytes // num_parts(nd_sbp, placement.hierarchy))


def fullest(changes: Mapping[int, int]) -> int:
    """The first moment at which most bytes are held. changes: of the bytes, by moment."""
    live = most = at = 0
    for moment in sorted(changes):
        live += changes[moment]
        if live > most:
            most, at = live, moment
    return at


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
                shared = node.shared_input(index)
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
        peak = fullest(changes)
        return frozenset(v.id for p, v in self.made if p <= peak <= self.last[v.id])
