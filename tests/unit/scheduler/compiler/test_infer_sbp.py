"""infer_sbp: what the user fixed is followed; on trees the choice is the optimum."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from oneflow.core.errors import PlacementError, SbpError
from oneflow.core.graph import LogicalGraph, Node
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.sbp import nd_sbp_str
from oneflow.scheduler.compiler.infer_sbp import infer_sbp
from oneflow.scheduler.compiler.pipeline import run_passes
from oneflow.scheduler.compiler.signatures import Choice, Signatures

from .graph_builder import Builder, mlp

CONFIG = JobConfig("g")
SEARCH = JobConfig("g", auto_parallel=True)
CLUSTER = Cluster(8)
TWO = Placement("cpu", [0, 1])
GRID = Placement("cpu", [[0, 1], [2, 3]])


def inferred(text: str) -> dict[int, str]:
    """Value id -> SBP, after inference on a graph of two ranks."""
    lines = "\n".join(f"  {line.strip()} @cpu[0, 1]" for line in text.strip().splitlines())
    graph = parse_graph(f"graph g pieces=1 {{\n{lines}\n}}")
    infer_sbp(graph, CONFIG, CLUSTER)
    return {v.id: nd_sbp_str(v.sbp) for n in graph for v in n.outputs}


def count_boxing(graph: LogicalGraph) -> int:
    run_passes(graph, JobConfig("g", num_pieces=graph.num_pieces), CLUSTER)
    return len(graph.of_kind("boxing"))


def test_a_split_batch_stays_split():
    sbp = inferred("""
        %0: float32[8, 4] S(0) = input(; name='x')
        %1: float32[6, 4] B = variable(; name='w')
        %2: float32[8, 6] ? = matmul(%0, %1; transpose_b=True)
        %3: float32[8, 6] ? = relu(%2)
    """)
    assert (sbp[2], sbp[3]) == ("S(0)", "S(0)")


def test_whole_inputs_are_computed_whole():
    sbp = inferred("""
        %0: float32[1024, 1024] B = input(; name='x')
        %1: float32[1024, 1024] B = variable(; name='w')
        %2: float32[1024, 1024] ? = matmul(%0, %1)
    """)
    assert sbp[2] == "B"


def test_column_then_row_split_weights_meet_in_partial_sums():
    sbp = inferred("""
        %0: float32[8, 4] B = input(; name='x')
        %1: float32[6, 4] S(0) = variable(; name='up')
        %2: float32[4, 6] S(1) = variable(; name='down')
        %3: float32[8, 6] ? = matmul(%0, %1; transpose_b=True)
        %4: float32[8, 6] ? = relu(%3)
        %5: float32[8, 4] ? = matmul(%4, %2; transpose_b=True)
    """)
    assert (sbp[3], sbp[4], sbp[5]) == ("S(1)", "S(1)", "P")


def test_partial_sums_are_added_up_as_late_as_possible():
    sbp = inferred("""
        %0: float32[8, 4] S(1) = input(; name='x')
        %1: float32[4, 6] S(0) = variable(; name='w')
        %2: float32[8, 6] ? = matmul(%0, %1)
        %3: float32[8, 6] ? = scalar_mul(%2; value=2.0)
        %4: float32[8, 6] B = to_global(%3)
    """)
    assert (sbp[2], sbp[3]) == ("P", "P")


def test_an_update_follows_its_variable():
    sbp = inferred("""
        %0: float32[8, 4] S(0) = variable(; name='w')
        %1: float32[8, 4] B = input(; name='grad')
        %2: float64[] B = input(; name='lr')
        %3: float32[8, 4] ? = sgd_update(%0, %1, %2; weight_decay=0.0, maximize=False)
    """)
    assert sbp[3] == "S(0)"


def test_a_dim_shorter_than_the_axis_is_not_split():
    sbp = inferred("""
        %0: float32[1, 4] S(1) = input(; name='x')
        %1: float32[1, 4] ? = softmax(%0)
    """)
    assert sbp[1] == "B"


@pytest.mark.parametrize(
    "placements, sbps, expected",
    [
        ([TWO], ("S(0)", "B", "B"), 2),  # one reduction per gradient
        ([TWO, TWO], ("S(0)", "B", "B"), 4),
        ([TWO], ("B", "S(0)", "S(1)"), 1),  # one reduction of activations forward
        ([TWO, TWO], ("B", "S(0)", "S(1)"), 3),  # two forward, one backward
        ([GRID], ("(S(0), B)", "(B, S(0))", "(B, S(1))"), 3),
    ],
)
def test_training_communicates_no_more_than_by_hand(placements, sbps, expected):
    assert count_boxing(mlp(placements, *sbps)) == expected


def test_a_gradient_is_reduced_once_a_step_not_once_a_piece():
    graph = mlp([TWO], "S(0)", "B", "B", num_pieces=4)
    count_boxing(graph)
    assert {n.rate for n in graph.of_kind("boxing")} == {"step"}


# ---- errors --------------------------------------------------------------------------------------


def test_no_signature_names_op_place_and_candidates():
    builder = Builder()
    param = builder.variable("w", (4, 4), "S(0)", TWO)
    state = builder.variable("m", (4, 4), "S(1)", TWO)
    grad = builder.input("g", (4, 4), "B", TWO)
    lr = builder.input("lr", (), "B", TWO, "float64")
    attrs = {"momentum": 0.9, "dampening": 0.0, "nesterov": False}
    builder.call(
        "momentum_update", param, grad, state, lr, **attrs, weight_decay=0.0, maximize=False
    )
    with pytest.raises(SbpError, match=r"momentum_update \(train.py:5\): no SBP signature.*S\(0\)"):
        infer_sbp(builder.graph, CONFIG, CLUSTER)


def test_inputs_in_different_places_are_an_error_at_the_users_line():
    builder = Builder()
    x = builder.input("x", (4, 4), "B", Placement("cpu", [0]))
    y = builder.input("y", (4, 4), "B", Placement("cpu", [1]))
    builder.call("add", x, y)
    with pytest.raises(PlacementError, match=r"add \(train.py:3\).*cpu\[0\].*cpu\[1\].*to_global"):
        infer_sbp(builder.graph, CONFIG, CLUSTER)


def test_a_scalar_may_come_from_anywhere():
    builder = Builder()
    x = builder.input("x", (4, 4), "S(0)", TWO)
    scale = builder.input("scale", (), "B", Placement("cpu", [0]))
    out = builder.call("mul", x, scale)
    infer_sbp(builder.graph, CONFIG, CLUSTER)
    assert nd_sbp_str(out.sbp) == "S(0)"


def test_a_fixed_split_of_a_missing_dim_is_an_error():
    builder = Builder()
    builder.input("x", (4,), "S(1)", TWO)
    with pytest.raises(SbpError, match="at least 2 dims"):
        infer_sbp(builder.graph, CONFIG, CLUSTER)


# ---- against trying everything -------------------------------------------------------------------


def total_seconds(nodes: list[Node], choices: tuple[Choice, ...], signatures: Signatures) -> float:
    """Time of a step in which node i takes choice i; a value moved once serves all who want it
    so."""
    of_value = {
        v.id: s
        for n, c in zip(nodes, choices, strict=True)
        for v, s in zip(n.outputs, c.outputs, strict=True)
    }
    moves = {}
    for node, choice in zip(nodes, choices, strict=True):
        for value, wanted in zip(node.inputs, choice.inputs, strict=True):
            edge = signatures.edge(value.type, value.placement, node.placement)
            moves[value.id, wanted] = edge[of_value[value.id], wanted]
    return sum(c.seconds for c in choices) + sum(moves.values())


def allowed(node: Node, signatures: Signatures) -> list[Choice]:
    fixed = [v.sbp for v in node.outputs]
    if not node.inputs and None not in fixed:
        return [Choice((), tuple(fixed), 0.0)]
    return list(signatures.of(node))


def chosen_seconds(nodes: list[Node], signatures: Signatures, table: list[list[Choice]]) -> float:
    """The least time with the outputs that the nodes have."""
    outputs = [tuple(v.sbp for v in n.outputs) for n in nodes]
    fitting = [[c for c in row if c.outputs == o] for row, o in zip(table, outputs, strict=True)]
    return min(total_seconds(nodes, c, signatures) for c in itertools.product(*fitting))


def random_tree(seed: int, placement: Placement) -> LogicalGraph:
    """Some inputs, fixed or free, combined by random ops until one value is left."""
    rng = random.Random(seed)
    builder = Builder()
    layouts = ["S(0)", "S(1)", "B", "?"] if placement.ndim == 1 else ["(S(0), B)", "(B, S(1))", "?"]
    num_inputs = 3 if placement.ndim == 1 else 2
    size = rng.choice([64, 512])
    live = [
        builder.input(f"x{i}", (size, size), rng.choice(layouts), placement)
        for i in range(num_inputs)
    ]
    while len(live) > 1:
        a, b = (live.pop(rng.randrange(len(live))) for _ in range(2))
        live.append(builder.call(rng.choice(["matmul", "add", "mul"]), a, b))
        if rng.random() < 0.4:
            op = rng.choice(["relu", "softmax"])
            live.append(builder.call(op, live.pop()))
    return builder.graph


@pytest.mark.parametrize("placement", [TWO, Placement("cpu", [0, 1, 2, 3])])
@pytest.mark.parametrize("seed", range(12))
def test_search_finds_the_optimum_of_a_tree(seed, placement):
    graph = random_tree(seed, placement)
    check_optimum(graph)


@pytest.mark.parametrize("seed", range(3))
def test_search_finds_the_optimum_of_a_tree_on_a_grid(seed):
    check_optimum(random_tree(seed, GRID))


def check_optimum(graph: LogicalGraph) -> None:
    signatures = Signatures(CLUSTER)
    nodes = list(graph)
    table = [allowed(n, signatures) for n in nodes]
    infer_sbp(graph, SEARCH, CLUSTER)
    found = chosen_seconds(nodes, signatures, table)
    best = min(total_seconds(nodes, c, signatures) for c in itertools.product(*table))
    assert math.isclose(found, best, rel_tol=1e-6), (found, best)


@pytest.mark.parametrize("batch, width", [(64, 64), (4096, 64), (64, 1024)])
def test_search_over_a_training_graph_is_as_good_as_the_usual_layouts(batch, width):
    def seconds(config: JobConfig, *sbps: str) -> float:
        graph = mlp([TWO, TWO], *sbps, batch=batch, width=width)
        run_passes(graph, config, CLUSTER, until="dedupe")
        infer_sbp(graph, config, CLUSTER)
        return graph_seconds(graph)

    by_hand = [("S(0)", "B", "B"), ("B", "S(0)", "S(1)"), ("B", "B", "B")]
    for sbps in by_hand:
        assert seconds(SEARCH, *sbps) <= seconds(CONFIG, *sbps) * 1.000001
    best = min(seconds(CONFIG, *sbps) for sbps in by_hand)
    assert seconds(SEARCH, "?", "?", "?") <= 1.1 * best


def graph_seconds(graph: LogicalGraph) -> float:
    """Time of a step with the SBPs that the values have."""
    signatures = Signatures(CLUSTER)
    nodes = [n for n in graph if n.op != "output"]
    choices = []
    for node in nodes:
        outputs = tuple(v.sbp for v in node.outputs)
        fitting = [c for c in allowed(node, signatures) if c.outputs == outputs]
        choices.append(min(fitting, key=lambda c: moved_seconds(node, c, signatures)))
    return total_seconds(nodes, tuple(choices), signatures)


def moved_seconds(node: Node, choice: Choice, signatures: Signatures) -> float:
    return choice.seconds + sum(
        signatures.edge(v.type, v.placement, node.placement)[v.sbp, wanted]
        for v, wanted in zip(node.inputs, choice.inputs, strict=True)
    )
