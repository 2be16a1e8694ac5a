"""The layouts with which a step of a graph takes the least time: auto-parallel.

Each node has a variable, the signature that it takes. A value with one reader is a table over two
of them: the seconds of moving it from where the one leaves it to where the other wants it. A value
with several readers is moved once for all that want it alike, so it has a variable of its own: the
set of layouts in which it is made available. Its maker pays for each layout in the set, and each
reader's wish must be in it. The sum of all tables is the time of a step, and `min_sum` finds its
least: exactly on small graphs, by parts on large ones.

The layouts of eager execution are known before; the result is never worse. Outputs of the graph
come back as they would lie in eager execution: the results of a program do not depend on the
search.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from oneflow.boxing.signatures import NdSignature
from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import AutoParallel, Cluster
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp, check_fits, nd_sbp_str
from oneflow.scheduler.compiler.layout.critical_path import Trunk
from oneflow.scheduler.compiler.layout.infer_sbp import Follower
from oneflow.scheduler.compiler.layout.pieces import gathers_rows, rows_may_stay_split
from oneflow.scheduler.compiler.layout.place_stages import place_stages
from oneflow.scheduler.compiler.layout.prediction import (
    Lives,
    Prediction,
    local_nbytes,
    predict,
    step_seconds,
)
from oneflow.scheduler.compiler.layout.signatures import (
    MOVES,
    Choice,
    Edge,
    Signatures,
    check_placements,
    edge_weights,
    no_signature,
)
from oneflow.scheduler.compiler.layout.variable_elimination import (
    FORBIDDEN,
    Factor,
    Table,
    Tables,
    minimize,
    total,
)

ROUNDS = 10
"""Most times that a graph too large for an exact answer is solved, each from the answer before."""

PRICES = (0.0, 1e-12, 3e-12, 1e-11, 3e-11, 1e-10, 3e-10, 1e-9, 1e-8)
"""Seconds that a byte less is worth, tried in turn until the bytes fit."""

MOST_SETS = 400
"""Sets of layouts that a value with several readers may be made available in."""

HIDING_SECONDS = 2e-4
"""The least that the trunk must have left to compute to hide the waits of an exchange."""

MEASURED_RATIO = AutoParallel().computing_ratio
"""The weight of computing that stands for its estimated seconds."""

BETTER = 1e-12
"""Seconds by which a sum must be less to be better."""

Allows = Callable[[Node, NdSbp], bool]


class Chosen(NamedTuple):
    """The outcome of a search.

    nodes, choices: in the order of the graph.  seconds: the sum that is least, of the time of all
    stages and the price of memory.  is_exact: nothing is better.  bytes: moved and held.
    step_seconds: estimated time of a step, in which stages of a pipeline work beside each other.
    """

    nodes: list[Node]
    choices: list[Choice]
    seconds: float
    is_exact: bool
    bytes: Prediction
    step_seconds: float


def search_sbp(graph: LogicalGraph, settings: AutoParallel, cluster: Cluster) -> Chosen:
    """The signature of each node; before, ranks are divided among stages as the settings say.

    Raises SbpError or PlacementError with the user's line.
    """
    place_stages(graph, settings)
    return Search(graph, settings, cluster).best()


class Search:
    """Searches over one graph, under several conditions; their common part is done once."""

    def __init__(self, graph: LogicalGraph, settings: AutoParallel, cluster: Cluster) -> None:
        self._graph, self._settings, self._cluster = graph, settings, cluster
        self._models: dict[float, Model] = {}

    def best(self, allows: Allows | None = None) -> Chosen:
        """The layouts with the least time. allows: of free variables, which may be taken."""
        settings = self._settings
        if settings.memory_price is not None:
            return self._at_price(settings.memory_price, allows)
        for price in PRICES:
            found = self._at_price(price, allows)
            if fits(found, settings.memory_nbytes, self._cluster):
                break
        return found

    def followed(self) -> Chosen:
        """The signatures of eager execution, as `best` would weigh them."""
        model = self._model(self._settings.memory_price or 0.0)
        known = model.known()
        return self._chosen(model, known, model.seconds(known), False)

    def _model(self, price: float) -> Model:
        found = self._models.get(price)
        if found is None:
            settings = replace(self._settings, memory_price=price)
            found = self._models[price] = Model(self._graph, settings, self._cluster)
        return found

    def _at_price(self, price: float, allows: Allows | None) -> Chosen:
        model = self._model(price)
        factors, known = model.factors, model.known()
        if allows is not None:
            factors = [*factors, *model.conditions(allows)]
        seconds, is_exact, spared = total(factors, model.tables, known), False, frozenset[int]()
        for _ in range(ROUNDS):
            found = minimize(model.sizes, factors, model.tables, known, spared=spared)
            before, now = seconds, total(factors, model.tables, found.values)
            if now < seconds:
                known, seconds = found.values, now
            is_exact, spared = found.is_exact, spared | found.fixed
            if is_exact or before - now < BETTER:
                break
        return self._chosen(model, known, seconds, is_exact)

    def _chosen(
        self, model: Model, values: Sequence[int], seconds: float, is_exact: bool
    ) -> Chosen:
        choices = model.choices(values)
        held = predict(self._graph, model.nodes, choices, self._cluster)
        step = step_seconds(model.busy(values), self._graph.num_pieces)
        return Chosen(model.nodes, choices, seconds, is_exact, held, step)


def fits(found: Chosen, limit: int | None, cluster: Cluster) -> bool:
    """Whether a rank has the memory: `limit` bytes without variables, or its share of a host."""
    held = found.bytes
    if limit is not None:
        return held.memory_nbytes - held.variable_nbytes <= limit
    if any(node.placement.type != "cpu" for node in found.nodes):
        return True  # nobody knows the device's memory here
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return held.memory_nbytes <= pages // max(Counter(cluster.hosts).values())


# ---- the problem ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Kind:
    """The choices of nodes that are alike in all that their costs depend on."""

    number: int
    choices: tuple[Choice, ...]


@dataclass(frozen=True, eq=False)
class _Set:
    """The sets of layouts in which a value may be made available, as a variable's values."""

    wishes: tuple[NdSbp, ...]
    members: tuple[tuple[int, ...], ...]


_Use = tuple[Node, tuple[int, ...]]
"""A reader of a value, and as which of its inputs it reads it."""


class Model:
    """A graph as variables and tables; variable i is the signature of node i, and those of values
    with several readers follow.
    """

    def __init__(
        self,
        graph: LogicalGraph,
        settings: AutoParallel,
        cluster: Cluster,
    ) -> None:
        self.nodes = list(graph)
        self.tables = Tables()
        self.factors: list[Factor] = []
        self._moves: list[tuple[int, Placement, int]] = []
        """Tables of moves: the factor, where the value is wanted, and how often in a step."""
        self.sizes: list[int] = []
        self._settings, self._follower = settings, Follower(graph)
        self._signatures = Signatures(cluster, settings)
        self._weights = edge_weights(graph)
        self._trunk = Trunk(graph) if settings.hides_waits else None
        self._rows_stay_split = rows_may_stay_split(graph)
        self._kinds: dict[Hashable, _Kind] = {}
        self._of_node: list[_Kind] = []
        self._index = {node.id: i for i, node in enumerate(self.nodes)}
        self._sets: list[tuple[int, _Set, list[_Use]]] = []
        self._known_sets: dict[Hashable, _Set] = {}
        self._price = settings.memory_price or 0.0
        self._held = Lives(self.nodes).at_peak() if self._price else frozenset()
        for node in self.nodes:
            self._add_node(node)
        for node in self.nodes:
            for value in node.outputs:
                self._add_value(value)

    def seconds(self, values: Sequence[int]) -> float:
        """The estimated time of a step in an assignment."""
        return total(self.factors, self.tables, values)

    def choices(self, values: Sequence[int]) -> list[Choice]:
        """The signatures of an assignment."""
        return [kind.choices[v] for kind, v in zip(self._of_node, values, strict=False)]

    def busy(self, values: Sequence[int]) -> dict[Placement, tuple[float, float]]:
        """Seconds of a step that ranks are busy for: see `step_seconds`."""
        found: dict[Placement, list[float]] = {}
        scale = self._settings.computing_ratio / MEASURED_RATIO
        for node, kind, value in zip(self.nodes, self._of_node, values, strict=False):
            weight = self._weights[node.outputs[0].id] if node.outputs else 1
            sums = found.setdefault(node.placement, [0.0, 0.0])
            sums[weight == 1] += weight * scale * kind.choices[value].seconds
        for factor, placement, weight in self._moves:
            scope, number = self.factors[factor]
            sums = found.setdefault(placement, [0.0, 0.0])
            sums[weight == 1] += float(self.tables[number][tuple([values[v] for v in scope])])
        return {placement: (each, once) for placement, (each, once) in found.items()}

    # ---- nodes -----------------------------------------------------------------------------------

    def _add_node(self, node: Node) -> None:
        weight = self._weights[node.outputs[0].id] if node.outputs else 1
        free = self._is_free(node)
        fixed = None if free else tuple([v.sbp for v in node.outputs])
        gathers = None
        if node.op == "unpack" and not self._rows_stay_split:
            gathers = node.inputs[0].sbp or "unknown"
        held = tuple([v.id in self._held for v in node.outputs])
        wanted = self._follower.signatures[node.id].inputs if node.op == "output" else None
        key = (self._signatures.key(node), node.placement, weight, fixed, gathers, held, wanted)
        kind = self._kinds.get(key)
        if kind is None:
            choices = tuple(self._allowed(node))
            if not choices:
                raise no_signature(node, [nd_sbp_str(v.sbp) if v.sbp else "?" for v in node.inputs])
            kind = self._kinds[key] = _Kind(len(self._kinds), choices)
        variable = len(self.sizes)
        self._of_node.append(kind)
        self.sizes.append(len(kind.choices))

        def computing() -> Table:
            scale = weight * self._settings.computing_ratio / MEASURED_RATIO
            held = [v for v in node.outputs if v.id in self._held]
            seconds = np.array([scale * c.seconds for c in kind.choices])
            return seconds + self._price * np.array([_nbytes(held, c) for c in kind.choices])

        self.factors.append(((variable,), self.tables.number(("node", kind.number), computing)))

    def _allowed(self, node: Node) -> Sequence[Choice]:
        """Return the choices that keep the fixed layouts of the outputs."""
        if node.op == "output":
            return [Choice(self._follower.signatures[node.id].inputs, (), 0.0)]
        if node.op not in MOVES:
            check_placements(node)
        if self._is_fixed(node):
            return [_as_fixed(node)]
        every = self._signatures.of(node)
        if node.op == "unpack" and not self._rows_stay_split:
            return [c for c in every if gathers_rows(node.inputs[0].sbp, c.outputs[0])]
        if self._is_free(node):
            return every
        fixed = [v.sbp for v in node.outputs]
        return [
            c
            for c in every
            if all(f is None or f == s for f, s in zip(fixed, c.outputs, strict=True))
        ]

    def conditions(self, allows: Allows) -> list[Factor]:
        """Tables that forbid layouts of free variables; none of one of which nothing is allowed."""
        found: list[Factor] = []
        for i, node in enumerate(self.nodes):
            if node.op != "variable" or not self._is_free(node):
                continue
            kind = self._of_node[i]
            mask = tuple([allows(node, c.outputs[0]) for c in kind.choices])
            if any(mask) and not all(mask):
                table = np.where(mask, 0.0, FORBIDDEN)
                number = self.tables.number(("allowed", mask), partial(np.array, table))
                found.append(((i,), number))
        return found

    def _is_free(self, node: Node) -> bool:
        """May the search lay out this variable, or say where this to_global leads?"""
        if node.op == "to_global":
            same = node.inputs[0].placement.ndim == node.placement.ndim
            return self._settings.ignores_user and same
        return node.op == "variable" and bool(node.attrs.get("free"))

    def _is_fixed(self, node: Node) -> bool:
        """Has the user given the layout of this variable, input, source or to_global?"""
        if self._is_free(node) or (node.inputs and node.op not in MOVES):
            return False
        return all(v.sbp is not None for v in node.outputs)

    # ---- values ----------------------------------------------------------------------------------

    def _add_value(self, value: Value) -> None:
        for placement, uses in self._readers(value).items():
            copies = []
            for node, places in uses:
                overwritten = [i for i in places if i in node.declared.mutates.values()]
                if overwritten:
                    self._add_in_place(value, node, overwritten)
                if left := tuple(i for i in places if i not in overwritten):
                    copies.append((node, left))
            self._add_copies(value, placement, copies)

    def _readers(self, value: Value) -> dict[Placement, list[_Use]]:
        """The uses of a value by where the readers run."""
        found: dict[Placement, list[_Use]] = {}
        for node in dict.fromkeys(value.users):
            places = tuple([i for i, v in enumerate(node.inputs) if v is value])
            found.setdefault(node.placement, []).append((node, places))
        return found

    def _add_in_place(self, value: Value, reader: Node, places: list[int]) -> None:
        """A reader that overwrites the value takes it as it lies: it cannot be a copy."""
        maker, taker = self._kind(value.node), self._kind(reader)

        def make() -> Table:
            had = [m.outputs[value.index] for m in maker.choices]
            taken = [{c.inputs[i] for i in places} for c in taker.choices]
            return np.array([[0.0 if t == {h} else FORBIDDEN for t in taken] for h in had])

        self._add_pair(value, reader, ("in place", tuple(places)), make)

    def _add_copies(self, value: Value, placement: Placement, uses: list[_Use]) -> None:
        """The readers that may take a copy in another layout."""
        shared = self._set_of(value, uses) if len(uses) > 1 else None
        if shared is None:
            for node, places in uses:
                self._add_move(value, placement, node, places)
        else:
            self._add_shared(value, placement, uses, shared)

    def _add_move(
        self, value: Value, placement: Placement, reader: Node, places: tuple[int, ...]
    ) -> None:
        maker, taker = self._kind(value.node), self._kind(reader)
        edge, waits = self._edge(value, placement, [reader])
        weight = self._weights[value.id]

        def make() -> Table:
            wanted = [dict.fromkeys(c.inputs[i] for i in places) for c in taker.choices]
            had = [m.outputs[value.index] for m in maker.choices]
            return _finite([[weight * sum(edge[h, w] for w in ws) for ws in wanted] for h in had])

        self._moves.append((len(self.factors), placement, weight))
        self._add_pair(value, reader, ("move", placement, waits, weight, places), make)

    def _edge(
        self, value: Value, placement: Placement, readers: Sequence[Node]
    ) -> tuple[Edge, bool]:
        """The costs of moving a value for its readers, and whether the step waits for that."""
        slack = self._trunk.slack(value, readers) if self._trunk is not None else 0.0
        waits = slack < HIDING_SECONDS
        return self._signatures.edge(value.type, value.placement, placement, waits=waits), waits

    def _add_pair(
        self, value: Value, reader: Node, key: Hashable, make: Callable[[], Table]
    ) -> None:
        maker, taker = self._kind(value.node), self._kind(reader)
        full = (key, maker.number, value.index, taker.number)
        number = self.tables.number(full, make)
        self.factors.append(((self._index[value.node.id], self._index[reader.id]), number))

    def _kind(self, node: Node) -> _Kind:
        return self._of_node[self._index[node.id]]

    # ---- values that are moved for several readers -----------------------------------------------

    def _set_of(self, value: Value, uses: list[_Use]) -> _Set | None:
        """The sets of layouts worth making for these readers; None: each is to be moved to apart,
        for there are too many.
        """
        if not self._settings.shares_moves:
            return None
        kinds = tuple([(self._kind(node).number, places) for node, places in uses])
        key = (self._kind(value.node).number, value.index, kinds)
        found = self._known_sets.get(key)
        if found is None:
            wishes = tuple(
                dict.fromkeys(
                    c.inputs[i] for node, ps in uses for i in ps for c in self._kind(node).choices
                )
            )
            most = sum(len(places) for _, places in uses)
            found = self._known_sets[key] = _Set(wishes, _subsets(len(wishes), most))
        return found if found.members else None

    def _add_shared(
        self, value: Value, placement: Placement, uses: list[_Use], shared: _Set
    ) -> None:
        variable = len(self.sizes)
        self.sizes.append(len(shared.members))
        self._sets.append((variable, shared, uses))
        maker = self._kind(value.node)
        edge, waits = self._edge(value, placement, [node for node, _ in uses])
        weight = self._weights[value.id]

        def making() -> Table:
            each = _finite(
                [
                    [weight * edge[m.outputs[value.index], w] for w in shared.wishes]
                    for m in maker.choices
                ]
            )
            return np.stack([each[:, list(s)].sum(axis=1) for s in shared.members], axis=1)

        key = (
            maker.number,
            value.index,
            placement,
            waits,
            weight,
            shared.wishes,
            len(shared.members),
        )
        number = self.tables.number(("making", key), making)
        self._moves.append((len(self.factors), placement, weight))
        self.factors.append(((self._index[value.node.id], variable), number))
        for node, places in uses:
            self._add_wish(variable, shared, node, places)

    def _add_wish(self, variable: int, shared: _Set, reader: Node, places: tuple[int, ...]) -> None:
        taker = self._kind(reader)

        def make() -> Table:
            place = {w: i for i, w in enumerate(shared.wishes)}
            wanted = [{place[c.inputs[i]] for i in places} for c in taker.choices]
            return np.array(
                [[0.0 if w.issubset(s) else FORBIDDEN for w in wanted] for s in shared.members]
            )

        key = ("wish", shared.wishes, len(shared.members), taker.number, places)
        self.factors.append(((variable, self._index[reader.id]), self.tables.number(key, make)))

    # ---- assignments that are known --------------------------------------------------------------

    def known(self) -> list[int]:
        """The assignment to begin with: the layouts of eager execution."""
        signatures = self._follower.signatures
        values = [
            _nearest(kind.choices, signatures[node.id])
            for node, kind in zip(self.nodes, self._of_node, strict=True)
        ]
        return self._completed(values)

    def _completed(self, values: list[int]) -> list[int]:
        """The assignment with the sets that the readers' wishes make."""
        for _, shared, uses in self._sets:
            wanted = {
                self._kind(node).choices[values[self._index[node.id]]].inputs[i]
                for node, places in uses
                for i in places
            }
            members = tuple(i for i, w in enumerate(shared.wishes) if w in wanted)
            values.append(shared.members.index(members))
        return values


def _nearest(choices: Sequence[Choice], signature: NdSignature) -> int:
    """The number of the choice that is a signature, or makes the same of other inputs."""
    ins, outs = signature.inputs, signature.outputs
    numbers = range(len(choices))
    same = (i for i in numbers if (choices[i].inputs, choices[i].outputs) == (ins, outs))
    return next(same, next((i for i in numbers if choices[i].outputs == outs), 0))


def _subsets(count: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Every set of 1 to `most` of `count` numbers; () if these are too many."""
    sizes = range(1, min(count, most) + 1)
    if sum(math.comb(count, size) for size in sizes) > MOST_SETS:
        return ()
    return tuple(s for size in sizes for s in itertools.combinations(range(count), size))


def _finite(rows: list[list[float]]) -> Table:
    table: Table = np.minimum(np.array(rows), FORBIDDEN)
    return table


# ---- what the user fixed -------------------------------------------------------------------------


def _as_fixed(node: Node) -> Choice:
    """The one choice of a variable, input, source or to_global whose layout the user gave."""
    outputs = tuple(v.sbp for v in node.outputs if v.sbp is not None)
    for value, nd_sbp in zip(node.outputs, outputs, strict=True):
        check_fits(nd_sbp, value.type.shape, node.describe())
    return Choice(outputs[: len(node.inputs)], outputs, 0.0)


def _nbytes(values: Sequence[Value], choice: Choice) -> int:
    """Bytes of some outputs of a node on a rank."""
    return sum(local_nbytes(v, choice.outputs[v.index], v.placement) for v in values)
