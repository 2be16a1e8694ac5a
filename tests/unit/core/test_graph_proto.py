# ruff: noqa: E501  (graph text has a node a line)
"""A graph as bytes and back, and digests of its meaning."""

from __future__ import annotations

import pytest

from oneflow.core.errors import GraphError
from oneflow.core.graph import _FACTS, BACKWARD, Node
from oneflow.core.graph_proto import (
    MAX_VALUES,
    graph_digest,
    graph_from_bytes,
    graph_from_proto,
    graph_to_bytes,
    graph_to_proto,
    node_digests,
)
from oneflow.core.graph_text import parse_graph

TEXT = """graph Digits pieces=4 {
  %0: float32[64, 64] S(0) = input(; name='x') @cpu[0, 1]
  %2: float32[10, 64] B = variable(; name='fc.weight') @cpu[0, 1]  # fc; train.py:3
  %3: float32[64, 10] (S(0), P) = matmul(%0, %2; transpose_b=True) @cpu[[0, 1], [2, 3]] stage=1 rate=piece phase=backward of=%2 own_dtypes  # fc; train.py:12
  %9: bool[] ?, %5: bfloat16[0, 3] S(5) = odd(%3, %0, %0; big=18446744073709551615, deep=((), (1, (2.5,)), None), dtype=float16, flag=True, low=-9223372036854775808, not_a_number=nan, one=1, text='a "b"', tiny=-0.0) @cuda[7]
  output(%3; index=0) @cpu[0, 1]
}"""


def test_bytes_give_the_same_graph_back():
    graph = parse_graph(TEXT)
    again = graph_from_bytes(graph_to_bytes(graph))
    assert str(again) == str(graph) == TEXT
    assert again.value_id_bound == graph.value_id_bound
    assert graph_to_bytes(again) == graph_to_bytes(graph)
    assert node_digests(again) == node_digests(graph)


def test_users_are_known_again():
    graph = graph_from_bytes(graph_to_bytes(parse_graph(TEXT)))
    x = graph.of_kind("input")[0].outputs[0]
    assert [u.op for u in x.users] == ["matmul", "odd", "odd"]


def test_a_copy_is_a_graph_of_its_own():
    graph = parse_graph(TEXT)
    made = graph.copied()
    (twin,) = made.of_kind("matmul")
    assert str(made) == TEXT and len(made) == len(graph)
    assert (twin.phase, twin.grad_of, twin.has_own_dtypes) == (BACKWARD, 2, True)
    (x,) = made.of_kind("input")
    assert [u.op for u in x.outputs[0].users] == ["matmul", "odd", "odd"]
    made.set_input(twin, 0, x.outputs[0])
    made.insert(twin, "relu", [x.outputs[0]], [x.outputs[0].type], twin.placement)
    twin.stage, twin.outputs[0].sbp = 7, None
    made.erase(made.of_kind("odd")[0])
    assert str(graph) == TEXT and graph.node_id_bound == made.node_id_bound - 1
    facts = set(Node.__slots__) - {"id", "op", "attrs", "placement", "inputs", "outputs"}
    assert facts - {"next", "prev"} == set(_FACTS)


def test_repeated_nodes_cost_few_bytes():
    lines = ["%0: float32[4] B = input(; name='x') @cpu[0]"]
    lines += [
        f"%{i}: float32[4] B = relu(%{i - 1}) @cpu[0]  # net.block; train.py:10"
        for i in range(1, 1001)
    ]
    graph = parse_graph("graph g pieces=1 {\n" + "\n".join(lines) + "\n}")
    assert len(graph_to_bytes(graph)) < 20_000


@pytest.mark.parametrize(
    "data", [b"\xff\xff", b"\xa0\x01\x05", graph_to_bytes(parse_graph(TEXT))[:-3]]
)
def test_bytes_that_are_no_graph_are_refused(data):
    with pytest.raises(GraphError, match="not a graph"):
        graph_from_bytes(data)


def test_a_graph_that_is_read_leaves_ids_for_values_that_passes_add():
    proto = graph_to_proto(parse_graph(TEXT))
    proto.value_id_bound = MAX_VALUES
    graph = graph_from_proto(proto)
    x = graph.of_kind("input")[0]
    for _ in range(2):
        graph.append("relu", x.outputs, [x.outputs[0].type], x.placement)
    assert graph_to_bytes(graph)  # the difference of two ids is a number of 32 bits
    proto.value_id_bound = MAX_VALUES + 1
    with pytest.raises(GraphError, match="at most"):
        graph_from_proto(proto)


def test_an_attribute_that_is_no_plain_value_is_refused():
    graph = parse_graph(TEXT)
    graph.of_kind("input")[0].attrs["name"] = object()
    with pytest.raises(GraphError, match="plain value"):
        graph_to_bytes(graph)


def test_digests_leave_out_where_a_node_was_written():
    moved = TEXT.replace("train.py:12", "train.py:99").replace("# fc;", "# head;")
    assert node_digests(parse_graph(moved)) == node_digests(parse_graph(TEXT))
    assert graph_digest(parse_graph(moved)) == graph_digest(parse_graph(TEXT))


@pytest.mark.parametrize(
    "old, new, first",
    [
        ("transpose_b=True", "transpose_b=False", 2),
        ("one=1", "one=1.0", 3),
        ("one=1", "one=True", 3),
        ("tiny=-0.0", "tiny=0.0", 3),
        ("(S(0), P)", "(S(0), B)", 2),
        ("matmul(%0, %2", "matmul(%2, %0", 2),
        ("@cuda[7]", "@cuda[6]", 3),
        ("float32[10, 64]", "float64[10, 64]", 1),
        ("stage=1", "stage=2", 2),
        (" rate=piece", "", 2),
        ("phase=backward", "phase=update", 2),
        (" of=%2", "", 2),
        (" own_dtypes", "", 2),
    ],
)
def test_digests_point_at_the_first_difference(old, new, first):
    before, after = (
        node_digests(parse_graph(TEXT)),
        node_digests(parse_graph(TEXT.replace(old, new).replace("  # fc; train.py:12", ""))),
    )
    assert [a == b for a, b in zip(before, after, strict=True)].index(False) == first


def test_the_whole_digest_depends_on_name_and_pieces():
    digests = {
        graph_digest(parse_graph(t))
        for t in (TEXT, TEXT.replace("Digits", "D"), TEXT.replace("pieces=4", "pieces=2"))
    }
    assert len(digests) == 3
