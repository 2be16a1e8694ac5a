"""insert_boxing: one boxing node per value and target, before the first reader that wants it."""

from __future__ import annotations

import pytest

from oneflow.core.errors import InternalError
from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.layout.insert_boxing import insert_boxing
from oneflow.scheduler.compiler.verify import verify


def boxed(text: str) -> LogicalGraph:
    graph = parse_graph(f"graph g pieces=1 {{\n{text}\n}}")
    insert_boxing(graph, JobConfig("g"), Cluster(4))
    verify(graph, after="insert_boxing")
    return graph


def ops(graph: LogicalGraph) -> list[str]:
    return [node.op for node in graph]


def test_readers_with_one_wish_share_one_move():
    graph = boxed("""
        %0: float32[4, 4] P = input(; name='x') @cpu[0, 1]
        %1: float32[4, 4] B = relu(%0) @cpu[0, 1]
        %2: float32[4, 4] B = exp(%0) @cpu[0, 1]
        %3: float32[4, 4] S(0) = abs(%0) @cpu[0, 1]
    """)
    assert ops(graph) == ["input", "boxing", "relu", "exp", "boxing", "abs"]


def test_to_global_becomes_a_move_or_goes():
    graph = boxed("""
        %0: float32[4, 4] S(0) = input(; name='x') @cpu[0, 1]
        %1: float32[4, 4] S(0) = to_global(%0) @cpu[0, 1]
        %2: float32[4, 4] B = to_global(%1) @cpu[0, 1]
        %3: float32[4, 4] B = to_global(%2) @cpu[2, 3]
        output(%3; index=0) @cpu[2, 3]
    """)
    assert ops(graph) == ["input", "boxing", "boxing", "output"]
    assert graph.of_kind("boxing")[1].placement.notation == "cpu[2, 3]"


def test_over_an_axis_of_one_rank_nothing_moves():
    graph = boxed("""
        %0: float32[4, 4] (S(0), P) = input(; name='x') @cpu[[0], [1]]
        %1: float32[4, 4] (S(0), B) = relu(%0) @cpu[[0], [1]]
    """)
    assert ops(graph) == ["input", "relu"]


def test_an_op_on_other_ranks_than_its_inputs_gets_them_moved():
    graph = boxed("""
        %0: float32[4, 4] S(0) = input(; name='x') @cpu[0, 1]
        %1: float32[4, 4] S(0) = relu(%0) @cpu[2, 3]
    """)
    boxing = graph.of_kind("boxing")[0]
    assert boxing.outputs[0].sbp == boxing.inputs[0].sbp


def test_verify_names_the_edge_that_disagrees():
    graph = parse_graph("""graph g pieces=1 {
        %0: float32[4, 4] P = input(; name='x') @cpu[0, 1]
        %1: float32[4, 4] S(0) = relu(%0) @cpu[0, 1]  # ; train.py:2
    }""")
    with pytest.raises(
        InternalError, match=r"after insert_boxing: relu \(train.py:2\) runs as P -> S\(0\)"
    ):
        verify(graph, after="insert_boxing")
