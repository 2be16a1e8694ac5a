"""Answers of tensors inside `nn.Graph.build` about themselves: as eager tensors do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import GraphError, PlacementError
from oneflow.core.placement import Placement
from oneflow.graph.layouts import Layouts
from oneflow.graph.tracing import trace_build

HERE = flow.placement("cpu", [0])
S0, S1, B = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast


class Compute(nn.Graph):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def build(self, *args: Any) -> Any:
        return self.function(*args)


def x(sbp: Any = S0) -> Any:
    return flow.ones(4, 8).to_global(HERE, sbp)


@pytest.mark.parametrize("sbp", [S0, S1, B])
def test_every_intermediate_says_what_it_would_eagerly(sbp: Any) -> None:
    def steps(a: Any) -> list[Any]:
        b = (a + 1).relu()
        c = b.transpose(0, 1)
        return [b, c, c[1:3], c.reshape(32), flow.cat([b, b]), b.sum(0), b @ c, b.unbind(0)[1]]

    def said(a: Any) -> list[Any]:
        return [
            (t.sbp, t.placement, t.is_global, t.is_local, t.stride(), t.shape) for t in steps(a)
        ]

    inside: list[Any] = []

    def build(a: Any) -> Any:
        inside.extend(said(a))
        return a + 1

    Compute(build)(x(sbp))
    assert inside == said(x(sbp))


def test_a_layout_that_was_asked_for_is_fixed_and_no_other() -> None:
    def build(a: Any) -> Any:
        b = a + 1
        c = b * 2
        assert c.sbp == (S0,)
        return c * 3

    graph = trace_build((g := Compute(build))._spec, g.build, ((x(),), {}))[0].graph
    said = [node.outputs[0].sbp for node in graph if not node.is_structural]
    assert said == [None, (S0,), None]


def test_a_gradient_says_its_layout() -> None:
    weight = nn.Parameter(flow.ones(8, 8).to_global(HERE, B))
    seen = []

    def build(a: Any) -> Any:
        loss = (a @ weight).sum()
        loss.backward()
        seen.append(weight.grad.sbp)
        return loss

    Compute(build)(x())
    eager = (x() @ weight).sum()
    eager.backward()
    assert seen == [weight.grad.sbp]


def test_a_local_value_says_its_device_and_has_no_sbp() -> None:
    def build(a: Any) -> Any:
        b = a + 1
        assert b.device == a.device == flow.device("cpu") and b.is_local and not b.is_global
        with pytest.raises(PlacementError, match="Only global tensors have 'sbp'"):
            _ = b.sbp
        return b

    Compute(build)(flow.ones(4))


def test_new_tensors_take_the_layout_of_a_traced_one() -> None:
    seen = []

    def build(a: Any) -> Any:
        b = a + 1
        made = b.new_zeros(4, 8), flow.zeros(b.shape, sbp=b.sbp, placement=b.placement)
        seen.extend([made[0].sbp, made[1].sbp])
        return b + made[0] + made[1]

    Compute(build)(x())
    assert seen == [(S0,), (S0,)]


def test_nobody_says_the_layout_outside_of_build() -> None:
    kept = []

    def build(a: Any) -> Any:
        kept.append(a + 1)
        return a + 2

    Compute(build)(x())
    with pytest.raises(GraphError, match=r"ask for \.sbp inside build"):
        _ = kept[0].sbp


def test_layouts_are_found_without_recursion_and_once() -> None:
    def build(a: Any) -> Any:
        for _ in range(3000):
            a = a + 1
        assert a.sbp == (S0,)
        return a

    trace_build((g := Compute(build))._spec, g.build, ((x(),), {}))


def test_a_slice_of_a_split_dim_is_split_on_two_ranks() -> None:
    g = Compute(lambda a: a[1:3])
    trace = trace_build(g._spec, g.build, ((x(),), {}))[0]
    for node in trace.graph:
        node.placement = Placement("cpu", [0, 1])
    value = next(n for n in trace.graph if n.op == "slice").outputs[0]
    layouts = Layouts()
    assert layouts.expected(value) == (S0,)


def test_strides_are_those_of_the_eager_view() -> None:
    def said(a: Any) -> list[Any]:
        b = a + 1
        views = [
            b,
            b.transpose(0, 1),
            b.transpose(0, 1).reshape(32),
            b[1:3, ::2],
            b.expand(3, 4, 8),
        ]
        return [(t.stride(), t.is_contiguous(), t.contiguous().stride()) for t in views]

    inside: list[Any] = []
    Compute(lambda a: inside.extend(said(a)) or a + 1)(flow.ones(4, 8))
    assert inside == said(flow.ones(4, 8))


@pytest.mark.parametrize("pieces", [1, 2])
def test_inputs_that_require_a_gradient_have_one_in_build(pieces: int) -> None:
    class Slopes(nn.Graph):
        def build(self, x: Any, w: Any) -> Any:
            assert x.requires_grad and not w.requires_grad
            (x * x * w).sum().backward()
            assert w.grad is None
            return x.grad

    x = flow.tensor([1.0, -2.0, 3.0, 0.5], requires_grad=True)
    w = flow.tensor([2.0, 3.0, 5.0, 7.0])
    graph = Slopes()
    graph.config.set_gradient_accumulation_steps(pieces)
    np.testing.assert_allclose(graph(x, w).numpy(), [4.0, -12.0, 30.0, 7.0])
    assert x.grad is None
