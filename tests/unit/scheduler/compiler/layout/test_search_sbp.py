"""search_sbp: on small graphs the layouts found are the best of all; on larger ones good ones."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from oneflow.core.graph import LogicalGraph, Node, Value
from oneflow.core.job_config import AutoParallel, Cluster, JobConfig
from oneflow.core.op import find_op
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, NdSbp
from oneflow.scheduler.compiler.layout.infer_sbp import infer_sbp
from oneflow.scheduler.compiler.layout.search_sbp import Allows, Chosen, Search, search_sbp
from oneflow.scheduler.compiler.layout.signatures import Choice, Signatures
from oneflow.scheduler.compiler.pipeline import run_passes
from tests.unit.scheduler.compiler.graph_builder import Builder, mlp

CONFIG = JobConfig("g")
SETTINGS = AutoParallel(hides_waits=False)
SEARCH = JobConfig("g", auto_parallel=SETTINGS)
CLUSTER = Cluster(8)
TWO = Placement("cpu", [0, 1])
FOUR = Placement("cpu", [0, 1, 2, 3])
GRID = Placement("cpu", [[0, 1], [2, 3]])


# ---- the reference: every assignment -------------------------------------------------------------


def allowed(node: Node, signatures: Signatures) -> list[Choice]:
    fixed = [v.sbp for v in node.outputs]
    is_free = node.op == "variable" and node.attrs.get("free")
    if not node.inputs and None not in fixed and not is_free:
        return [Choice((), tuple(fixed), 0.0)]
    return list(signatures.of(node))


def moving(value: Value, choices: list[Choice], users: list[Node], signatures: Signatures) -> float:
    """Seconds of moving a value, made as the first choice says, to all who read it; once to those
    who want it alike. Overwritten values cannot be moved.
    """
    made, *taken = choices
    had = made.outputs[value.index]
    wanted: dict[NdSbp, None] = {}
    for node, choice in zip(users, taken, strict=True):
        mutated = set(find_op(node.op).mutates.values())
        for i, v in enumerate(node.inputs):
            if v is value:
                if i in mutated and choice.inputs[i] != had:
                    return 1e6
                wanted[choice.inputs[i]] = None
    edge = signatures.edge(value.type, value.placement, users[0].placement)
    return min(sum(edge[had, w] for w in wanted), 1e6)


def least_seconds(graph: LogicalGraph) -> float:
    """The least time of a step over all assignments, all of them in one array."""
    signatures = Signatures(CLUSTER)
    nodes = [n for n in graph if n.op != "output"]
    table = [allowed(n, signatures) for n in nodes]
    shape = [len(row) for row in table]
    assert np.prod(shape) <= 3e6, shape
    place = {n.id: i for i, n in enumerate(nodes)}
    sums = np.zeros(shape)

    def add(axes: list[int], values: list[float]) -> None:
        part = np.array(values).reshape([shape[a] for a in axes]).transpose(np.argsort(axes))
        sums[...] += part.reshape([n if a in axes else 1 for a, n in enumerate(shape)])

    for i, row in enumerate(table):
        add([i], [c.seconds for c in row])
    for node in nodes:
        for value in node.outputs:
            users = list(dict.fromkeys(value.users))
            axes = [place[node.id], *(place[u.id] for u in users)]
            if users:
                rows = itertools.product(*(table[a] for a in axes))
                add(axes, [moving(value, list(c), users, signatures) for c in rows])
    return float(sums.min())


# ---- random graphs -------------------------------------------------------------------------------


def random_graph(seed: int, placement: Placement, most: int) -> LogicalGraph:
    """Up to `most` nodes: inputs, fixed or free variables, and ops on values that were made before,
    some of which have several readers.
    """
    rng = random.Random(seed)
    builder = Builder()
    one = placement.ndim == 1
    layouts = ["S(0)", "S(1)", "B"] if one else ["(S(0), B)", "(B, S(1))", "(B, B)"]
    size = rng.choice([16, 64, 512])
    live = [builder.input("x", (size, size), rng.choice(layouts), placement)]
    for i in range(rng.choice([1, 2]) if one else 1):
        live.append(builder.variable(f"w{i}", (size, size), rng.choice(layouts), placement))
        node = live[-1].node
        if rng.random() < 0.6:
            node.attrs = {**node.attrs, "free": True}
    count = 1.0
    while len(builder.graph) < most:
        op = rng.choice(["matmul", "add", "mul", "relu", "softmax"])
        inputs = [rng.choice(live) for _ in range(1 if op in ("relu", "softmax") else 2)]
        made = builder.call(op, *inputs)
        signatures = Signatures(CLUSTER)
        count = np.prod([len(allowed(n, signatures)) for n in builder.graph], dtype=float)
        if count > 3e5:
            builder.graph.erase(made.node)
            break
        live.append(made)
    return builder.graph


@pytest.mark.parametrize("placement", [TWO, FOUR])
@pytest.mark.parametrize("seed", range(12))
def test_search_equals_trying_everything(seed, placement):
    graph = random_graph(seed, placement, 12)
    found = search_sbp(graph, SETTINGS, CLUSTER)
    assert found.is_exact
    assert found.seconds == pytest.approx(least_seconds(graph), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_search_equals_trying_everything_on_a_grid(seed):
    graph = random_graph(seed, GRID, 4)
    found = search_sbp(graph, SETTINGS, CLUSTER)
    assert found.seconds == pytest.approx(least_seconds(graph), rel=1e-9)


def test_an_updated_variable_keeps_one_layout():
    builder = Builder()
    x = builder.input("x", (64, 64), "S(0)", TWO)
    w = builder.variable("w", (64, 64), "B", TWO)
    w.node.attrs = {**w.node.attrs, "free": True}
    lr = builder.input("lr", (), "B", TWO, "float64")
    grad = builder.call("matmul", x, w, transpose_a=True)
    builder.call("sgd_update", w, grad, lr, weight_decay=0.0, maximize=False)
    found = search_sbp(builder.graph, SETTINGS, CLUSTER)
    assert found.seconds == pytest.approx(least_seconds(builder.graph), rel=1e-9)
    layouts = {n.op: c.outputs for n, c in zip(found.nodes, found.choices, strict=True)}
    assert layouts["variable"] == layouts["sgd_update"]


# ---- larger graphs -------------------------------------------------------------------------------


def seconds(graph: LogicalGraph) -> float:
    """The time that the search would give to a graph all of whose layouts are known."""
    return search_sbp(graph, SETTINGS, CLUSTER).seconds


@pytest.mark.parametrize("batch, width", [(64, 64), (4096, 64), (64, 1024)])
def test_search_over_a_training_graph_is_as_good_as_the_usual_layouts(batch, width):
    def by_hand(*sbps: str) -> float:
        graph = mlp([TWO, TWO], *sbps, batch=batch, width=width)
        infer_sbp(graph, CONFIG, CLUSTER)
        return seconds(graph)

    def searched(*sbps: str, free: bool) -> float:
        graph = mlp([TWO, TWO], *sbps, batch=batch, width=width)
        for node in graph.of_kind("variable"):
            node.attrs = {**node.attrs, "free": free}
        return seconds(graph)

    hands = [("S(0)", "B", "B"), ("B", "S(0)", "S(1)"), ("B", "B", "B")]
    for sbps in hands:
        best = searched(*sbps, free=False)
        assert best <= by_hand(*sbps) * 1.000001
        assert searched(*sbps, free=True) <= best * 1.000001


def test_the_passes_keep_to_the_signatures_that_were_found():
    """Each move of the plan is one that the search has counted."""
    graph = mlp([TWO, TWO], "S(0)", "B", "B", batch=64, width=256)
    for node in graph.of_kind("variable"):
        node.attrs = {**node.attrs, "free": True}
    found = search_sbp(graph, SETTINGS, CLUSTER)
    wanted = {
        (value.id, nd_sbp)
        for node, choice in zip(found.nodes, found.choices, strict=True)
        for value, nd_sbp in zip(node.inputs, choice.inputs, strict=False)
        if found.choices[found.nodes.index(value.node)].outputs[value.index] != nd_sbp
    }
    run_passes(graph, SEARCH, CLUSTER, until="infer_sbp")
    assert len(graph.of_kind("to_global")) >= len(wanted) > 0
    count = len(graph.of_kind("to_global"))
    run_passes(graph, CONFIG, CLUSTER, until="insert_boxing")
    moves = len(graph.of_kind("boxing")) + len(graph.of_kind("slice"))
    assert moves == count


# ---- settings ------------------------------------------------------------------------------------


def found(
    settings: AutoParallel, batch: int = 256, width: int = 256, allows: Allows | None = None
) -> Chosen:
    graph = mlp([TWO, TWO], "S(0)", "B", "B", batch=batch, width=width)
    for node in graph.of_kind("variable"):
        node.attrs = {**node.attrs, "free": True}
    return Search(graph, settings, CLUSTER).best(allows)


@pytest.mark.parametrize(
    "field, value",
    [
        ("computing_ratio", 5e-4),
        ("wait_nbytes", 1e8),
        ("hides_waits", False),
        ("shares_moves", False),
        ("memory_price", 1e-9),
    ],
)
def test_each_setting_changes_the_layouts(field, value):
    before = found(AutoParallel())
    after = found(AutoParallel(**{field: value}))
    assert [c.outputs for c in before.choices] != [c.outputs for c in after.choices]


def test_cheap_computing_leaves_less_to_move():
    cheap, dear = (found(AutoParallel(computing_ratio=ratio)) for ratio in (5e-4, 0.05))
    assert cheap.bytes.moved_nbytes < dear.bytes.moved_nbytes


def test_long_waits_leave_fewer_exchanges():
    def exchanges(wait_nbytes: float) -> int:
        chosen = found(AutoParallel(hides_waits=False, wait_nbytes=wait_nbytes))
        made = dict(zip(chosen.nodes, chosen.choices, strict=True))
        return len(
            {
                (value.id, wanted)
                for node, choice in made.items()
                for value, wanted in zip(node.inputs, choice.inputs, strict=False)
                if made[value.node].outputs[value.index] not in (wanted, (BROADCAST,))
            }
        )

    assert exchanges(1e9) < exchanges(1.0)


def test_a_price_of_memory_lowers_it():
    free, dear = (found(AutoParallel(memory_price=price), 64, 64) for price in (0.0, 1e-8))
    assert dear.bytes.memory_nbytes < free.bytes.memory_nbytes


def test_the_price_is_as_high_as_a_limit_needs():
    free, dear = (found(AutoParallel(memory_price=price), 64, 64) for price in (0.0, 1e-8))
    for held in (free.bytes, dear.bytes):
        limit = held.memory_nbytes - held.variable_nbytes
        fitted = found(AutoParallel(memory_price=None, memory_nbytes=limit), 64, 64).bytes
        assert fitted.memory_nbytes - fitted.variable_nbytes <= limit
    loose = found(AutoParallel(memory_price=None, memory_nbytes=1 << 40), 64, 64)
    assert loose.seconds == free.seconds


@pytest.mark.parametrize("is_copied", [True, False])
def test_variables_lie_as_they_are_allowed_to(is_copied):
    chosen = found(AutoParallel(), allows=lambda _, s: s[0].is_broadcast is is_copied)
    pairs = zip(chosen.nodes, chosen.choices, strict=True)
    assert {c.outputs[0][0].is_broadcast for n, c in pairs if n.op == "variable"} == {is_copied}
    assert chosen.seconds >= found(AutoParallel()).seconds


def test_layouts_of_to_global_bind_unless_they_are_ignored():
    def moved(ignores_user: bool) -> int:
        builder = Builder()
        x = builder.input("x", (64, 64), "S(0)", TWO)
        y = builder.to_global(builder.call("relu", x), "B")
        builder.to_global(builder.call("relu", y), "S(0)")
        settings = AutoParallel(ignores_user=ignores_user)
        return search_sbp(builder.graph, settings, CLUSTER).bytes.moved_nbytes

    assert moved(False) == 64 * 64 * 4
    assert moved(True) == 0


@pytest.mark.parametrize("ignores_user", [False, True])
@pytest.mark.parametrize("weight", ["S(0)", "S(1)", "B"])
def test_outputs_come_back_as_they_would_lie_without_a_search(weight, ignores_user):
    """Also where the search wants the value otherwise, and where its maker is free."""

    def outputs(config: JobConfig) -> list[NdSbp | None]:
        builder = Builder()
        x = builder.input("x", (512, 64), "S(0)", TWO)
        w = builder.variable("w", (64, 1024), weight, TWO)
        w.node.attrs = {**w.node.attrs, "free": True}
        h = builder.call("matmul", x, w)
        total = builder.call("reduce_sum", h, dims=(0, 1), keepdim=False)
        builder.output(h, builder.to_global(h, "B"), builder.call("relu", h), total)
        run_passes(builder.graph, config, CLUSTER, until="insert_boxing")
        return [n.inputs[0].sbp for n in builder.graph.of_kind("output")]

    auto = JobConfig("g", auto_parallel=AutoParallel(ignores_user=ignores_user))
    assert outputs(auto) == outputs(CONFIG)


def test_held_bytes_are_those_of_the_live_values():
    """x and w, then x @ w beside them, then its relu beside all; x is read last by the product."""
    builder = Builder()
    x = builder.input("x", (64, 64), "S(0)", TWO)
    w = builder.variable("w", (64, 64), "B", TWO)
    h = builder.call("matmul", x, w)
    builder.output(builder.call("relu", h))
    held = search_sbp(builder.graph, AutoParallel(), CLUSTER).bytes
    whole = 64 * 64 * 4
    assert held.variable_nbytes == whole
    assert held.memory_nbytes == whole + 2 * whole // 2
