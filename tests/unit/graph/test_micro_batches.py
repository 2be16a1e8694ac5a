"""means_of: when a batch may be cut. That a graph then trains as with the whole batch is tested in
tests/processes/auto_parallel_full_program.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.graph.micro_batches import means_of
from oneflow.graph.tracing import trace_build

ROWS, PIECES = 8, 4


class Computes(nn.Graph):
    """The results that a function makes of a linear layer's and of the labels; the first is the
    loss.
    """

    def __init__(self, function: Callable[..., Any], pieces: int, *modules: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.function = function
        for i, module in enumerate(modules):
            setattr(self, f"module{i}", module)
        self.config.set_gradient_accumulation_steps(pieces)
        self.add_optimizer(flow.optim.SGD(self.linear.parameters(), lr=0.1))

    def build(self, x: Any, y: Any) -> Any:
        extra = [getattr(self, name) for name in self._spec.modules if name.startswith("module")]
        results = self.function(self.linear(x), y, *extra)
        results[0].backward(flow.ones_like(results[0]) if results[0].ndim else None)
        return results


def found(function: Callable[..., Any], *modules: nn.Module) -> frozenset[int] | None:
    given: Any = ((flow.ones(ROWS, 6), flow.zeros(ROWS, dtype=flow.int64)), {})
    graphs = [Computes(function, pieces, *modules) for pieces in (1, PIECES)]
    return means_of(*(trace_build(graph._spec, graph.build, given).trace for graph in graphs))


@pytest.mark.parametrize(
    "function, means",
    [
        (lambda h, y: [F.cross_entropy(h, y)], {0}),
        (lambda h, y: [F.cross_entropy(h, y), h, h.softmax(1)], {0}),
        (lambda h, y: [h.square().mean(), h.mean(0)], {0, 1}),
        (lambda h, y: [h.square().sum() / 8.0], None),  # 8 is not the number of rows to us
        (lambda h, y: [h.square().mean() * 3.0 + 1.0], {0}),
        (lambda h, y: [h.square().mean() + h.mean()], {0}),
        (lambda h, y: [h.square().sum()], None),
        (lambda h, y: [h.square().mean(), h.sum(0)], None),
        (lambda h, y: [h.square().mean().sqrt()], None),  # no mean of roots
        (lambda h, y: [(h - h.mean(0)).square().mean()], None),  # rows know of each other
        (lambda h, y: [h.flip(0).square().mean()], None),
        (lambda h, y: [F.cross_entropy(h, y), h.T], None),
        (lambda h, y: [(h.T @ h).mean()], None),
        (lambda h, y: [F.cross_entropy(h, y, ignore_index=3)], {0}),
        (lambda h, y: [h.square().mean().unsqueeze(0).tile(3).cumsum(0)[1].neg()], {0}),
        (lambda h, y: [h.square().mean(), h.mean(0) @ flow.ones(4, 2)], {0, 1}),
        (lambda h, y: [F.linear(h.square().mean(0), flow.ones(2, 4), flow.ones(2)).sum()], {0}),
        (lambda h, y: [h.square().sum() * h.shape[0] ** -1.0], {0}),
        (lambda h, y: [h.square()], None),  # rows of losses, whose gradients are added up
        (lambda h, y: [(h * h.shape[0]).mean()], None),  # numbers that pieces have otherwise
        (lambda h, y: [h.mean() * flow.full((), float(h.shape[0]))], None),
        (lambda h, y: [h.mean() + h.shape[0]], None),
        (lambda h, y: [F.softplus(h, beta=h.shape[0]).mean()], None),
    ],
)
def test_only_means_of_rows_that_lie_apart_let_a_batch_be_cut(function: Any, means: Any) -> None:
    kept = found(function)
    assert kept == means


def test_modules_that_mix_rows_or_draw_keep_the_batch_whole() -> None:
    def through(h: Any, y: Any, module: Any) -> list[Any]:
        return [F.cross_entropy(module(h), y)]

    assert found(through, nn.LayerNorm(4)) == frozenset({0})
    assert found(through, nn.BatchNorm1d(4)) is None
    assert found(through, nn.Dropout(0.5)) is None


@pytest.mark.parametrize(
    "loss, means",
    [
        (lambda h: h.square().mean(), {0}),
        (lambda h: h.square().sum(), None),
        (lambda h: h.square().sum(1), None),
        (lambda h: h.square().mean().sqrt(), None),
    ],
)
def test_a_loss_that_is_not_returned_counts(loss: Any, means: Any) -> None:
    """The gradients with which backward() begins are none that the loss has a part in."""

    class Hides(Computes):
        def build(self, x: Any, y: Any) -> Any:
            h = self.linear(x)
            hidden = loss(h)
            hidden.backward(flow.ones(*hidden.shape))
            return [h.mean()]

    given: Any = ((flow.ones(ROWS, 6), flow.zeros(ROWS, dtype=flow.int64)), {})
    graphs = [Hides(lambda h, y: [], pieces) for pieces in (1, PIECES)]
    assert (
        means_of(*(trace_build(graph._spec, graph.build, given).trace for graph in graphs)) == means
    )


def test_two_backward_passes_keep_the_batch_whole() -> None:
    def twice(h: Any, y: Any) -> list[Any]:
        h.square().mean().backward(retain_graph=True)
        return [h.mean()]

    assert found(twice) is None
