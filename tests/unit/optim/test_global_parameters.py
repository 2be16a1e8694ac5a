"""Optimizers and modules on global tensors in a world of one: values as for local ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow import nn
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Sbp, Split
from oneflow.functional.random_state import manual_seed
from oneflow.optim import LAMB, SGD, Adam, Optimizer, RAdam
from oneflow.tensor.tensor import Tensor, wrap

HERE = Placement("cpu", [0])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 6, 5)).astype(np.float32)
Y = RNG.integers(0, 4, size=(3, 6))


def make() -> nn.Sequential:
    manual_seed(1)
    first = nn.Linear(5, 6, bias=False)  # before a batch norm its gradient would be rounding noise
    return nn.Sequential(first, nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 4))


def globally(array: Any, sbp: Sbp) -> Tensor:
    moved: Tensor = wrap(array).to_global(HERE, sbp)
    return moved


def train(model: nn.Sequential, optimizer: Optimizer, place: Any) -> list[float]:
    losses = []
    for x, y in zip(X, Y, strict=True):
        loss = nn.CrossEntropyLoss()(model(place(x)), place(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.clip_grad()
        optimizer.step()
        losses.append(float(loss.numpy()))
    return losses


@pytest.mark.parametrize(
    "optimize",
    [
        lambda p: SGD([{"params": list(p), "clip_grad_max_norm": 0.5}], lr=0.1, momentum=0.9),
        lambda p: Adam(p, lr=0.05, weight_decay=0.1),
        lambda p: LAMB(p, lr=0.05, weight_decay=0.1),
        lambda p: LAMB(p, lr=0.05, weight_decay=0.1, adam_w_mode=False),
        lambda p: RAdam(p, lr=0.05, weight_decay=0.1, decoupled_weight_decay=True),
    ],
)
@pytest.mark.parametrize("weight_sbp", [BROADCAST, Split(0)])
def test_training_is_as_local(optimize: Any, weight_sbp: Sbp) -> None:
    local = make()
    expected = train(local, optimize(local.parameters()), wrap)
    model = make()
    first = model[0].weight
    model.to_global(HERE, BROADCAST)
    assert model[0].weight is first and first.is_global
    model[3].weight = nn.Parameter(model[3].weight.detach().to_global(sbp=weight_sbp))
    optimizer = optimize(model.parameters())
    losses = train(model, optimizer, lambda array: globally(array, Split(0)))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    last = model[3].weight
    states = optimizer.init_state(last)
    assert states.pop("step") == len(X)
    for state in states.values():
        assert state.sbp == (weight_sbp,) and state.placement == HERE
    for name, value in local.state_dict().items():
        found = model.state_dict()[name].numpy()
        np.testing.assert_allclose(found, value.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_states_go_between_local_and_global() -> None:
    model = make().to_global(HERE, BROADCAST)
    local = make()
    local[0].weight.data[...] = 7.0
    model.load_state_dict(local.state_dict())
    assert model[0].weight.is_global and (model[0].weight.numpy() == 7.0).all()
    model.load_state_dict({k: v.numpy() * 2 for k, v in local.state_dict().items()})
    assert (model[0].weight.numpy() == 14.0).all()
    local.load_state_dict(model.state_dict())
    assert local[0].weight.is_local and (local[0].weight.numpy() == 14.0).all()
    assert model.to_local()[0].weight.is_local
