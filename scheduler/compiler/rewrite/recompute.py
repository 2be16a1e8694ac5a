"""Computes modules again in the backward pass, and forgets their values of the forward pass.

The forward ops of a module are copied in front of the first of its gradients that read their
values; copies that nobody reads go with all else that is dead. Values from elsewhere are read
through `depend` on the newest gradient, so that copies are neither merged with the first ones nor
run before their time; variables lie there anyway, and are read as they are, and so are casts of
them.

Draws have the numbers of the first pass. An overwritten value, such as a buffer, is read as it was
before, and writes of copies are dropped: statistics are counted once. A module inside another one
that is computed again is computed again once more, from the values of the copies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from oneflow.core.graph import AGAIN, BACKWARD, FORWARD, LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.ops.depend import depend
from oneflow.ops.unary import copy
from oneflow.scheduler.compiler.rewrite.insertion import inserting

_GIVEN = frozenset(("input", "variable", "unpack", "depend"))
"""Kinds of nodes that belong to no call of a module."""


def recompute(graph: LogicalGraph, config: JobConfig, cluster: Cluster) -> None:
    """Computes the modules `config.recomputed` again, outer ones first."""
    for path in sorted(config.recomputed, key=lambda path: path.count(".")):
        gradients = defaultdict[int, list[tuple[int, Node]]](list)
        for place, node in enumerate(graph):
            if node.phase == BACKWARD:
                gradients[node.grad_of].append((place, node))
        for call in _calls(graph, path):
            makers = [node.outputs[0].id for node in call if node.outputs]
            places = {place: node for i in makers for place, node in gradients[i]}
            _Part(graph, call, [places[place] for place in sorted(places)]).forget()


def is_under(module: str, path: str) -> bool:
    """Whether a module is the one at a path, or inside of it."""
    return module == path or module.startswith(f"{path}.")


def _calls(graph: LogicalGraph, path: str) -> list[list[Node]]:
    """The nodes of each call of a module, which stand side by side; without the nodes that
    bring its arguments to where it runs.
    """
    calls: list[list[Node]] = []
    made: set[int] = set()
    last, depth = "", path.count(".") + 1
    for node in graph:
        if node.op in _GIVEN:
            continue
        is_inside = node.phase in (FORWARD, AGAIN) and is_under(node.module, path)
        if is_inside and (node.phase != last or 0 < node.opens <= depth):
            calls.append([])
            made = set()
        last = node.phase if is_inside else ""
        if is_inside and (node.op != "to_global" or node.inputs[0].id in made):
            calls[-1].append(node)
            made.update(v.id for v in node.outputs)
    return calls


class _Part:
    """One call of a module. nodes: of its forward pass.  gradients: of its backward pass."""

    def __init__(self, graph: LogicalGraph, nodes: list[Node], gradients: list[Node]) -> None:
        self._graph, self._nodes, self._gradients = graph, nodes, gradients
        self._made = {v.id for node in nodes for v in node.outputs}
        self._again: dict[int, Value] = {}
        """The values that stand for others in the copies, by the others' ids."""
        self._newest: dict[Placement, Value | None] = {}

    def forget(self) -> None:
        """Let the gradients of the call read copies."""
        readers = [n for n in self._gradients if any(self._is_forgotten(v) for v in n.inputs)]
        needed = self._ancestors(v for n in readers for v in n.inputs) if readers else set()
        for node in self._nodes if readers else ():
            if node.id in needed or not node.has_effect:
                self._copy(node, readers[0])
        for node in self._gradients:
            for i, value in enumerate(node.inputs):
                if self._is_forgotten(value):
                    self._graph.set_input(node, i, self._again[value.id])
            twin = self._again.get(node.grad_of)
            node.grad_of = node.grad_of if twin is None else twin.id

    def _is_forgotten(self, value: Value) -> bool:
        return value.id in self._made and not _lies_there(value)

    def _ancestors(self, values: Iterable[Value]) -> set[int]:
        """The ids of the nodes of the call that the values are made by."""
        wanted, found = list(values), set[int]()
        while wanted:
            value = wanted.pop()
            if value.node.id not in found and self._is_forgotten(value):
                found.add(value.node.id)
                wanted += value.node.inputs
        return found

    def _copy(self, node: Node, before: Node) -> None:
        inputs = [self._read(value, before) for value in node.inputs]
        types = [v.type for v in node.outputs]
        with inserting(self._graph, before, like=node, phase=AGAIN) as at:
            twin = at.add(node.op, inputs, types, node.placement, node.attrs)
        twin.rate, twin.has_own_dtypes = node.rate, node.has_own_dtypes
        twin.opens = node.opens
        twin.grad_of = node.outputs[0].id if node.outputs else -1
        for value, new in zip(node.outputs, twin.outputs, strict=True):
            new.sbp = value.sbp
            self._again[value.id] = new

    def _read(self, value: Value, before: Node) -> Value:
        """Return the value that a copy reads instead of another; a value from elsewhere is
        read once it is time.
        """
        if value.id in self._again:
            return self._again[value.id]
        writer = next((u for u in value.users if _overwrites(u, value)), None)
        if writer is not None:
            found = self._kept(value, writer)
        elif _lies_there(value) or (newest := self._newest_at(value.placement, before)) is None:
            return value
        else:
            with inserting(self._graph, before, like=self._nodes[0], phase=AGAIN) as at:
                found = at.call(depend, value, newest)
            found.node.stage = value.node.stage
        found.sbp = value.sbp
        self._again[value.id] = found
        return found

    def _kept(self, value: Value, writer: Node) -> Value:
        """A copy of a value as it is before it is overwritten."""
        with inserting(self._graph, writer) as at:
            found: Value = at.call(copy, value)
        found.node.rate = writer.rate
        return found

    def _newest_at(self, placement: Placement, before: Node) -> Value | None:
        """The last value of the backward pass somewhere, in front of a node. Values computed again
        do not count: some of them are read by nobody, and so not computed.
        """
        if placement not in self._newest:
            node = before.prev
            while node is not None and not (
                node.phase == BACKWARD and node.placement == placement and node.outputs
            ):
                node = node.prev
            self._newest[placement] = None if node is None else node.outputs[0]
        return self._newest[placement]


def _overwrites(node: Node, value: Value) -> bool:
    """Whether a node overwrites a value before the backward pass may be through."""
    return node.phase in (FORWARD, AGAIN) and node.overwrites(value)


def _lies_there(value: Value) -> bool:
    """Whether a value is a variable, or a cast of one, which all readers share."""
    node = value.node
    return node.op == "variable" or (node.op == "cast" and node.inputs[0].node.op == "variable")
