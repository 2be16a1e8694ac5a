"""L-BFGS beside PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Sbp, Split
from oneflow.tensor.shortcuts import plain_ways
from tests.unit.optim.test_as_torch import to_ours, to_torch
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


def resumed(first: Any, second: Any, options: dict[str, Any], sbp: Sbp | None) -> list[Any]:
    """Parameters of the library `second` after 2 steps of `first`, a state dict and 2 more steps
    with the options that it holds; sbp: of the parameters in oneflow.
    """
    rng = np.random.default_rng(3)
    values, weights = rng.random((2, 3, 4)), rng.random((2, 3, 4)) + 0.1
    state: Any = None
    for library in (first, second):
        placed = sbp is not None and library is flow

        def of(x: Any, m: Any = library, placed: bool = placed) -> Any:
            made = m.tensor(np.array(x), dtype=m.float64)
            return made.to_global(Placement("cpu", [0]), sbp) if placed else made

        params = [of(x).requires_grad_() for x in values]
        factors = [of(w) for w in weights]
        optimizer = library.optim.LBFGS(params, **(options if state is None else {}))
        if state is not None:
            optimizer.load_state_dict(to_torch(state) if library is torch else to_ours(state))

        def closure(
            optimizer: Any = optimizer, params: list[Any] = params, factors: list[Any] = factors
        ) -> Any:
            optimizer.zero_grad()
            loss = sum((p * p * w).sum() for p, w in zip(params, factors, strict=True))
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        values = [p.detach().numpy().copy() for p in params]
        state = optimizer.state_dict()
    return [values, {k: type(v) for k, v in state["state"][0].items()}]


@pytest.mark.parametrize("sbp", [None, BROADCAST, Split(0)])
@pytest.mark.parametrize("options", OPTIONS[:4])
def test_state_dicts_hold_the_history(options: dict[str, Any], sbp: Sbp | None) -> None:
    wanted, _ = resumed(torch, torch, options, sbp)
    for first, second in ((flow, flow), (torch, flow), (flow, torch)):
        found, kept = resumed(first, second, options, sbp)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)
        assert {"n_iter", "func_evals", "old_dirs", "old_stps", "H_diag"} <= set(kept)


def test_a_saved_history_is_read_from_a_file(tmp_path: Path) -> None:
    x = flow.tensor([1.0, 2.0, 3.0], dtype=flow.float64, requires_grad=True)
    weights = flow.arange(1.0, 4.0)
    optimizer, step = quadratic(x, weights, lr=0.1, max_iter=3)
    step()
    flow.save(optimizer.state_dict(), tmp_path / "optimizer")
    y = x.detach().clone().requires_grad_()
    other, again = quadratic(y, weights)
    other.load_state_dict(flow.load(tmp_path / "optimizer"))
    step(), again()
    np.testing.assert_allclose(y.detach().numpy(), x.detach().numpy(), rtol=1e-12)


def quadratic(x: Any, weights: Any, **options: Any) -> Any:
    """An optimizer of the weighted sum of squares of x, and a step of it."""
    optimizer = flow.optim.LBFGS([x], **options)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = (x * x * weights).sum()
        loss.backward()
        return loss

    return optimizer, lambda: optimizer.step(closure)


def test_a_long_history_costs_no_more_ops_than_a_short_one() -> None:
    counts = []
    for size in (3, 40):
        x = flow.ones(6, dtype=flow.float64, requires_grad=True)
        _, step = quadratic(x, flow.arange(1.0, 7.0), lr=1e-3, max_iter=10, history_size=size)
        with plain_ways():  # a call with a number that comes back by chance would be learned
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
        _, step = quadratic(x, lay(flow.arange(1.0, 7.0)), lr=0.05, max_iter=15)
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
