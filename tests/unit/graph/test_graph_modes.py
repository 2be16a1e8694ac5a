"""A graph follows its modules: into training and evaluation, with parameters frozen and freed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.tensor.grad_mode import switches

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(self.norm(self.first(x))))


class Run(nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.traces = 0

    def build(self, x: Any) -> Any:
        self.traces += 1
        return self.model(x)


class Train(Run):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.add_optimizer(flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    def build(self, x: Any) -> Any:
        loss = super().build(x).square().mean()
        loss.backward()
        return loss


def made() -> Model:
    flow.manual_seed(1)
    return Model()


def shown(model: nn.Module, result: Any) -> list[Any]:
    return [result.numpy(), *(value.numpy() for value in model.state_dict().values())]


def eager(model: nn.Module) -> Callable[[Any], Any]:
    optimizer = flow.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


SWITCHES: dict[str, Callable[[Any], object]] = {
    "eval": lambda model: model.eval(),
    "a part's eval": lambda model: model.norm.eval(),
    "training as an attribute": lambda model: setattr(model.drop, "training", False),
    "requires_grad_": lambda model: model.first.requires_grad_(False),
    "requires_grad": lambda model: setattr(model.first.bias, "requires_grad", False),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_steps_after_a_switch_are_those_of_eager_code(name: str) -> None:
    models = made(), made()
    graph, step, x = Train(models[0]), eager(models[1]), flow.tensor(X)
    switch, back = SWITCHES[name], lambda model: model.train().requires_grad_(True)
    for change in (None, None, switch, None, back, None, switch):
        found = []
        for model, run in zip(models, (graph, step), strict=True):
            if change is not None:
                change(model)
            flow.manual_seed(7)
            found.append(shown(model, run(x)))
        for ours, wanted in zip(*found, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-6)
    assert graph.traces == 2
    assert graph.state_dict()["System-Train-TrainStep"].item() == 7


def test_a_switch_back_before_the_next_call_traces_nothing() -> None:
    model, x = made(), flow.tensor(X)
    graph = Run(model)
    graph(x)
    before = switches.count
    model.eval().train()
    assert switches.count > before
    graph(x)
    model.train()
    graph(x)
    assert graph.traces == 1


def test_modules_that_only_build_knows_are_followed() -> None:
    drop, factor = nn.Dropout(0.5), flow.ones(1, requires_grad=True)
    graph = nn.Graph.trace(lambda x: drop(x * factor))
    x = flow.ones(1000)
    assert (graph(x) == 0).any()
    drop.eval()
    assert not (graph(x) == 0).any()
    factor.requires_grad_(False)
    assert not graph(x).requires_grad
    drop.train()
    assert (graph(x) == 0).any()


def test_a_graph_traced_before_the_switch_is_traced_again() -> None:
    model, x = made(), flow.tensor(X)
    graph = Run(model)
    graph.build_graph(x)
    model.eval()
    np.testing.assert_allclose(graph(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)


def test_each_shape_has_plans_for_each_mode() -> None:
    class Shapes(Run):
        @nn.Graph.with_dynamic_input_shape()
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model)

    model = made()
    graph, inputs = Shapes(model), [flow.tensor(X), flow.tensor(X[:5])]
    for _ in range(2):
        for mode in (True, False):
            model.train(mode)
            for x in inputs:
                flow.manual_seed(3)
                kept = {name: value.clone() for name, value in model.state_dict().items()}
                found = graph(x).numpy()
                model.load_state_dict(kept)
                flow.manual_seed(3)
                np.testing.assert_allclose(found, model(x).numpy(), rtol=1e-5, atol=1e-6)
    assert graph.traces == 4


def test_a_mode_that_cannot_be_traced_leaves_the_graph_as_it_was() -> None:
    class Picky(nn.Module):
        def forward(self, x: Any) -> Any:
            if not self.training:
                raise ValueError("only for training")
            return x + 1

    model, x = Picky(), flow.ones(2)
    graph = Run(model)
    graph(x)
    model.eval()
    for _ in range(2):
        with pytest.raises(ValueError, match="only for training"):
            graph(x)
    model.train()
    np.testing.assert_array_equal(graph(x).numpy(), [2, 2])
    assert graph.traces == 3


def test_a_loaded_plan_follows_its_modules() -> None:
    model, x = made(), flow.tensor(X)
    graph = Run(model)
    graph(x)
    again = Run(model)
    again.load_runtime_state_dict(graph.runtime_state_dict(with_eager=True))
    flow.manual_seed(2)
    again(x)
    assert again.traces == 0
    model.eval()
    np.testing.assert_allclose(again(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    assert again.traces == 1


def test_another_default_dtype_traces_again() -> None:
    class Ones(nn.Graph):
        def build(self, x: Any) -> Any:
            return x + flow.ones(2)

    graph, x = Ones(), flow.ones(2)
    assert graph(x).dtype == flow.float32
    try:
        flow.set_default_dtype(flow.float64)
        assert graph(x).dtype == flow.float64
    finally:
        flow.set_default_dtype(flow.float32)
    assert graph(x).dtype == flow.float32
