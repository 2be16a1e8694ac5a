"""A graph follows its modules when their tensors are given other memory, or are replaced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(3)
        self.fc, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.register_buffer("shift", flow.zeros(3))

    def forward(self, x: Any) -> Any:
        return self.norm(self.fc(x)) + self.shift


def assigned(m: Any) -> None:
    state = {name: x * 0.5 + 0.25 for name, x in m.state_dict().items() if "batches" not in name}
    m.load_state_dict(state, assign=True, strict=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "data of a parameter": lambda m: setattr(m.fc.weight, "data", flow.ones(3, 4)),
    "data of a buffer": lambda m: setattr(m.norm.running_mean, "data", flow.ones(3)),
    "another parameter": lambda m: setattr(m.fc, "bias", nn.Parameter(flow.ones(3))),
    "another buffer": lambda m: setattr(m, "shift", flow.ones(3)),
    "no parameter": lambda m: setattr(m.fc, "bias", None),
    "another module": lambda m: setattr(m, "fc", nn.Linear(4, 3)),
    "load_state_dict": assigned,
    "_apply": lambda m: m._apply(lambda x: x * 2 if x.is_floating_point() else x),
    "double and back": lambda m: m.double().float(),
    "register_buffer": lambda m: m.register_buffer("shift", flow.full((3,), 2.0)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("amp", [False, True])
def test_a_graph_reads_the_new_memory(way: str, amp: bool) -> None:
    class Predict(nn.Graph):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model
            self.config.enable_amp(amp, dtype=flow.bfloat16)

        def build(self, x: Any) -> Any:
            return self.model(x)

    model = Model().eval()
    graph = Predict(model)
    x = flow.tensor(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))
    before = graph(x)
    WAYS[way](model)
    tolerance = 0.05 if amp else 1e-5
    np.testing.assert_allclose(graph(x).numpy(), model(x).detach().numpy(), tolerance, tolerance)
    if way != "double and back":
        assert np.abs(before.numpy() - graph(x).numpy()).max() > 0.01
    with flow.no_grad():
        model.fc.weight.mul_(3.0)  # and what is written to the new memory afterwards
    np.testing.assert_allclose(graph(x).numpy(), model(x).detach().numpy(), tolerance, tolerance)


@pytest.mark.parametrize("way", ["data of a parameter", "double and back", "data of a buffer"])
def test_training_goes_on_with_the_new_memory(way: str) -> None:
    """Eager training does the same; the states of the optimizer stay."""
    models = [Model(), Model()]
    optimizers = [flow.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]

    class Train(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = models[0]
            self.add_optimizer(optimizers[0])

        def build(self, x: Any) -> Any:
            loss = self.model(x).square().mean()
            loss.backward()
            return loss

    graph = Train()
    x = flow.tensor(np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32))

    def eager() -> Any:
        optimizers[1].zero_grad()
        loss = models[1](x).square().mean()
        loss.backward()
        optimizers[1].step()
        return loss

    for step in range(6):
        if step == 3:
            for model in models:
                WAYS[way](model)
        np.testing.assert_allclose(graph(x).item(), eager().item(), rtol=1e-5)
    for ours, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), 1e-4, 1e-6)


def test_weights_may_be_swapped_in_and_out() -> None:
    class Predict(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def build(self, x: Any) -> Any:
            return self.model(x)

    model = nn.Linear(4, 2)
    average = copy.deepcopy(model)
    average.weight.data.fill_(0.5)
    graph, x = Predict(), flow.ones(1, 4)
    own = model.weight.data
    for _ in range(3):
        for data in (average.weight.data, own):
            model.weight.data = data
            np.testing.assert_allclose(graph(x).numpy(), model(x).detach().numpy(), rtol=1e-6)
