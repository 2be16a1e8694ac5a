"""place_stages: stages are as long as each other, cuts are where little crosses, values move."""

from __future__ import annotations

import pytest

from oneflow.core.graph import UPDATE, LogicalGraph
from oneflow.core.job_config import AutoParallel, Cluster, JobConfig
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Split
from oneflow.scheduler.compiler.layout.place_stages import place_stages, the_placement
from oneflow.scheduler.compiler.layout.prediction import least_seconds, step_seconds
from oneflow.scheduler.compiler.layout.search_sbp import search_sbp
from oneflow.scheduler.compiler.pipeline import compile_graph
from oneflow.scheduler.compiler.rewrite.assign_stages import assign_stages
from tests.unit.scheduler.compiler.graph_builder import Builder

FOUR = Placement("cpu", [0, 1, 2, 3])
LOW, HIGH = Placement("cpu", [0, 1]), Placement("cpu", [2, 3])


def in_stages(number: int) -> JobConfig:
    return JobConfig("g", auto_parallel=AutoParallel(num_stages=number))


def layers(count: int = 4, batch: int = 64, width: int = 64) -> LogicalGraph:
    """Layers whose inner part is four times as wide, and an update of each weight."""
    builder = Builder()
    x = builder.input("x", (batch, width), "S(0)", FOUR)
    rate = builder.input("lr", (), "B", FOUR, "float64")
    weights = []
    for i in range(count):
        up = builder.variable(f"up{i}", (width, 4 * width), "B", FOUR)
        down = builder.variable(f"down{i}", (4 * width, width), "B", FOUR)
        weights += [up, down]
        x = builder.call("matmul", builder.call("relu", builder.call("matmul", x, up)), down)
    builder.output(x)
    for weight in weights:
        weight.node.attrs = {**weight.node.attrs, "free": True}
        made = builder.call("sgd_update", weight, weight, rate, weight_decay=0.0, maximize=False)
        made.node.phase = UPDATE
    return builder.graph


@pytest.mark.parametrize("num_stages, each", [(2, 2), (4, 1)])
def test_equal_layers_are_shared_out_evenly(num_stages: int, each: int) -> None:
    graph = layers()
    assign_stages(graph, in_stages(num_stages), Cluster(4))
    products = [n.stage for n in graph.of_kind("matmul")]
    assert products == [i // (2 * each) for i in range(len(products))]
    for update in graph.of_kind("sgd_update"):
        assert update.stage == update.inputs[0].node.stage


def test_a_cut_is_where_little_crosses() -> None:
    """Three layers on two stages: never inside of a layer, where four times as much crosses."""
    graph = layers(3)
    assign_stages(graph, in_stages(2), Cluster(4))
    stages = [n.stage for n in graph.of_kind("matmul")]
    assert stages in ([0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1])


def test_each_stage_has_its_share_of_the_ranks() -> None:
    graph = layers()
    assign_stages(graph, in_stages(2), Cluster(4))
    place_stages(graph, AutoParallel(num_stages=2))
    assert the_placement(graph) is None
    assert {n.placement for n in graph.of_kind("matmul")} == {LOW, HIGH}
    crossing = [
        (n.inputs[0].placement, n.placement)
        for n in graph.of_kind("to_global")
        if n.inputs[0].node.op == "matmul"
    ]
    assert crossing == [(LOW, HIGH), (HIGH, FOUR)]
    # A number is fed where it is read; the batch is fed as before.
    fed = [(n.attrs["name"], n.placement) for n in graph.of_kind("input")]
    assert fed == [("x", FOUR), ("lr", LOW), ("lr", HIGH)]
    (output,) = graph.of_kind("output")
    assert output.inputs[0].sbp == (Split(0),)  # as without stages


def test_ranks_in_a_grid_hold_what_they_held_in_a_row() -> None:
    graph = layers()
    place_stages(graph, AutoParallel(grid=(2, 2)))
    grid = Placement("cpu", [[0, 1], [2, 3]])
    assert {n.placement for n in graph.of_kind("variable")} == {grid}
    assert {n.outputs[0].sbp for n in graph.of_kind("variable")} == {(BROADCAST, BROADCAST)}
    (output,) = graph.of_kind("output")
    assert (output.inputs[0].placement, output.inputs[0].sbp) == (FOUR, (Split(0),))


def test_a_graph_that_overwrites_what_is_not_its_own_stays_as_it_is() -> None:
    graph = layers()
    assert the_placement(graph) == FOUR
    node = graph.of_kind("variable")[0]
    node.attrs = {k: v for k, v in node.attrs.items() if k != "free"}
    assert the_placement(graph) is None
    before = str(graph)
    place_stages(graph, AutoParallel(num_stages=2))
    assert str(graph) == before


@pytest.mark.parametrize("settings", [AutoParallel(num_stages=2), AutoParallel(grid=(2, 2))])
def test_what_was_placed_compiles(settings: AutoParallel) -> None:
    graph = layers(2)
    plan = compile_graph(graph, JobConfig("g", auto_parallel=settings), Cluster(4))
    wanted = {LOW, HIGH} if settings.num_stages > 1 else {Placement("cpu", [[0, 1], [2, 3]])}
    assert {n.placement for n in plan.graph.of_kind("sgd_update")} == wanted


# ---- the time of a pipeline ----------------------------------------------------------------------


def test_stages_wait_while_the_first_piece_comes_and_the_last_leaves() -> None:
    """4 pieces of 2 and 3 seconds: 2 + 4 x 3; each stage then has a second to do."""
    assert step_seconds({LOW: (8.0, 0.5), HIGH: (12.0, 1.0)}, 4) == 2.0 + 4 * 3.0 + 1.0
    assert step_seconds({LOW: (8.0, 0.5)}, 4) == 8.5
    assert step_seconds({LOW: (0.0, 0.5), HIGH: (0.0, 2.0)}, 1) == 2.5  # one after the other


def test_no_layout_takes_less_than_the_least() -> None:
    graph = layers()
    found = search_sbp(graph, AutoParallel(), Cluster(4))
    assert 0 < least_seconds(graph) <= found.step_seconds
