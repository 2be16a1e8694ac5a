"""An optimizer and its schedule do the same in a graph and eagerly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow import nn
from oneflow.functional.random_state import manual_seed
from oneflow.optim import (
    ASGD,
    LAMB,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from oneflow.optim.lr_scheduler import ExponentialLR, LambdaLR, WarmUpLR
from oneflow.tensor.tensor import Tensor, wrap

STEPS = 4
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS, 8, 5)).astype(np.float32)
Y = RNG.normal(size=(STEPS, 8, 3)).astype(np.float32)


def make_model() -> nn.Sequential:
    manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))


class Train(nn.Graph):
    def __init__(self, model: Any, optimizer: Any, schedule: Any) -> None:
        super().__init__()
        self.model = model
        self.loss = nn.MSELoss()
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x: Tensor, y: Tensor) -> Any:
        loss = self.loss(self.model(x), y)
        loss.backward()
        return loss


def eager(make: Any, make_schedule: Any) -> tuple[list[float], dict[str, Any]]:
    model = make_model()
    optimizer = make(model.parameters())
    schedule = make_schedule(optimizer)
    losses = []
    for x, y in zip(X, Y, strict=True):
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(wrap(x)), wrap(y))
        loss.backward()
        optimizer.clip_grad()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, {k: v.numpy() for k, v in model.state_dict().items()}


def traced(make: Any, make_schedule: Any) -> tuple[list[float], dict[str, Any]]:
    model = make_model()
    optimizer = make(model.parameters())
    graph = Train(model, optimizer, make_schedule(optimizer))
    losses = [graph(wrap(x), wrap(y)).item() for x, y in zip(X, Y, strict=True)]
    return losses, {k: v.numpy() for k, v in model.state_dict().items()}


CLIPPED = {"clip_grad_max_norm": 0.5, "clip_grad_norm_type": 2.0}
OPTIMIZERS = [
    lambda p: SGD(p, lr=0.1, weight_decay=0.1),
    lambda p: SGD([{"params": list(p), **CLIPPED}], lr=0.1, momentum=0.9, dampening=0.1),
    lambda p: Adam(p, lr=0.05, amsgrad=True),
    lambda p: AdamW(p, lr=0.05, weight_decay=0.1),
    lambda p: LAMB(p, lr=0.05, weight_decay=0.1),
    lambda p: Adagrad(p, lr=0.05, lr_decay=0.1),
    lambda p: RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    lambda p: Adadelta(p, lr=0.5),
    lambda p: Adamax(p, lr=0.05, weight_decay=0.1),
    lambda p: NAdam(p, lr=0.05, weight_decay=0.1),
    lambda p: RAdam(p, lr=0.05, betas=(0.9, 0.7)),
    lambda p: ASGD(p, lr=0.05, lambd=0.1, t0=1),
    lambda p: Rprop(p, lr=0.01),
    lambda p: Adafactor(p, lr=0.05, weight_decay=0.1),
    lambda p: Muon([x for x in p if x.ndim == 2], lr=0.05),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_losses_and_states_are_equal(make: Any) -> None:
    def schedule(optimizer: Any) -> Any:
        return WarmUpLR(ExponentialLR(optimizer, 0.8), 0.5, 2)

    losses, state = eager(make, schedule)
    graph_losses, graph_state = traced(make, schedule)
    np.testing.assert_allclose(graph_losses, losses, rtol=1e-5)
    for name, value in state.items():
        np.testing.assert_allclose(graph_state[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_every_group_follows_its_own_function() -> None:
    def make(parameters: Any) -> SGD:
        first, *rest = parameters
        return SGD([{"params": [first], "lr": 0.3}, {"params": rest, "lr": 0.1}])

    def schedule(optimizer: Any) -> Any:
        return LambdaLR(optimizer, [lambda t: 1.0 / (t + 1), lambda t: float(t < 2)])

    losses, _ = eager(make, schedule)
    graph_losses, _ = traced(make, schedule)
    np.testing.assert_allclose(graph_losses, losses, rtol=1e-5)
