"""verify: each broken invariant is named, with the pass after which it was found."""

from __future__ import annotations

import pytest

from oneflow.core.errors import InternalError
from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_text import parse_graph
from oneflow.core.sbp import parse_nd_sbp
from oneflow.scheduler.compiler.verify import verify


def graph() -> LogicalGraph:
    return parse_graph("""graph g pieces=2 {
        %0: float32[8, 4] B = input(; name='x') @cpu[0, 1]
        %1: float32[4, 4] B = unpack(%0) @cpu[0, 1] rate=piece
        %2: float32[4, 4] B = relu(%1) @cpu[0, 1] rate=piece  # ; train.py:3
        %3: float32[8, 4] B = pack(%2) @cpu[0, 1]
        output(%3; index=0) @cpu[0, 1]
    }""")


def refuse(broken: LogicalGraph, after: str, match: str) -> None:
    with pytest.raises(InternalError, match=match):
        verify(broken, after=after)


def test_a_valid_graph_passes():
    verify(graph(), after="order")


def test_a_use_before_its_definition():
    g = graph()
    nodes = list(g)
    g.reorder([nodes[0], nodes[2], nodes[1], *nodes[3:]])
    refuse(g, "", r"after tracing: relu \(train.py:3\) reads %1, which is not made before it")


def test_a_reader_that_a_value_does_not_know():
    g = graph()
    g.of_kind("unpack")[0].outputs[0].users.clear()
    refuse(g, "dedupe", "after dedupe: %1 does not know all of its users")


def test_a_user_that_does_not_read():
    g = graph()
    relu = g.of_kind("relu")[0]
    g.of_kind("input")[0].outputs[0].users.append(relu)
    refuse(g, "dedupe", "%0 names a user that does not read it")


def test_a_type_that_the_op_does_not_make():
    g = graph()
    value = g.of_kind("relu")[0].outputs[0]
    value.type = value.type.with_shape((3, 4))
    refuse(
        g,
        "dedupe",
        r"relu \(train.py:3\) of float32\[4, 4\] gives float32\[4, 4\], but the graph says",
    )


def test_a_missing_sbp():
    g = graph()
    g.of_kind("relu")[0].outputs[0].sbp = None
    verify(g, after="dedupe")
    refuse(g, "infer_sbp", "%2 of relu .* has no SBP")


@pytest.mark.parametrize("sbp, match", [("(B, B)", "has 1 axes"), ("S(2)", "cannot be S")])
def test_an_sbp_that_does_not_fit(sbp, match):
    g = graph()
    g.of_kind("relu")[0].outputs[0].sbp = parse_nd_sbp(sbp)
    refuse(g, "infer_sbp", match)


def test_a_to_global_that_was_left():
    g = graph()
    g.of_kind("relu")[0].op = "to_global"
    verify(g, after="infer_sbp")
    refuse(g, "insert_boxing", "is still there")


def test_a_rate_that_changes_without_a_node_for_it():
    g = graph()
    g.of_kind("relu")[0].rate = "step"
    refuse(g, "micro_batch", "runs once a step, but its input %1 is made once a piece")


def test_a_value_read_after_it_was_overwritten():
    g = parse_graph("""graph g pieces=1 {
        %0: float32[4] B = variable(; name='w') @cpu[0]
        %1: float32[4] B = input(; name='g') @cpu[0]
        %2: float64[] B = input(; name='lr') @cpu[0]
        %3: float32[4] B = sgd_update(%0, %1, %2; weight_decay=0.0, maximize=False) @cpu[0]
        %4: float32[4] B = relu(%0) @cpu[0]
    }""")
    verify(g, after="micro_batch")
    refuse(g, "order", "relu reads %0 after sgd_update overwrote it")
