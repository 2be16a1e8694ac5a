"""micro_batch: the nodes that run per piece, and those where the rate changes."""

from __future__ import annotations

import pytest

from oneflow.core.errors import GraphError
from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.layout.infer_sbp import infer_sbp
from oneflow.scheduler.compiler.schedule.micro_batch import micro_batch
from oneflow.scheduler.compiler.verify import verify


def batched(text: str, pieces: int = 2) -> LogicalGraph:
    lines = "\n".join(f"{line} @cpu[0, 1]" for line in text.strip().splitlines())
    graph = parse_graph(f"graph g pieces={pieces} {{\n{lines}\n}}")
    micro_batch(graph, JobConfig("g", num_pieces=pieces), Cluster(2))
    verify(graph, after="micro_batch")
    return graph


def rates(graph: LogicalGraph) -> list[str]:
    return [f"{node.op} {node.rate}" for node in graph]


def test_rates_change_only_at_their_nodes():
    graph = batched("""
        %0: float32[8, 4] S(0) = input(; name='x')
        %1: float32[4, 4] S(0) = unpack(%0)
        %2: float32[4, 4] S(0) = relu(%1)
        %3: float32[4, 4] S(0) = accumulate(%2)
        %4: float32[4, 4] S(0) = exp(%3)
    """)
    assert rates(graph) == [
        "input step",
        "unpack piece",
        "relu piece",
        "accumulate step",
        "exp step",
    ]


def test_a_steps_value_is_repeated_once_but_a_variable_is_read_as_it_is():
    graph = batched("""
        %0: float32[8, 4] B = input(; name='x')
        %1: float32[4, 4] B = unpack(%0)
        %2: float32[] B = input(; name='scale')
        %3: float32[] B = variable(; name='shift')
        %4: float32[4, 4] B = mul(%1, %2)
        %5: float32[4, 4] B = mul(%4, %2)
        %6: float32[4, 4] B = add(%5, %3)
    """)
    assert [n.op for n in graph] == [
        "input",
        "unpack",
        "input",
        "variable",
        "repeat",
        "mul",
        "mul",
        "add",
    ]


def test_outputs_are_packed_scalars_stacked_others_joined():
    graph = batched("""
        %0: float32[8, 4] S(0) = input(; name='x')
        %1: float32[4, 4] S(0) = unpack(%0)
        %2: float32[] P = reduce_sum(%1; dims=(0, 1))
        output(%1; index=0)
        output(%2; index=1)
        output(%2; index=2)
    """)
    packs = graph.of_kind("pack")
    assert [str(n.outputs[0].type) for n in packs] == ["float32[8, 4]", "float32[2]"]
    assert [str(n.outputs[0].sbp[0]) for n in packs] == ["S(0)", "P"]


def test_rows_come_out_in_the_order_they_went_in():
    graph = batched("""
        %0: float32[8, 4] S(0) = input(; name='x')
        %1: float32[4, 4] S(0) = unpack(%0)
        %2: float32[4, 4] B = boxing(%1)
        %3: float32[6, 4] S(0) = variable(; name='other')
        %4: float32[6, 4] S(0) = relu(%3)
        output(%2; index=0)
    """)
    assert str(graph.of_kind("pack")[0].inputs[0].sbp[0]) == "S(0)"


def test_with_one_piece_nothing_changes_rate():
    graph = batched(
        """
        %0: float32[8, 4] B = input(; name='x')
        %1: float32[8, 4] B = unpack(%0)
        %2: float32[8, 4] B = relu(%1)
        %3: float32[8, 4] B = accumulate(%2)
        output(%3; index=0)
        """,
        pieces=1,
    )
    assert rates(graph) == ["input step", "relu step", "output step"]


def test_the_mean_over_pieces_of_a_steps_value_is_that_value():
    graph = batched("""
        %0: float32[8, 4] B = input(; name='x')
        %1: float32[8, 4] B = accumulate(%0)
        output(%1; index=0)
    """)
    assert [n.op for n in graph] == ["input", "output"]


def test_a_piece_is_not_cut_again():
    with pytest.raises(GraphError, match="cannot be cut into pieces again"):
        batched("""
            %0: float32[8, 4] B = input(; name='x')
            %1: float32[4, 4] B = unpack(%0)
            %2: float32[2, 4] B = unpack(%1)
        """)


@pytest.mark.parametrize(
    "x, labels, expected",
    [
        ("S(0)", "S(0)", "S(0)"),
        ("S(0)", "B", "B"),  # cut alike or not at all: row i of both belongs together
        ("B", "B", "B"),
    ],
)
@pytest.mark.parametrize("traced", ["", "?"])
def test_rows_stay_split_only_if_all_inputs_are_split_alike(x, labels, expected, traced):
    graph = parse_graph(f"""graph g pieces=2 {{
        %0: float32[8, 4] {x} = input(; name='x') @cpu[0, 1]
        %1: int64[8] {labels} = input(; name='labels') @cpu[0, 1]
        %2: float32[4, 4] {traced or x} = unpack(%0) @cpu[0, 1]
        %3: int64[4] {traced or labels} = unpack(%1) @cpu[0, 1]
    }}""")
    infer_sbp(graph, JobConfig("g", num_pieces=2), Cluster(2))
    assert [str(n.outputs[0].sbp[0]) for n in graph.of_kind("unpack")] == [expected, expected]


def test_rows_that_do_not_divide_are_gathered_first():
    graph = parse_graph("""graph g pieces=3 {
        %0: float32[9, 4] S(0) = input(; name='x') @cpu[0, 1]
        %1: float32[3, 4] ? = unpack(%0) @cpu[0, 1]
    }""")
    infer_sbp(graph, JobConfig("g", num_pieces=3), Cluster(2))
    assert str(graph.of_kind("unpack")[0].outputs[0].sbp[0]) == "B"
