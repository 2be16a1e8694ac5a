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


class _Heads(nn.Module):
    """Attention with two heads, of which queries, keys and values are one product."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        q, k, v = (p.reshape(3, 5, 2, 4).permute(0, 2, 1, 3) for p in self.qkv(x).split(8, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.permute(0, 2, 1, 3).reshape(3, 5, 8))


def _train_heads(device: str) -> tuple[list[Any], list[str]]:
    """Weights after three steps, and the ops that ran."""
    flow.manual_seed(3)
    model = _Heads().to(device)
    optimizer = flow.optim.SGD(model.parameters(), lr=0.01)

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(optimizer)

        def build(self, x: flow.Tensor) -> flow.Tensor:
            loss = self.model(x).square().sum()
            loss.backward()
            return loss

    step, rng = Step(), np.random.default_rng(1)
    for _ in range(3):
        step(flow.tensor(rng.standard_normal((3, 5, 8)), dtype=flow.float32, device=device))
    assert step._spec.plans.now is not None
    segments = step._spec.plans.now.job.bound.memory.segments.values()
    ops = [b.node.op for s in segments for b in s.nodes if b.node.outputs[0].id not in s.views]
    return [p.numpy() for p in model.parameters()], ops


def test_gradients_of_heads_are_copied_once() -> None:
    """The gradients of queries, keys and values become one tensor without a copy of each."""
    on_gpu, ops = _train_heads("cuda")
    on_cpu, _ = _train_heads("cpu")
    assert ops.count("concat") == 1
    assert ops.count("reshape") == 1  # of the result, on the way there
    for one, other in zip(on_gpu, on_cpu, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


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
