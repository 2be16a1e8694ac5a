"""Eager code and graphs on cuda:0 train as on the CPU: same losses, weights, dropout masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()
STEPS, ROWS = 12, 32


def _data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(STEPS, ROWS, 1, 8, 8)).astype(np.float32)
    return images, rng.integers(0, 10, (STEPS, ROWS))


def _model(device: str, dropped: float) -> nn.Module:
    flow.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropped),
        nn.Linear(128, 32),
        nn.LayerNorm(32),
        nn.GELU(),
        nn.Linear(32, 10),
    ).to(device)


def _losses(device: str, is_graph: bool, dropped: float = 0.1) -> list[float]:
    model, criterion = _model(device, dropped), nn.CrossEntropyLoss()
    optimizer = flow.optim.Adam(model.parameters(), lr=1e-2)
    flow.manual_seed(11)

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.criterion = model, criterion
            self.add_optimizer(optimizer)

        def build(self, x: flow.Tensor, labels: flow.Tensor) -> flow.Tensor:
            loss = self.criterion(self.model(x), labels)
            loss.backward()
            return loss

    def eager(x: flow.Tensor, labels: flow.Tensor) -> flow.Tensor:
        loss = criterion(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step: Any = Step() if is_graph else eager
    return [
        float(step(flow.tensor(x, device=device), flow.tensor(y, device=device)).numpy())
        for x, y in zip(*_data(), strict=True)
    ]


@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "graph"])
def test_losses_are_those_of_the_cpu(is_graph: bool) -> None:
    on_gpu, on_cpu = _losses("cuda", is_graph), _losses("cpu", is_graph)
    np.testing.assert_allclose(on_gpu, on_cpu, rtol=2e-3)


def test_tensors_go_to_the_gpu_and_back() -> None:
    a = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    x = flow.tensor(a, device="cuda")
    assert x.is_cuda and x.device == flow.device("cuda")
    np.testing.assert_array_equal(x.cpu().numpy(), a)
    np.testing.assert_allclose((x @ x.T).sum(0).numpy(), (a @ a.T).sum(0), rtol=1e-5, atol=1e-5)
    x[1:3] = 0
    x.mul_(2)
    a[1:3] = 0
    np.testing.assert_array_equal(x.numpy(), a * 2)
    np.testing.assert_array_equal(x.T.reshape(3, 10).numpy(), (a * 2).T.reshape(3, 10))


def test_random_tensors_have_the_values_of_the_cpu() -> None:
    for make in (flow.randn, flow.rand):
        flow.manual_seed(5)
        on_gpu = make(100, 200, device="cuda").numpy()
        flow.manual_seed(5)
        np.testing.assert_array_equal(on_gpu, make(100, 200).numpy())


def test_devices_do_not_mix() -> None:
    with pytest.raises(flow.DeviceError if hasattr(flow, "DeviceError") else RuntimeError):
        _ = flow.ones(2, device="cuda") + flow.ones(2)
