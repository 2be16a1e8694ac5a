"""L-BFGS beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Sbp, Split
from tests.unit.test_call_counts import calls_of

OPTIONS = [
    {"lr": 0.1, "max_iter": 6},
    {"lr": 1.0, "max_iter": 8, "line_search_fn": "strong_wolfe"},
    {"lr": 0.5, "max_iter": 5, "history_size": 2},
    {"lr": 0.05, "max_iter": 20, "max_eval": 7, "line_search_fn": "strong_wolfe"},
    {"lr": 0.02, "max_iter": 30},  # as many pairs as updates, far more than there are numbers
    {"lr": 0.02, "max_iter": 30, "history_size": 20},
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


def quadratic(x: Any, weights: Any, **options: Any) -> Any:
    """One step of an optimizer of the weighted sum of squares of x."""
    optimizer = flow.optim.LBFGS([x], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (x * x * weights).sum()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def test_a_long_history_costs_no_more_ops_than_a_short_one() -> None:
    counts = []
    for size in (3, 40):
        x = flow.ones(6, dtype=flow.float64, requires_grad=True)
        step = quadratic(x, flow.arange(1.0, 7.0), lr=1e-3, max_iter=10, history_size=size)
        counts.append(calls_of(step))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("sbp", [BROADCAST, Split(0)])
def test_global_parameters_go_the_same_path(sbp: Sbp) -> None:
    found = []
    lays: list[Callable[[Any], Any]] = [
        lambda t: t,
        lambda t: t.to_global(Placement("cpu", [0]), sbp),
    ]
    for lay in lays:
        x = flow.nn.Parameter(lay(flow.ones(6)))
        step = quadratic(x, lay(flow.arange(1.0, 7.0)), lr=0.05, max_iter=15)
        step()
        step()
        found.append(x.detach().numpy())
    np.testing.assert_array_equal(found[0], found[1])


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
