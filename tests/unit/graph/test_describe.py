"""Prints of a graph about itself."""

from __future__ import annotations

import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.plan import Plan
from oneflow.scheduler.compiler.passes import PASSES


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(8, 5)
        self.relu = nn.ReLU()
        self.register_buffer("scale", flow.ones(5))

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.relu(self.front(x)) * self.scale


class Shown(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.m = Model()

    def build(self, x: flow.Tensor, *, bias: flow.Tensor) -> dict[str, flow.Tensor]:
        return {"y": self.m(x) + bias}


@pytest.fixture
def graph() -> Shown:
    return Shown()


def test_a_graph_that_has_not_run_shows_its_modules(graph: Shown) -> None:
    lines = repr(graph).splitlines()
    assert lines[0] == f"(GRAPH:{graph.name}:Shown): ("
    assert lines[1] == "  (CONFIG:config:GraphConfig(training=False, ))"
    assert lines[2] == "  (MODULE:m:Model()): ("
    assert lines[3] == "    (BUFFER:m.scale:tensor(..., size=(5,), dtype=oneflow.float32)): ()"
    assert "OPERATOR" not in repr(graph) and "INPUT" not in repr(graph)
    assert repr(graph).count("(") == repr(graph).count(")")


def test_a_graph_that_has_run_shows_what_runs(graph: Shown) -> None:
    graph(flow.ones(4, 8), bias=flow.ones(5))
    text, name = repr(graph), graph.name
    assert f"  (INPUT:_{name}_input.0.0_2:tensor(..., size=(4, 8), dtype=oneflow.float32))" in text
    assert f"  (INPUT:_{name}_input.1.bias_3:tensor(..., size=(5,), dtype=oneflow.float32))" in text
    weight = "m.front.weight:tensor(..., size=(5, 8), dtype=oneflow.float32, requires_grad=True)"
    assert f"      (PARAMETER:{weight}): ()" in text
    assert f"      (OPERATOR: m.front-linear-0(_{name}_input.0.0_2:(sbp=(B), size=(4, 8)" in text
    assert "(OPERATOR: m.relu-relu-0(m.front-linear-0/out_0:(sbp=(B)" in text
    assert 'placement=(oneflow.placement(type="cpu", ranks=[0])), at ' in text
    output = f"_{name}_output.0.0.y_2:tensor(..., size=(4, 5), dtype=oneflow.float32)"
    assert f"  (OUTPUT:{output})" in text
    assert text.count("(") == text.count(")")


def test_a_stage_is_shown_with_its_module(graph: Shown) -> None:
    graph.m.front.to(nn.graph.GraphModule).set_stage(1)
    assert "      (GraphModule:m.front(stage_id=1)): ()" in repr(graph)


@pytest.mark.parametrize("level", range(-1, 4))
def test_each_level_of_debug_says_more(
    graph: Shown, level: int, capsys: pytest.CaptureFixture[str]
) -> None:
    graph.debug(level)
    graph(flow.ones(4, 8), bias=flow.ones(5))
    out = capsys.readouterr().out
    assert ("tracing" in out) == (level >= 0)
    assert ("actors, " in out) == (level >= 0)
    assert ("(MODULE:m:Model()): (" in out) == (level >= 1)
    assert (" = linear(" in out) == (level >= 2)
    assert ("segment.1(" in out) == (level >= 3)


def test_the_passes_say_what_they_did(graph: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    graph.debug(1)
    graph(flow.ones(4, 8), bias=flow.ones(5))
    plan = graph._spec.plans.now.job.bound.plan
    lines = capsys.readouterr().out.splitlines()
    assert f"  traced {plan.sizes[0]} nodes" in lines
    assert f"  group_segments {len(plan.actors)} actors" in lines
    assert len(plan.sizes) == 1 + len(PASSES) and plan.sizes[-1] == len(plan.graph)
    assert Plan.from_bytes(plan.to_bytes()).sizes == plan.sizes
    assert f"(PASSES:traced {plan.sizes[0]} nodes, " in repr(graph)


def test_other_ranks_do_not_print(graph: Shown, capsys: pytest.CaptureFixture[str]) -> None:
    graph.debug(3, ranks=[1, 2])
    graph(flow.ones(4, 8), bias=flow.ones(5))
    assert capsys.readouterr().out == ""


def test_a_level_that_does_not_exist_is_refused(graph: Shown) -> None:
    with pytest.raises(AssertionError, match="the max is 3, got 4"):
        graph.debug(4)
