"""Runs in-place code in build: the values and gradients of the same code run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import OneFlowError

RNG = np.random.default_rng(0)
DATA = RNG.normal(size=(3, 6)).astype(np.float32)
WEIGHT = RNG.normal(size=(3, 6)).astype(np.float32)


class Compute(nn.Graph):
    def __init__(self, function: Callable[..., Any], model: nn.Module | None = None) -> None:
        super().__init__()
        self.function = function
        if model is not None:
            self.model = model

    def build(self, *args: Any) -> Any:
        return self.function(*args)


def holder() -> nn.Linear:
    model = nn.Linear(6, 3, bias=False)
    model.weight.data[...] = WEIGHT
    return model


def plain(w: Any, x: Any) -> Any:
    a = w * 1
    a += x
    a.mul_(2.0)
    return (a * a).sum()


def items(w: Any, x: Any) -> Any:
    a = w * 1
    a[0] = 0.0
    a[1:3] += x[1:3]
    a[a > 1] = 1.0
    return (a * a).sum()


def through_views(w: Any, x: Any) -> Any:
    a = w * 1
    a[0].mul_(2.0)
    a.t().add_(x.t())
    flat = a.view(-1)
    flat[3] = 0.5
    a.view(6, 3)[2:].mul_(3.0)
    return (a * a).sum()


def stale_views(w: Any, x: Any) -> Any:
    """A view sees what is written to its base, and what is written through other views."""
    a = w * 1
    row, column, flat = a[0], a[:, 1], a.view(-1)
    a += x
    row *= 2
    flat[1] = 4.0
    return (row * row).sum() + (column * column).sum() + (flat * flat).sum()


@pytest.mark.parametrize("function", [plain, items, through_views, stale_views])
def test_values_and_gradients_are_those_of_torch(function: Any) -> None:
    import torch

    w = torch.tensor(WEIGHT, requires_grad=True)
    expected = function(w, torch.tensor(DATA))
    expected.backward()
    model = holder()

    def build(x: Any) -> Any:
        loss = function(model.weight, x)
        loss.backward()
        return loss, model.weight.grad

    loss, grad = Compute(build, model)(flow.tensor(DATA))
    eager = function(model.weight, flow.tensor(DATA))
    eager.backward()
    for found, gradient in ((loss, grad), (eager, model.weight.grad)):
        np.testing.assert_allclose(found.item(), expected.item(), rtol=1e-5)
        np.testing.assert_allclose(gradient.numpy(), w.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_a_reshaped_copy_is_no_view() -> None:
    def function(x: Any) -> Any:
        a = x * 1
        copied = a.t().reshape(-1)  # the elements must move
        copied.zero_()
        return a, copied

    a, copied = Compute(function)(flow.tensor(DATA))
    np.testing.assert_array_equal(a.numpy(), DATA)
    assert not copied.numpy().any()


def test_an_input_of_the_graph_is_left_alone() -> None:
    def function(x: Any) -> Any:
        x += 1
        return x * 2

    given = flow.tensor(DATA)
    np.testing.assert_allclose(Compute(function)(given).numpy(), (DATA + 1) * 2, rtol=1e-6)
    np.testing.assert_array_equal(given.numpy(), DATA)


def test_a_captured_tensor_changes_within_build_only() -> None:
    captured = flow.ones(3, 6)

    def function(x: Any) -> Any:
        captured.add_(1.0)
        return captured + x

    graph = Compute(function)
    for _ in range(2):
        np.testing.assert_allclose(graph(flow.tensor(DATA)).numpy(), DATA + 2, rtol=1e-6)
    assert captured.numpy().max() == 1.0


class Counter(nn.Module):
    """Counts its calls, in place or by a new tensor."""

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.replaces = replaces
        self.register_buffer("count", flow.zeros(2))

    def forward(self, x: Any) -> Any:
        if self.replaces:
            self.count = self.count + 1
        else:
            self.count.add_(1)
            self.count[0] += 0.5
        return x + self.count.sum()


@pytest.mark.parametrize("replaces", [False, True])
def test_a_buffer_is_overwritten_at_every_call(replaces: bool) -> None:
    model, expected = Counter(replaces), Counter(replaces)
    buffer = model.count
    graph = Compute(model, model)
    for _ in range(3):
        out, eager = graph(flow.tensor(DATA)), expected(flow.tensor(DATA))
        np.testing.assert_allclose(out.numpy(), eager.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(model.count.numpy(), expected.count.numpy())
    assert model.count is buffer and not model.count.is_lazy


def test_what_the_backward_pass_needs_may_not_be_overwritten() -> None:
    model = holder()

    def function(x: Any) -> Any:
        a = model.weight * x
        loss = (a * a).sum()
        a += 1
        loss.backward()
        return loss

    with pytest.raises(OneFlowError, match="modified by an inplace operation"):
        Compute(function, model)(flow.tensor(DATA))


def test_a_parameter_may_not_be_overwritten() -> None:
    model = holder()
    with pytest.raises(OneFlowError, match="a leaf Tensor that requires grad"):
        Compute(lambda x: model.weight.add_(1.0) + x, model)(flow.tensor(DATA))


def test_a_buffer_keeps_its_type() -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", flow.zeros(2))

        def forward(self, x: Any) -> Any:
            self.seen = flow.cat([self.seen, self.seen])
            return x + 1

    model = Grows()
    with pytest.raises(OneFlowError, match="a buffer keeps its shape and dtype"):
        Compute(model, model)(flow.tensor(DATA))
    assert model.seen.shape == (2,) and not model.seen.is_lazy


def test_a_view_made_outside_and_its_base_stay_one_within_build() -> None:
    base = flow.arange(6.0)
    view = base.reshape(2, 3)

    def build(x: Any) -> Any:
        view[0].add_(x)
        base.mul_(2)
        return base + 0, view + 0

    for _ in range(2):
        for got in Compute(build)(flow.ones(3)):
            np.testing.assert_array_equal(got.numpy().ravel(), [2, 4, 6, 6, 8, 10])
    assert base.tolist() == [0, 1, 2, 3, 4, 5]
    view[0, 0] = 7
    assert base[0].item() == 7 and not view.is_lazy
