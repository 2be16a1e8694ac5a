"""The trunk of a graph: its longest path by time of computing, beside which exchanges can wait.

Data moved beside the trunk (the gradients of all but the last layers, on their way to
the updates) wait for their peers while the trunk computes. So their bytes count, not their waiting.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.scheduler.compiler.layout.signatures import compute_seconds


class Trunk:
    """Longest paths through the nodes of a graph, in seconds on as many ranks as share its work."""

    def __init__(self, graph: LogicalGraph) -> None:
        nodes = list(graph)
        seconds = node_seconds(nodes)
        self._until: dict[int, float] = {}
        self._after: dict[int, float] = {}
        for node in nodes:
            before = max([self._until[v.node.id] for v in node.inputs], default=0.0)
            self._until[node.id] = before + seconds[node.id]
        for node in reversed(nodes):
            readers = [u.id for v in node.outputs for u in v.users]
            self._after[node.id] = seconds[node.id] + max(
                [self._after[r] for r in readers], default=0.0
            )
        self.seconds = max(self._until.values(), default=0.0)

    def slack(self, value: Value, readers: Iterable[Node]) -> float:
        """Seconds by which the readers may get the value later without making the step longer."""
        rest = max([self._after[node.id] for node in readers], default=0.0)
        return self.seconds - self._until[value.node.id] - rest


def node_seconds(nodes: Iterable[Node]) -> dict[int, float]:
    """The time of each node, by id, if its ranks divide the work."""
    known: dict[Hashable, float] = {}
    result = {}
    for node in nodes:
        types = tuple([v.type for v in node.inputs]), tuple([v.type for v in node.outputs])
        key = node.op, node.kind_key, node.placement.hierarchy, types
        if key not in known:
            known[key] = compute_seconds(node) / node.placement.size
        result[node.id] = known[key]
    return result
