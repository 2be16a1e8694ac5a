"""`flow.compile`: the values, gradients and histories of the function itself, from plans."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import AutogradError, GraphError
from oneflow.graph.functions.calls import NotCompiledWarning
from oneflow.graph.functions.function import CompiledFunction

A, B = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)


class Net(torch.nn.Module):
    """A small network of PyTorch's, and by `ours` of this library's."""

    def __init__(self, n: Any = torch.nn) -> None:
        super().__init__()
        self.layers = n.Sequential(n.Linear(6, 8), n.GELU(), n.LayerNorm(8), n.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def networks() -> tuple[Any, Any]:
    torch.manual_seed(0)
    theirs = Net().layers
    ours = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
    ours.load_state_dict({k: flow.tensor(v.numpy()) for k, v in theirs.state_dict().items()})
    return theirs, ours


FUNCTIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sum of products": lambda f, a, b: (a * b).sum() + a.mean(),
    "matmul": lambda f, a, b: a @ b.transpose(0, 1),
    "softmax": lambda f, a, b: f.softmax(a, -1).log() * b,
    "views": lambda f, a, b: a.reshape(2, 12)[:, ::3].exp() + b.flatten()[:8].reshape(2, 4),
    "written inside": lambda f, a, b: a.clone().mul_(b).add_(a),
    "index": lambda f, a, b: a[f.tensor([0, 2, 2])] * b[1:4],
    "constants": lambda f, a, b: f.where(a > 0, a, b * 3) + f.arange(6).to(a.dtype),
    "broadcast": lambda f, a, b: a[:, :1] * b[:1] - b.max(1, keepdim=True)[0],
    "detached": lambda f, a, b: a * b.detach() + b,
    "one operand": lambda f, a, b: a.sin(),
    "a loop": lambda f, a, b: sum((a * i + b for i in range(3)), a * 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_values_and_gradients_are_pytorchs(name: str, wanted: tuple[bool, bool]) -> None:
    function = FUNCTIONS[name]
    compiled = flow.compile(lambda a, b: function(flow, a, b), fullgraph=True)
    for _ in range(2):  # traced, then run again
        theirs = [torch.tensor(x, requires_grad=w) for x, w in zip((A, B), wanted, strict=True)]
        ours = [flow.tensor(x, requires_grad=w) for x, w in zip((A, B), wanted, strict=True)]
        y, z = function(torch, *theirs), compiled(*ours)
        np.testing.assert_allclose(z.numpy(force=True), y.detach().numpy(), rtol=2e-5, atol=1e-6)
        assert z.requires_grad == y.requires_grad
        if not y.requires_grad:
            continue
        d = np.random.default_rng(1).standard_normal(tuple(y.shape)).astype(np.float32)
        y.backward(torch.tensor(d))
        z.backward(flow.tensor(d))
        for t, x in zip(theirs, ours, strict=True):
            assert (x.grad is None) == (t.grad is None)
            if t.grad is not None:
                np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=2e-5, atol=1e-6)


def test_a_compiled_module_trains_as_pytorchs_does() -> None:
    theirs, ours = networks()
    compiled = flow.compile(ours, fullgraph=True)
    o1 = torch.optim.Adam(theirs.parameters(), lr=0.01)
    o2 = flow.optim.Adam(compiled.parameters(), lr=0.01)
    for _ in range(6):
        y, z = theirs(torch.tensor(A)), compiled(flow.tensor(A))
        loss, mine = (y**2).mean(), (z**2).mean()
        assert abs(loss.item() - mine.item()) < 1e-5
        for o, value in ((o1, loss), (o2, mine)):
            o.zero_grad()
            value.backward()
            o.step()


def test_buffers_and_modes_are_those_of_the_module() -> None:
    theirs, ours = torch.nn.BatchNorm1d(6), nn.BatchNorm1d(6)
    compiled = flow.compile(ours, fullgraph=True)
    for training in (True, True, False, True):
        theirs.train(training)
        compiled.train(training)
        y, z = theirs(torch.tensor(A)), compiled(flow.tensor(A))
        np.testing.assert_allclose(z.numpy(force=True), y.detach().numpy(), atol=1e-5)
        mean = theirs.running_mean
        assert mean is not None
        np.testing.assert_allclose(ours.running_mean.numpy(), mean.numpy(), atol=1e-6)
        assert int(ours.num_batches_tracked) == int(theirs.num_batches_tracked or 0)


def test_random_numbers_are_those_of_eager_code() -> None:
    layer = nn.Dropout(0.5)
    compiled = flow.compile(layer, fullgraph=True)
    flow.manual_seed(1)
    eager = [layer(flow.ones(50)).numpy() for _ in range(3)]
    flow.manual_seed(1)
    assert [compiled(flow.ones(50)).numpy().tolist() for _ in range(3)] == [
        e.tolist() for e in eager
    ]


def test_dropout_has_the_same_mask_in_both_passes() -> None:
    compiled = flow.compile(nn.Dropout(0.5), fullgraph=True)
    xs = [flow.ones(50, requires_grad=True) for _ in range(2)]
    ys = [compiled(x) for x in xs]
    for x, y in zip(xs, ys, strict=True):  # after both calls
        y.sum().backward()
        assert x.grad.tolist() == y.tolist()
    assert ys[0].tolist() != ys[1].tolist()


ORDERS = (
    "f0 f1 b0 b1",
    "f0 f1 b1 b0",
    "f0 b0 f1 f2 b1 b2",
    "f0 f1 r0 r1 r0 f2 b1 b2 b0",
    "f0 f1 b1",
)
"""Calls (f), backward passes that keep the graph (r), and those that do not (b), of three inputs.
"""


@pytest.mark.parametrize("order", ORDERS)
def test_calls_keep_what_they_saved_apart(order: str) -> None:
    compiled = flow.compile(lambda x: x.exp() * x, fullgraph=True)
    xs = [flow.tensor(A * k, requires_grad=True) for k in (1.0, 2.0, 0.5)]
    ys, passes = {}, [0, 0, 0]
    for kind, number in order.split():
        i = int(number)
        if kind == "f":
            ys[i] = compiled(xs[i]).sum()
        else:
            ys[i].backward(retain_graph=kind == "r")
            passes[i] += 1
    for x, count in zip(xs, passes, strict=True):
        v = x.detach().numpy().astype(np.float64)
        found = np.zeros_like(v) if x.grad is None else x.grad.numpy()
        np.testing.assert_allclose(found, count * np.exp(v) * (1 + v), rtol=1e-5)


def test_saved_values_are_read_in_the_registers_they_were_made_in() -> None:
    compiled = CompiledFunction(lambda x: (x.exp() * 3).exp())
    given = (flow.tensor(A, requires_grad=True),), {}
    for _ in range(3):
        compiled(*given[0]).sum().backward()
    plan = compiled.find(compiled.key(given))
    assert plan is not None
    arrays = plan._backward._arrays
    assert arrays
    lent = plan._forward.bound.fetch.arrays.values()  # of the last step, as ever the same
    for array in arrays:
        assert any(array is found for found in lent)


def test_a_pass_may_be_made_twice_if_its_graph_is_retained() -> None:
    compiled = flow.compile(lambda x: x.exp(), fullgraph=True)
    x = flow.tensor(A, requires_grad=True)
    y = compiled(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * np.exp(A), rtol=1e-5)
    with pytest.raises(AutogradError, match="second time"):
        y.backward()


def test_outputs_without_a_gradient_count_as_zeros() -> None:
    compiled = flow.compile(lambda x: (x * 2, x * 3, x.argmax()), fullgraph=True)
    x = flow.tensor(A, requires_grad=True)
    _, three, place = compiled(x)
    assert int(place) == int(A.argmax())
    assert not place.requires_grad
    three.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full_like(A, 3))


def test_what_was_given_or_captured_comes_back_as_it_is() -> None:
    held = flow.ones(2)
    compiled = flow.compile(lambda x: (x, held, x + 1), fullgraph=True)
    x = flow.tensor(A, requires_grad=True)
    for _ in range(2):
        same, other, made = compiled(x)
        assert same is x
        assert other is held
        assert made is not x


@dataclass
class Pair:
    first: Any
    rest: Any


def test_results_share_memory_as_those_of_eager_code_do() -> None:
    def function(x: Any) -> Any:
        y = x.exp()
        a, b = (x * 2).chunk(2, dim=-1)
        return y, y.detach(), x.detach(), a, b

    compiled = flow.compile(function, fullgraph=True)
    for _ in range(2):
        x = flow.tensor(A, requires_grad=True)
        y, shown, given, a, b = compiled(x)
        assert (y.requires_grad, shown.requires_grad, given.requires_grad) == (True, False, False)
        np.testing.assert_allclose(flow.cat([a, b], dim=-1).numpy(force=True), A * 2)
        shown.zero_()
        given.fill_(7)
        assert not y.detach().numpy().any()
        assert (x.detach().numpy() == 7).all()


def test_results_that_overlap_are_those_of_eager_code() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return y[1:], y[:-1]

    with pytest.warns(NotCompiledWarning, match="result.1 is a view of another result"):
        low, high = flow.compile(function)(flow.tensor(A))
    low.zero_()
    assert (high.numpy()[0] == A[0] * 2).all()
    assert not high.numpy()[1:].any()


def test_structures_and_keywords_go_through() -> None:
    @flow.compile(fullgraph=True)
    def function(x: Any, *, scale: float, pair: Pair) -> Any:
        return Pair(x * scale, {"sum": [pair.first + x, None, 3, "name"]})

    x = flow.tensor(A)
    for scale in (2.0, 5.0, 2.0):
        made = function(x, scale=scale, pair=Pair(x, 1))
        np.testing.assert_array_equal(made.first.numpy(), A * np.float32(scale))
        assert made.rest["sum"][1:] == [None, 3, "name"]
        np.testing.assert_array_equal(made.rest["sum"][0].numpy(), A + A)


def test_what_a_function_reads_around_it_is_part_of_its_kind() -> None:
    factor, weight = 2.0, flow.ones(1)

    @flow.compile(fullgraph=True)
    def function(x: Any) -> Any:
        return x * factor + weight

    x = flow.zeros(3) + 1
    assert function(x).tolist() == [3, 3, 3]
    factor = 5.0
    assert function(x).tolist() == [6, 6, 6]
    weight = weight + 1
    assert function(x).tolist() == [7, 7, 7]
    weight.add_(10)
    assert function(x).tolist() == [17, 17, 17]


class Config:
    gain = 1.0


class _Scaled(nn.Module):
    """Reads numbers of many kinds of places."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LeakyReLU(0.5)
        self.scale, self.table, self.items, self.config = 2.0, {"a": 1.0}, [1.0], Config()
        self.act, self.factor = flow.relu, 1.0

    def forward(self, x: Any) -> Any:
        y = self.act(self.inner(x) * self.scale * self.table["a"] * self.items[0])
        return y * self.config.gain * Config.gain * _by_gain(x) * getattr(self, "factor")  # noqa: B009


def _by_gain(x: Any) -> float:
    return GAIN


GAIN = 1.0


def _set_gain(_: _Scaled) -> None:
    global GAIN
    GAIN += 1


CHANGES: dict[str, Callable[[_Scaled], object]] = {
    "an attribute": lambda m: setattr(m, "scale", m.scale + 1),
    "an attribute by its text": lambda m: setattr(m, "factor", m.factor + 1),
    "an attribute of a layer": lambda m: setattr(m.inner, "negative_slope", -3.0),
    "an item of a dict": lambda m: m.table.update(a=m.table["a"] + 1),
    "an item of a list": lambda m: m.items.__setitem__(0, -1.0),
    "an attribute of an object": lambda m: setattr(m.config, "gain", m.config.gain + 1),
    "an attribute of a class": lambda m: setattr(Config, "gain", Config.gain + 1),
    "a function": lambda m: setattr(m, "act", flow.tanh if m.act is flow.relu else flow.relu),
    "a global of a function that is called": _set_gain,
    "a hook": lambda m: m.inner.register_forward_hook(lambda _, __, y: y * -3),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("is_module", [True, False])
def test_state_that_changes_between_calls_is_seen(name: str, is_module: bool) -> None:
    model = _Scaled()
    compiled = flow.compile(model if is_module else lambda x: model(x), fullgraph=True)
    x = flow.tensor(A)
    seen = []
    for _ in range(3):
        made = compiled(x).numpy()
        np.testing.assert_allclose(made, model(x).numpy(), rtol=1e-5)
        seen.append(made)
        CHANGES[name](model)
    assert not np.allclose(seen[0], seen[1])
    Config.gain = 1.0


def test_arguments_are_told_apart_by_their_signs_and_what_they_hold() -> None:
    compiled = flow.compile(lambda x, k: x * (1 if str(k) == "0.0" else 2), fullgraph=True)
    assert compiled(flow.ones(1), 0.0).tolist() == [1]
    assert compiled(flow.ones(1), -0.0).tolist() == [2]
    held = Config()
    by_gain = flow.compile(lambda x, c: x * c.gain, fullgraph=True)
    for held.gain in (2.0, 3.0):
        assert by_gain(flow.ones(1), held).tolist() == [held.gain]


def test_hooks_of_parameters_run_once_in_each_pass() -> None:
    weight = flow.ones(2, requires_grad=True)
    weight.register_hook(lambda d: d * 3)
    compiled = flow.compile(lambda x: (x * weight).sum(), fullgraph=True)
    for _ in range(2):
        weight.grad = None
        compiled(flow.ones(2)).backward()
        assert weight.grad.tolist() == [3, 3]


def test_a_module_whose_parameters_are_made_anew_runs_as_it_is() -> None:
    layer, weight = nn.Linear(2, 1, bias=False), flow.ones(1, 2, requires_grad=True)
    compiled = flow.compile(layer)
    with pytest.warns(NotCompiledWarning, match="made anew"):
        for _ in range(2):
            layer._parameters["weight"] = weight * 2
            compiled(flow.ones(1, 2)).sum().backward()
    assert weight.grad.tolist() == [[4, 4]]


def test_gradients_that_are_turned_off_inside_stay_off() -> None:
    def function(x: Any) -> Any:
        flow.set_grad_enabled(False)
        return x * 2

    with flow.enable_grad(), pytest.warns(NotCompiledWarning, match="set_grad_enabled"):
        compiled = flow.compile(function)
        for _ in range(2):
            flow.set_grad_enabled(True)
            compiled(flow.ones(1))
            assert not flow.is_grad_enabled()


def _appends(x: Any) -> Any:
    LOG.append(x.shape)
    return x * len(LOG)


LOG: list[Any] = []


class _CountsCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x * self.count


@pytest.mark.parametrize("function", [_appends, _CountsCalls()])
def test_a_function_that_changes_python_objects_runs_as_it_is(function: Any) -> None:
    compiled = flow.compile(function)
    with pytest.warns(NotCompiledWarning, match="is changed"):
        assert [compiled(flow.ones(1)).item() for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_of_python_are_drawn_in_each_call(draw: Callable[[], float]) -> None:
    compiled = flow.compile(lambda x: x * draw())
    random.seed(1)
    np.random.seed(1)
    expected = [draw() for _ in range(3)]
    random.seed(1)
    np.random.seed(1)
    with pytest.warns(NotCompiledWarning, match="random numbers"):
        made = [compiled(flow.ones(1, dtype=flow.float64)).item() for _ in range(3)]
    assert made == expected


def test_plans_are_for_shapes_dtypes_and_gradients() -> None:
    compiled = CompiledFunction(lambda x: x * 2, size=3)
    for shape in ((2,), (3,), (2,), (2, 2)):
        assert compiled(flow.ones(*shape)).tolist() == (np.ones(shape) * 2).tolist()
    assert len(compiled._plans) == 3
    assert compiled(flow.ones(2, dtype=flow.int64)).dtype is flow.int64
    assert len(compiled._plans) == 3
    x = flow.ones(2, requires_grad=True)
    assert compiled(x).requires_grad
    with flow.no_grad():
        assert not compiled(x).requires_grad


def test_autocast_around_a_call_holds_inside() -> None:
    linear = nn.Linear(6, 3)
    compiled = flow.compile(linear, fullgraph=True)
    x = flow.tensor(A)
    assert compiled(x).dtype is flow.float32
    with flow.autocast("cpu", dtype=flow.bfloat16):
        inside, eager = compiled(x), linear(x)
    assert inside.dtype is eager.dtype is flow.bfloat16
    assert inside.float().tolist() == eager.float().tolist()
    inside.float().sum().backward()
    mine = linear.weight.grad.numpy()
    linear.weight.grad = None
    eager.float().sum().backward()
    np.testing.assert_allclose(mine, linear.weight.grad.numpy(), rtol=1e-2)


def _sum_decides(x: Any) -> Any:
    return x * 2 if x.sum() > 0 else x * 3


def _reads(x: Any) -> Any:
    return x * x.sum().item()


LEAF = flow.ones(6, requires_grad=True)


def _goes_back(x: Any) -> Any:
    y = (x * LEAF).sum()
    y.backward()
    return y


class _Keeps(nn.Module):
    def forward(self, x: Any) -> Any:
        self.last = x * 2
        return self.last


class _Wrapped:
    def __init__(self, x: Any) -> None:
        self.x = x


OTHER = flow.ones(6)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a condition": (_sum_decides, "needs the values"),
    "a view": (lambda x: x[1:].t(), "is a view of tensor 0 of the arguments"),
    "a view of a tensor outside": (
        lambda x: OTHER.view(2, 3),
        "is a view of a tensor made outside",
    ),
    "a number": (_reads, "needs the values"),
    "a backward pass": (_goes_back, "backward"),
    "an attribute": (_Keeps(), "is set to a result"),
    "an object": (_Wrapped, "in which tensors cannot be found"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_compiled_runs_as_it_is_and_says_why(name: str) -> None:
    function, why = REFUSED[name]
    compiled = flow.compile(function)
    values = A.copy()
    with pytest.warns(NotCompiledWarning, match=why) as told:
        first = compiled(flow.tensor(values))
    assert len(told) == 1
    assert __file__ in str(told[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = compiled(flow.tensor(values))  # said once
    plain = function(flow.tensor(values))
    for made in (first, again):
        if isinstance(made, _Wrapped):
            made, expected = made.x, plain.x
        else:
            expected = plain
        np.testing.assert_array_equal(made.numpy(force=True), expected.numpy(force=True))
        assert made.value is None
    with pytest.raises(GraphError, match=why):
        flow.compile(function, fullgraph=True)(flow.tensor(values))


def test_an_error_of_the_call_is_raised_as_it_is() -> None:
    compiled = flow.compile(lambda a, b: a @ b)
    with pytest.raises(RuntimeError, match="matmul"), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(flow.ones(2, 3), flow.ones(2, 3))


def test_what_was_saved_must_not_be_overwritten() -> None:
    compiled = flow.compile(lambda x, w: x * w, fullgraph=True)
    x, w = flow.tensor(A), flow.tensor(B, requires_grad=True)
    y = compiled(x, w).sum()
    x.add_(1)
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        y.backward()


def test_results_that_the_backward_pass_reads_must_not_be_overwritten() -> None:
    x = flow.tensor(A, requires_grad=True)
    y = flow.compile(lambda x: x.exp(), fullgraph=True)(x)
    y.detach().zero_()
    with pytest.raises(AutogradError, match="modified by an inplace operation"):
        y.sum().backward()


MADE_INSIDE: dict[str, Callable[[Any], Any]] = {
    "alone": lambda x: flow.tensor([5.0, 6.0]),
    "a tuple": lambda x: (flow.tensor([1.0, 2.0]), x + 1),
    "a dict": lambda x: {"a": flow.from_numpy(np.ones(2, np.float32)), "b": x * 2},
    "a list": lambda x: [x.new_tensor([3.0, 4.0]), x * 2],
}


@pytest.mark.parametrize("name", MADE_INSIDE)
def test_tensors_made_inside_are_new_in_each_call(name: str) -> None:
    compiled = flow.compile(MADE_INSIDE[name], fullgraph=True)

    def first() -> Any:
        made = compiled(flow.ones(2))
        if isinstance(made, dict):
            return made["a"]
        return made if isinstance(made, flow.Tensor) else made[0]

    x = first()
    values = x.tolist()
    x.zero_()
    assert first().tolist() == values


def test_second_derivatives_are_refused() -> None:
    compiled = flow.compile(lambda x: x.exp(), fullgraph=True)
    x = flow.tensor(A, requires_grad=True)
    with pytest.raises(AutogradError, match="no second derivatives"):
        flow.autograd.grad(compiled(x).sum(), x, create_graph=True)


def test_a_compiled_module_stands_for_the_module() -> None:
    _, model = networks()
    compiled = flow.compile(model)
    assert isinstance(compiled, nn.Module)
    assert list(compiled.state_dict()) == [f"_orig_mod.{k}" for k in model.state_dict()]
    compiled.note = 3
    assert model.note == 3
    twin = copy.deepcopy(compiled)
    x = flow.tensor(A)
    before = compiled(x).tolist()
    with flow.no_grad():
        twin._orig_mod[0].weight.zero_()
    assert compiled(x).tolist() == before
    assert twin(x).tolist() == twin._orig_mod(x).tolist() != before


def test_compile_of_a_module_replaces_its_forward() -> None:
    theirs, ours = networks()
    ours.compile(fullgraph=True)
    np.testing.assert_allclose(
        ours(flow.tensor(A)).numpy(force=True), theirs(torch.tensor(A)).detach().numpy(), atol=1e-5
    )
    assert list(ours.state_dict()) == list(theirs.state_dict())


def test_a_compiled_function_is_part_of_a_graph_around_it() -> None:
    inner = flow.compile(lambda x: x.sin(), fullgraph=True)

    class Outer(nn.Graph):
        def build(self, x: Any) -> Any:
            return inner(x) + 1

    np.testing.assert_allclose(Outer()(flow.tensor(A)).numpy(), np.sin(A) + 1, rtol=1e-6)


def test_global_tensors_keep_their_layout() -> None:
    place = flow.placement("cpu", [0])
    compiled = flow.compile(lambda x, w: (x @ w).relu(), fullgraph=True)
    x = flow.tensor(A, placement=place, sbp=flow.sbp.split(0)).requires_grad_()
    w = flow.tensor(B.T.copy(), placement=place, sbp=flow.sbp.broadcast).requires_grad_()
    y = compiled(x, w)
    assert y.is_global
    np.testing.assert_allclose(y.numpy(force=True), np.maximum(A @ B.T, 0), rtol=1e-5, atol=1e-6)
    y.sum().backward()
    on = (A @ B.T > 0).astype(np.float32)
    np.testing.assert_allclose(x.grad.numpy(), on @ B, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(w.grad.numpy(), A.T @ on, rtol=1e-4, atol=1e-5)


def test_ever_new_shapes_give_the_function_up() -> None:
    compiled = flow.compile(lambda x: x * 2)
    with pytest.warns(NotCompiledWarning, match="kinds of calls"):
        for n in range(1, 40):
            assert compiled(flow.ones(n)).tolist() == [2] * n
