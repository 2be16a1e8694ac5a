"""The layouts with which a step of a graph takes the least time: auto-parallel.

What the user fixed (variables, inputs, to_global) stays. For the rest the choice is made in two
walks, min-sum over the graph:

  forward   each value gets a message: for every SBP it could have, the least time of having made it
            so, itself and all that it is made of;
  backward  each node, last first, takes the choice that is cheapest given the messages of its
            inputs and what its readers, which have chosen already, want.

On a tree this is the optimum. Where a node has several readers its message is shared evenly between
them, and the backward walk counts each distinct wish once, since a moved value is moved once for
all who want it so. Equal neighbourhoods (the layers of a deep network) have equal messages, so each
is solved once: the walks are linear, and cheap on repeated blocks. Where values have many readers
the walks may miss; so the layouts of eager execution are taken where these are better.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import Cluster
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, check_fits, nd_sbp_str
from oneflow.core.tensor_type import TensorType
from oneflow.scheduler.compiler.infer_sbp import Follower
from oneflow.scheduler.compiler.pieces import gathers_rows, rows_may_stay_split
from oneflow.scheduler.compiler.signatures import (
    MOVES,
    Choice,
    Signatures,
    check_placements,
    edge_weights,
    no_signature,
)

EPSILON = 1e-13
"""Seconds below which two costs are equal, and the choice listed first stays."""

_ANY = Choice((), (), 0.0)
"""The signature of an output node: it takes its input as it is."""

Wish = tuple[NdSbp, Placement]


def search_sbp(graph: LogicalGraph, cluster: Cluster) -> dict[int, NdSbp]:
    """Value id -> layout. Raises SbpError or PlacementError with the user's line."""
    nodes = list(graph)
    signatures, weights = Signatures(cluster), edge_weights(graph)
    found = [
        _Solver(graph, cluster).solve(nodes),
        _followed(graph, signatures),
        _Solver(graph, cluster, whole_sources=True).solve(nodes),
    ]
    best = min(found, key=lambda choices: step_seconds(nodes, choices, signatures, weights))
    return {
        value.id: nd_sbp
        for node, choice in zip(nodes, best, strict=True)
        for value, nd_sbp in zip(node.outputs, choice.outputs, strict=True)
    }


def _followed(graph: LogicalGraph, signatures: Signatures) -> list[Choice]:
    follower = Follower(graph)
    found = []
    for node in graph:
        if node.op == "output":
            found.append(_ANY)
        elif _is_fixed(node):
            found += _as_fixed(node)
        else:
            found.append(signatures.choice(node, follower.signatures[node.id]))
    return found


def step_seconds(
    nodes: Sequence[Node],
    choices: Sequence[Choice],
    signatures: Signatures,
    weights: dict[int, int],
) -> float:
    """Estimated time of a step in which node i takes choice i: computing and moving, one after the
    other.

    A value that is moved is moved once for all readers that want it so.  weights: see
    `edge_weights`.
    """
    layout: dict[int, NdSbp] = {}
    moves: dict[tuple[int, NdSbp, Placement], float] = {}
    computing = 0.0
    for node, choice in zip(nodes, choices, strict=True):
        computing += choice.seconds * (weights[node.outputs[0].id] if node.outputs else 1)
        for value, wanted in zip(node.inputs, choice.inputs, strict=False):
            edge = signatures.edge(value.type, value.placement, node.placement)
            seconds = weights[value.id] * edge[layout[value.id], wanted]
            moves[value.id, wanted, node.placement] = seconds
        for value, nd_sbp in zip(node.outputs, choice.outputs, strict=True):
            layout[value.id] = nd_sbp
    return computing + sum(moves.values())


class _Message:
    """The knowledge of a reader about a value: for each SBP it could have, the least seconds (the
    cheapest has 0).
    """

    __slots__ = ("costs", "id", "placement", "type", "weight")

    def __init__(
        self,
        id: int,
        type: TensorType,
        placement: Placement,
        weight: int,
        costs: dict[NdSbp, float],
    ) -> None:
        self.id = id
        self.type = type
        self.placement = placement
        self.weight = weight
        self.costs = costs


class _Solved:
    """The choices of a node in a given neighbourhood: `base[i]` seconds for choice i up to and with
    the node."""

    __slots__ = ("base", "choices", "id", "outputs")

    def __init__(
        self, id: int, choices: Sequence[Choice], base: list[float], outputs: list[_Message]
    ) -> None:
        self.id = id
        self.choices = choices
        self.base = base
        self.outputs = outputs


class _Solver:
    """whole_sources: inputs and variables that are not fixed are B."""

    def __init__(
        self,
        graph: LogicalGraph,
        cluster: Cluster,
        *,
        whole_sources: bool = False,
    ) -> None:
        self._signatures = Signatures(cluster)
        self._whole_sources = whole_sources
        self._weights = edge_weights(graph)
        self._rows_stay_split = rows_may_stay_split(graph)
        self._solved: dict[Hashable, _Solved] = {}
        self._of_node: dict[int, _Solved] = {}
        self._messages: dict[int, _Message] = {}
        self._interned: dict[Hashable, _Message] = {}
        self._wishes: dict[int, dict[Wish, None]] = {}
        self._overwritten: dict[int, NdSbp] = {}
        self._chosen: dict[Hashable, Choice] = {}
        self._mutated: dict[str, frozenset[int]] = {}

    def solve(self, nodes: Sequence[Node]) -> list[Choice]:
        """A choice per node."""
        for node in nodes:
            self.visit(node)
        chosen = [self.choose(node) for node in reversed(nodes)]
        chosen.reverse()
        return chosen

    # ---- forward ---------------------------------------------------------------------------------

    def visit(self, node: Node) -> None:
        """Solves a node whose inputs are solved."""
        if node.op == "output":
            return
        messages = [self._messages[v.id] for v in node.inputs]
        key = (
            node.op,
            node.kind_key,
            node.placement,
            tuple([m.id for m in messages]),
            tuple([(v.sbp, len(v.users)) for v in node.outputs]),
            tuple([v.type for v in node.outputs]) if not messages else None,
        )
        solved = self._solved.get(key)
        if solved is None:
            solved = self._solved[key] = self._solve(node, messages)
        self._of_node[node.id] = solved
        for value, message in zip(node.outputs, solved.outputs, strict=True):
            self._messages[value.id] = message

    def _solve(self, node: Node, messages: list[_Message]) -> _Solved:
        if node.op not in MOVES:
            check_placements(node)
        every = self._allowed(node)
        costs = self._costs(node, every, messages)
        choices = [c for c, seconds in zip(every, costs, strict=True) if seconds < math.inf]
        if not choices:
            had = [" or ".join(map(nd_sbp_str, m.costs)) for m in messages]
            raise no_signature(node, had)
        base = [seconds for seconds in costs if seconds < math.inf]
        readers = max(1, sum(len(v.users) for v in node.outputs))
        outputs = [self._message(v, i, choices, base, readers) for i, v in enumerate(node.outputs)]
        return _Solved(len(self._solved), choices, base, outputs)

    def _costs(
        self, node: Node, choices: Sequence[Choice], messages: list[_Message]
    ) -> list[float]:
        """Seconds up to and with the node, per choice."""
        best = [self._best_inputs(node, i, m, choices) for i, m in enumerate(messages)]
        weight = self._weight(node)
        return [
            weight * c.seconds + sum(b[s] for b, s in zip(best, c.inputs, strict=True))
            for c in choices
        ]

    def _weight(self, node: Node) -> int:
        return self._weights[node.outputs[0].id] if node.outputs else 1

    def _allowed(self, node: Node) -> Sequence[Choice]:
        """The choices that keep what is fixed of the outputs."""
        fixed = [v.sbp for v in node.outputs]
        if _is_fixed(node):
            return _as_fixed(node)
        every = self._signatures.of(node)
        if node.op == "unpack" and not self._rows_stay_split:
            return [c for c in every if gathers_rows(node.inputs[0].sbp, c.outputs[0])]
        if not node.inputs and self._whole_sources:
            return every[-1:]
        return [
            c
            for c in every
            if all(f is None or f == s for f, s in zip(fixed, c.outputs, strict=True))
        ]

    def _best_inputs(
        self, node: Node, index: int, message: _Message, choices: Sequence[Choice]
    ) -> dict[NdSbp, float]:
        """Return, for each SBP that input `index` may be wanted in, the least seconds to have it
        so.
        """
        wanted = dict.fromkeys(c.inputs[index] for c in choices)
        if index in self._mutated_inputs(node):
            return {w: message.costs.get(w, math.inf) for w in wanted}  # it cannot be a copy
        seconds = self._signatures.edge(message.type, message.placement, node.placement)
        return {
            w: min(cost + message.weight * seconds[had, w] for had, cost in message.costs.items())
            for w in wanted
        }

    def _mutated_inputs(self, node: Node) -> frozenset[int]:
        found = self._mutated.get(node.op)
        if found is None:
            structural = node.is_structural
            found = frozenset() if structural else frozenset(find_op(node.op).mutates.values())
            self._mutated[node.op] = found
        return found

    def _message(
        self,
        value: Value,
        index: int,
        choices: Sequence[Choice],
        base: list[float],
        readers: int,
    ) -> _Message:
        least: dict[NdSbp, float] = {}
        for choice, seconds in zip(choices, base, strict=True):
            nd_sbp = choice.outputs[index]
            if seconds < least.get(nd_sbp, math.inf):
                least[nd_sbp] = seconds
        lowest = min(least.values())
        costs = {s: round((c - lowest) / readers, 13) for s, c in least.items()}
        weight = self._weights[value.id]
        key = (value.type, value.placement, weight, tuple(costs.items()))
        message = self._interned.get(key)
        if message is None:
            message = _Message(len(self._interned), value.type, value.placement, weight, costs)
            self._interned[key] = message
        return message

    # ---- backward --------------------------------------------------------------------------------

    def choose(self, node: Node) -> Choice:
        """Fixes a node all of whose readers are fixed, and tells its producers what it wants."""
        if node.op == "output":
            return _ANY
        solved = self._of_node[node.id]
        wishes = [tuple(self._wishes.get(v.id, ())) for v in node.outputs]
        forced = tuple([self._overwritten.get(v.id) for v in node.outputs])
        key = (solved.id, forced, *wishes)
        choice = self._chosen.get(key)
        if choice is None:
            choice = self._chosen[key] = self._cheapest(solved, wishes, forced)
        for value, nd_sbp in zip(node.inputs, choice.inputs, strict=True):
            self._wishes.setdefault(value.id, {})[nd_sbp, node.placement] = None
        for index in self._mutated_inputs(node):
            self._overwritten[node.inputs[index].id] = choice.inputs[index]
        return choice

    def _cheapest(
        self,
        solved: _Solved,
        wishes: list[tuple[Wish, ...]],
        forced: tuple[NdSbp | None, ...],
    ) -> Choice:
        """The choice with the least time up to here and of moving the outputs to where they are
        wanted.

        forced: of an output that is overwritten, how the op that does so has it.
        """
        best, least = solved.choices[0], math.inf
        for choice, base in zip(solved.choices, solved.base, strict=True):
            if any(f not in (None, s) for f, s in zip(forced, choice.outputs, strict=True)):
                continue
            seconds = base
            for message, nd_sbp, wanted in zip(solved.outputs, choice.outputs, wishes, strict=True):
                for wish, placement in wanted:
                    edge = self._signatures.edge(message.type, message.placement, placement)
                    seconds += message.weight * edge[nd_sbp, wish]
            if seconds < least - EPSILON:
                best, least = choice, seconds
        return best


def _is_fixed(node: Node) -> bool:
    """Has the user given the layout of this variable, input, source or to_global?"""
    if node.inputs and node.op not in MOVES:
        return False
    return all(v.sbp is not None for v in node.outputs)


def _as_fixed(node: Node) -> list[Choice]:
    """The one choice of a variable, input, source or to_global whose layout the user gave."""
    outputs = tuple(v.sbp for v in node.outputs if v.sbp is not None)
    for value, nd_sbp in zip(node.outputs, outputs, strict=True):
        check_fits(nd_sbp, value.type.shape, node.describe())
    return [Choice(outputs[: len(node.inputs)], outputs, 0.0)]
