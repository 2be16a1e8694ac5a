"""A traced graph in, the graph of each pass out."""

from __future__ import annotations

from oneflow.core.graph import LogicalGraph
from oneflow.core.graph_text import parse_graph
from oneflow.graph.functions.two_passes import cut

TRACED = """graph f pieces=1 {
  %1: float32[3] B = variable(; name='w') @cpu[0]
  %0: float32[2, 3] B = input(; name='input.0') @cpu[0]
  %2: float32[2, 3] ? = mul(%0, %1) @cpu[0]
  %3: float32[2, 3] ? = exp(%2) @cpu[0]
  %4: float32[3, 2] ? = reshape(%3; shape=(3, 2)) @cpu[0]
  %5: float32[3, 2] B = input(; name='grad.0') @cpu[0]
  %6: float32[2, 3] ? = reshape(%5; shape=(2, 3)) @cpu[0] phase=backward of=%4
  %7: float32[2, 3] ? = mul(%6, %3) @cpu[0] phase=backward of=%3
  %8: float32[2, 3] ? = mul(%7, %1) @cpu[0] phase=backward of=%2
  output(%4; index=0) @cpu[0]
  output(%8; index=1) @cpu[0]
}
"""


def lines(graph: LogicalGraph) -> list[str]:
    """The nodes of a graph without their types and places."""
    made = []
    for node in graph:
        results = ", ".join(f"%{v.id}" for v in node.outputs)
        name = node.attrs.get("name", node.attrs.get("index", ""))
        made.append(f"{results} {node.op}({', '.join(map(str, node.inputs))}) {name}".strip())
    return made


def test_what_the_backward_pass_reads_is_handed_over() -> None:
    passes = cut(parse_graph(TRACED), 1)
    assert lines(passes.forward) == [
        "%1 variable() w",
        "%0 input() input.0",
        "%2 mul(%0, %1)",
        "%3 exp(%2)",
        "%4 reshape(%3)",
        "output(%4) 0",
        "output(%3) 1",
    ]
    assert (passes.saved, passes.read) == ([1], [])
    assert lines(passes.backward) == [
        "%9 variable() saved.0",
        "%1 variable() w",
        "%5 input() grad.0",
        "%6 reshape(%5)",
        "%7 mul(%6, %9)",
        "%8 mul(%7, %1)",
        "output(%8) 0",
    ]


def test_an_output_that_the_backward_pass_reads_is_also_lent() -> None:
    text = TRACED.replace("output(%4; index=0)", "output(%3; index=0)")
    passes = cut(parse_graph(text), 1)
    assert (passes.saved, passes.read) == ([1], [0])
    outputs = list(passes.forward.of_kind("output"))
    assert [(n.inputs[0].node.op, n.attrs.get("lent", False)) for n in outputs] == [
        ("exp", False),
        ("exp", True),
    ]


def test_views_are_made_again_and_a_variable_that_is_overwritten_is_handed_over() -> None:
    text = """graph f pieces=1 {
  %1: float32[3] B = variable(; name='mean') @cpu[0]
  %0: float32[3] B = input(; name='input.0') @cpu[0]
  %2: float32[3] ? = mul(%0, %1) @cpu[0]
  %3: float32[3, 1] ? = reshape(%2; shape=(3, 1)) @cpu[0]
  %4: float32[3] B = input(; name='grad.0') @cpu[0]
  %5: float32[3] ? = reshape(%3; shape=(3,)) @cpu[0] phase=backward
  %6: float32[3] ? = mul(%4, %5) @cpu[0] phase=backward
  %7: float32[3] ? = mul(%6, %1) @cpu[0] phase=backward
  %8: float32[3] ? = assign(%1, %2) @cpu[0]
  output(%2; index=0) @cpu[0]
  output(%7; index=1) @cpu[0]
}
"""
    passes = cut(parse_graph(text), 1)
    assert lines(passes.backward) == [
        "%9 variable() saved.0",
        "%10 variable() saved.1",
        "%3 reshape(%10)",
        "%4 input() grad.0",
        "%5 reshape(%3)",
        "%6 mul(%4, %5)",
        "%7 mul(%6, %9)",
        "output(%7) 0",
    ]
    assert passes.saved == [1, 2]
    assert [line for line in lines(passes.forward) if "assign" in line] == ["%8 assign(%1, %2)"]


def test_a_random_op_of_the_backward_pass_is_no_part_of_the_forward_pass() -> None:
    text = TRACED.replace(
        "%7: float32[2, 3] ? = mul(%6, %3)",
        "%7: float32[2, 3] ? = dropout(%6; p=0.5, seed=1)",
    )
    passes = cut(parse_graph(text), 1)
    assert any("dropout" in line for line in lines(passes.backward))
    assert not any("dropout" in line for line in lines(passes.forward))
