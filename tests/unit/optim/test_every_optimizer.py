"""Every public optimizer, as the public table lists them, over steps on a quadratic: beside
PyTorch's in float64, or the formula of an optimizer that PyTorch has not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.api.training import ROWS
from oneflow.optim import Optimizer
from tests.parity.values import to_flow

STEPS = 5
RNG = np.random.default_rng(7)
STARTS = [RNG.normal(size=(3, 4)), RNG.normal(size=(4, 2))]
WEIGHTS = [RNG.uniform(0.2, 1.0, size=x.shape) for x in STARTS]
Array = np.ndarray[Any, Any]

# Options of both libraries, and those that choose PyTorch's arithmetic where OneFlow's is another.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ASGD": ({"lr": 0.1, "lambd": 0.1, "t0": 2, "weight_decay": 0.1}, {}),
    "Adadelta": ({"lr": 0.5, "eps": 1e-3, "weight_decay": 0.1}, {}),
    "Adafactor": ({"lr": 0.1, "weight_decay": 0.1}, {}),
    "Adagrad": ({"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1}, {}),
    "Adam": ({"lr": 0.1, "amsgrad": True, "weight_decay": 0.1}, {}),
    "AdamW": ({"lr": 0.1, "weight_decay": 0.1}, {}),
    "Adamax": ({"lr": 0.1, "weight_decay": 0.1}, {}),
    "LAMB": ({"lr": 0.1, "weight_decay": 0.1}, {}),
    "LBFGS": ({"lr": 0.3, "max_iter": 3}, {}),
    "Muon": ({"lr": 0.1, "weight_decay": 0.1}, {}),
    "NAdam": ({"lr": 0.1, "weight_decay": 0.1}, {}),
    "RAdam": ({"lr": 0.1, "betas": (0.9, 0.8), "weight_decay": 0.1}, {}),
    "RMSprop": ({"lr": 0.01, "momentum": 0.5, "centered": True}, {"eps_in_root": False}),
    "Rprop": ({"lr": 0.1}, {}),
    "SGD": ({"lr": 0.1, "momentum": 0.9, "dampening": 0.4}, {"dampens_first": False}),
}
NAMES = sorted(
    row.names[0]
    for row in ROWS
    if isinstance(found := getattr(flow.optim, row.names[0], None), type)
    and issubclass(found, Optimizer)
    and found is not Optimizer
)


def lamb(w: Array, weight: Array) -> Array:
    """You et al., Large Batch Optimization for Deep Learning, 2020; the norm of the step without
    its weight decay, as in OneFlow.
    """
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, STEPS + 1):
        g = 2 * weight * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        w = w - 0.1 * np.linalg.norm(w) / np.linalg.norm(step) * (step + 0.1 * w)
    return w


FORMULAS = {"LAMB": lamb}
"""Optimizers that PyTorch has not."""


def steps(make: Any, params: list[Any], weights: list[Any]) -> list[Any]:
    optimizer = make(params)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum((p * p * w).sum() for p, w in zip(params, weights, strict=True))
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)
    return [p.detach() for p in params]


def expected(name: str, starts: list[torch.Tensor], weights: list[torch.Tensor]) -> list[Array]:
    if name in FORMULAS:
        pairs = zip(starts, weights, strict=True)
        return [FORMULAS[name](s.numpy(), w.numpy()) for s, w in pairs]
    params = [s.clone().requires_grad_() for s in starts]
    make = getattr(torch.optim, name)
    return [p.numpy() for p in steps(lambda p: make(p, **OPTIONS[name][0]), params, weights)]


TOLERANCES = {torch.float64: 1e-7, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_steps_of_every_optimizer(name: str, dtype: torch.dtype) -> None:
    assert name in OPTIONS, f"{name} is public: add its options, and its formula if it is ours"
    starts, weights = ([torch.tensor(x).to(dtype) for x in xs] for xs in (STARTS, WEIGHTS))
    wanted = expected(name, [s.double() for s in starts], [w.double() for w in weights])
    options, choices = OPTIONS[name]
    params = [to_flow(s).requires_grad_() for s in starts]
    make = getattr(flow.optim, name)
    got = steps(lambda p: make(p, **options, **choices), params, to_flow(weights))
    for start, a, b in zip(starts, wanted, got, strict=True):
        assert np.abs(a - start.double().numpy()).max() > 0.04
        found = b.to(flow.float64).numpy()
        np.testing.assert_allclose(found, a, rtol=0, atol=TOLERANCES[dtype])
        assert b.dtype is to_flow(start).dtype
