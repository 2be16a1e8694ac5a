"""L-BFGS beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

OPTIONS = [
    {"lr": 0.1, "max_iter": 6},
    {"lr": 1.0, "max_iter": 8, "line_search_fn": "strong_wolfe"},
    {"lr": 0.5, "max_iter": 5, "history_size": 2},
    {"lr": 0.05, "max_iter": 20, "max_eval": 7, "line_search_fn": "strong_wolfe"},
]


def path(m: Any, options: dict[str, Any], steps: int) -> list[Any]:
    """Losses and parameters of some steps on Rosenbrock's function and a quadratic beside it."""
    x = m.tensor([-1.2, 1.0], dtype=m.float64, requires_grad=True)
    y = m.tensor([[2.0], [3.0]], dtype=m.float64, requires_grad=True)
    optimizer = m.optim.LBFGS([x, y], **options)
    found = []

    def closure() -> Any:
        optimizer.zero_grad()
        a, b = x[0], x[1]
        loss = (1 - a) ** 2 + 100 * (b - a * a) ** 2 + (y * y).sum() * 0.5
        loss.backward()
        return loss

    for _ in range(steps):
        found.append(optimizer.step(closure).item())
    return [np.array(found), x.detach().numpy(), y.detach().numpy()]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_path_is_that_of_pytorch(options: dict[str, Any]) -> None:
    for a, b in zip(path(flow, options, 3), path(torch, options, 3), strict=True):
        np.testing.assert_allclose(a, b, 1e-6, 1e-9)


def test_it_finds_the_minimum() -> None:
    _, x, y = path(flow, {"max_iter": 30, "line_search_fn": "strong_wolfe"}, 3)
    np.testing.assert_allclose(x, [1, 1], 1e-4)
    np.testing.assert_allclose(y, 0, atol=1e-4)


def test_mistakes() -> None:
    p = flow.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="closure"):
        flow.optim.LBFGS([p]).step()
    with pytest.raises(RuntimeError, match="strong_wolfe"):
        flow.optim.LBFGS([p], line_search_fn="other")
    with pytest.raises(ValueError, match="parameter groups"):
        flow.optim.LBFGS([{"params": [p]}, {"params": [flow.ones(1)]}])


@pytest.mark.parametrize("name", ["SGD", "AdamW", "LAMB"])
def test_optimizers_of_nothing_do_nothing(name: str) -> None:
    optimizer = getattr(flow.optim, name)([], lr=0.1)
    optimizer.step()
    optimizer.zero_grad()
    assert optimizer.param_groups[0]["params"] == []
