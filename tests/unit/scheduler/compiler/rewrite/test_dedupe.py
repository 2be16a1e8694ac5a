"""dedupe: equal pure nodes become one; unread nodes without effects go."""

from __future__ import annotations

from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.rewrite.dedupe import dedupe
from oneflow.scheduler.compiler.verify import verify


def deduped(text: str) -> LogicalGraph:
    lines = "\n".join(f"{line} @cpu[0, 1]" for line in text.strip().splitlines())
    graph = parse_graph(f"graph g pieces=1 {{\n{lines}\n}}")
    dedupe(graph, JobConfig("g"), Cluster(2))
    verify(graph, after="dedupe")
    return graph


def ops(graph: LogicalGraph) -> list[str]:
    return [node.op for node in graph]


X = "%0: float32[4, 4] B = input(; name='x')\n"


def test_equal_chains_become_one():
    graph = deduped(
        X
        + """%1: float32[4, 4] ? = relu(%0)
        %2: float32[4, 4] ? = relu(%0)
        %3: float32[4, 4] ? = exp(%1)
        %4: float32[4, 4] ? = exp(%2)
        %5: float32[4, 4] ? = add(%3, %4)
        output(%5; index=0)"""
    )
    assert ops(graph) == ["input", "relu", "exp", "add", "output"]
    add = graph.of_kind("add")[0]
    assert add.inputs[0] is add.inputs[1]


def test_attributes_that_compare_equal_but_differ_in_type_stay_apart():
    graph = deduped(
        X
        + """%1: float32[4, 4] ? = scalar_mul(%0; value=1)
        %2: float32[4, 4] ? = scalar_mul(%0; value=1.0)
        %3: float32[4, 4] ? = add(%1, %2)
        output(%3; index=0)"""
    )
    assert ops(graph).count("scalar_mul") == 2


def test_random_ops_are_never_merged():
    graph = deduped(
        X
        + """%1: float32[4, 4] ? = dropout(%0; p=0.5, seed=1)
        %3: float32[4, 4] ? = dropout(%0; p=0.5, seed=1)
        %5: float32[4, 4] ? = add(%1, %3)
        output(%5; index=0)"""
    )
    assert ops(graph).count("dropout") == 2


def test_dead_chains_go_but_inputs_variables_and_updates_stay():
    graph = deduped(
        X
        + """%1: float32[4, 4] B = variable(; name='w')
        %2: float64[] B = input(; name='lr')
        %3: float32[4, 4] ? = exp(%0)
        %4: float32[4, 4] ? = relu(%3)
        %5: float32[4, 4] ? = sgd_update(%1, %0, %2; weight_decay=0.0, maximize=False)"""
    )
    assert ops(graph) == ["input", "variable", "input", "sgd_update"]


def test_ops_that_do_nothing_are_passed_through():
    graph = deduped(
        X
        + """%1: float32[4, 4] ? = reshape(%0; shape=(4, 4))
        %2: float32[4, 4] ? = relu(%1)
        output(%2; index=0)"""
    )
    assert ops(graph) == ["input", "relu", "output"]


def test_the_same_wish_is_one_to_global():
    graph = deduped(
        X
        + """%1: float32[4, 4] S(0) = to_global(%0)
        %2: float32[4, 4] S(0) = to_global(%0)
        %3: float32[4, 4] S(1) = to_global(%0)
        output(%1; index=0)
        output(%2; index=1)
        output(%3; index=2)"""
    )
    assert ops(graph).count("to_global") == 2


def test_equal_buffers_that_are_written_into_stay_apart():
    graph = deduped(
        X
        + """%1: float64[] B = input(; name='lr')
        %2: float32[4, 4] ? = constant(; shape=(4, 4), dtype=float32, value=0.0)
        %3: float32[4, 4] ? = constant(; shape=(4, 4), dtype=float32, value=0.0)
        %4: float32[4, 4] ? = sgd_update(%2, %0, %1; weight_decay=0.0, maximize=False)
        %5: float32[4, 4] ? = sgd_update(%3, %0, %1; weight_decay=0.0, maximize=False)"""
    )
    assert ops(graph).count("constant") == 2
