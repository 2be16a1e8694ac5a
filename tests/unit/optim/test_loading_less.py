"""A state dict replaces all states, also those that it lacks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "SGD": lambda m, p: m.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda m, p: m.optim.Adam(p, lr=0.1, amsgrad=True),
    "Adagrad": lambda m, p: m.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "RMSprop": lambda m, p: m.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "Adadelta": lambda m, p: m.optim.Adadelta(p, lr=0.1),
    "Rprop": lambda m, p: m.optim.Rprop(p, lr=0.1),
    "NAdam": lambda m, p: m.optim.NAdam(p, lr=0.1),
    "ASGD": lambda m, p: m.optim.ASGD(p, lr=0.1),
}


def trained(m: Any, make: Any) -> list[Any]:
    """Parameters after steps, of which the later ones begin with the states of no step."""
    first, second = m.nn.Parameter(m.ones(3)), m.nn.Parameter(m.full((2,), 2.0))
    optimizer = make(m, [first, second])
    fresh = copy.deepcopy(optimizer.state_dict())

    def step() -> None:
        optimizer.zero_grad()
        ((first * first).sum() + (second * second * second).sum()).backward()
        optimizer.step()

    for _ in range(3):
        step()
    optimizer.load_state_dict(fresh)
    for _ in range(2):
        step()
    return [first.detach().numpy(), second.detach().numpy()]


@pytest.mark.parametrize("name", MAKERS)
def test_states_that_are_not_there_begin_anew(name: str) -> None:
    for ours, theirs in zip(trained(flow, MAKERS[name]), trained(torch, MAKERS[name]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5)


def test_a_graph_goes_on_with_the_states_that_were_loaded() -> None:
    class Train(flow.nn.Graph):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer
            self.add_optimizer(flow.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9))

        def build(self, x: Any) -> Any:
            y = self.layer(x).square().sum()
            y.backward()
            return y

    def made() -> Any:
        layer = flow.nn.Linear(2, 1)
        layer.weight.data.fill_(0.5)
        layer.bias.data.fill_(0.1)
        return Train(layer)

    x = flow.tensor([[0.1, -0.2]])
    graph, again = made(), made()
    optimizer = graph._spec.optimizers[0].optim
    fresh = again._spec.optimizers[0].optim.state_dict()
    for _ in range(3):
        graph(x)
    optimizer.load_state_dict(fresh)
    again.layer.origin.load_state_dict(graph.layer.origin.state_dict())
    for _ in range(2):
        np.testing.assert_allclose(graph(x).numpy(), again(x).numpy(), rtol=1e-6)
