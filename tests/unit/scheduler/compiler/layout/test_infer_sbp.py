"""infer_sbp: the user's choices are followed; on trees the choice is the optimum."""

from __future__ import annotations

import pytest

from oneflow.core.errors import PlacementError, SbpError
from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import AutoParallel, Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.sbp import nd_sbp_str
from oneflow.scheduler.compiler.layout.infer_sbp import infer_sbp
from oneflow.scheduler.compiler.pipeline import run_passes
from tests.unit.scheduler.compiler.graph_builder import Builder, mlp

CONFIG = JobConfig("g")
SEARCH = JobConfig("g", auto_parallel=AutoParallel())
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
