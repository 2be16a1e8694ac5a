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
    """A view sees writes to its base, and writes through other views."""
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


@pytest.mark.parametrize("part", [lambda y: y, lambda y: y.mT, lambda y: y[0]])
def test_a_part_at_a_computed_position_may_not_be_overwritten(part: Any) -> None:
    class Graph(nn.Graph):
        def build(self, x: Any, i: Any) -> Any:
            part(x[i]).exp_()
            return x

    with pytest.raises(OneFlowError, match="is a copy here"):
        Graph()(flow.ones(2, 3, 4), flow.tensor(1))


@pytest.mark.parametrize("mask", [True, False])
def test_what_a_mask_wants_is_there(mask: bool) -> None:
    class Graph(nn.Graph):
        def build(self, x: Any, m: Any, source: Any) -> Any:
            return x.masked_scatter(m, source)

    given = flow.ones(1), flow.tensor([mask]), flow.ones(0)
    if not mask:
        assert Graph()(*given).tolist() == [1]
        return
    with pytest.raises(OneFlowError, match="out of bounds"):
        Graph()(*given)


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


def _set(x: Any, index: Any, value: Any) -> None:
    x[index] = value


WRITES: dict[str, Callable[[Any], object]] = {
    "detach": lambda t: t.detach().add_(1.0),
    "data": lambda t: t.data.mul_(2.0),
    "an element of data": lambda t: _set(t.data, (0, 1), 5.0),
    "a slice of data": lambda t: t.data[1:].fill_(3.0),
    "data of a slice": lambda t: t[1:].data.fill_(3.0),
    "a view of detach": lambda t: t.detach().view(-1)[2:4].zero_(),
    "detach of detach": lambda t: t.detach().detach().t().sub_(1.0),
    "data of data": lambda t: t.data.data.clamp_(min=0.0),
    "diagonal": lambda t: t.diagonal().add_(0.5),
    "diagonal of data": lambda t: t.data.diagonal(1).copy_(t.detach()[:2, 0] * 2),
    "elements of a diagonal": lambda t: _set(t.diagonal(), slice(1, None), 7.0),
    "copy_ to detach": lambda t: t.detach().copy_(t * 3.0),
    "an indexed write to data": lambda t: _set(t.data, [0, 2], 1.0),
    "out=": lambda t: flow.add(t.detach(), 1.0, out=t.data) if isinstance(t, flow.Tensor) else None,
    "unbind": lambda t: t.unbind(0)[1].mul_(2.0),
    "expand of the same shape": lambda t: t.expand(3, 3).mul_(2.0),
}
SQUARE = DATA[:, :3].copy()


def _as_whole(write: Callable[[Any], object], t: Any) -> Any:
    write(t)
    return t * 2


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_computed_tensors_reach_them(name: str) -> None:
    def function(x: Any) -> Any:
        h = x * 1
        seen = h.detach()
        return _as_whole(WRITES[name], h), seen.clone(), h.t()

    expected = function(flow.tensor(SQUARE))
    for got, want in zip(Compute(function)(flow.tensor(SQUARE)), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_inputs_and_captured_tensors_are_seen_within_build(name: str) -> None:
    captured = flow.tensor(SQUARE)

    def function(x: Any) -> Any:
        return _as_whole(WRITES[name], x), _as_whole(WRITES[name], captured)

    got = Compute(function)(flow.tensor(SQUARE))
    want = _as_whole(WRITES[name], flow.tensor(SQUARE))
    for one in got:
        np.testing.assert_allclose(one.numpy(), want.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(captured.numpy(), SQUARE)


@pytest.mark.parametrize("name", WRITES)
def test_writes_to_buffers_are_kept(name: str) -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", flow.tensor(SQUARE))

        def forward(self, x: Any) -> Any:
            WRITES[name](self.state)
            return x + self.state

    model, expected = Holder(), Holder()
    graph = Compute(model, model)
    for _ in range(2):
        got, want = graph(flow.tensor(SQUARE)), expected(flow.tensor(SQUARE))
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6)
    np.testing.assert_allclose(model.state.numpy(), expected.state.numpy(), rtol=1e-6)


def test_writes_through_detach_have_no_gradient() -> None:
    def function(w: Any, x: Any) -> Any:
        h = w * 1
        d = h.detach()
        d.mul_(3.0)
        d[0].add_(x[0])
        part = h[1:].data
        part.add_(1.0)
        return (h * x).sum() + (d * d).sum()

    test_values_and_gradients_are_those_of_torch(function)


def test_a_backward_pass_is_told_of_writes_through_data() -> None:
    model = holder()

    def function(x: Any) -> Any:
        a = model.weight * x
        loss = (a * a).sum()
        a.data.add_(1.0)
        loss.backward()
        return loss

    with pytest.raises(OneFlowError, match="modified by an inplace operation"):
        Compute(function, model)(flow.tensor(DATA))
