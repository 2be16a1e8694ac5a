"""Parts of a model computed again in the backward pass, beside PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import AutogradError


def gradients(m: Any, use_reentrant: bool | None) -> list[Any]:
    """Input and weight gradients of a part; None: without forgetting anything."""
    checkpoint = importlib.import_module(f"{m.__name__}.utils.checkpoint").checkpoint
    x = m.from_numpy(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)).requires_grad_()
    w = m.from_numpy(np.linspace(-2, 1, 9, dtype=np.float32).reshape(3, 3)).requires_grad_()

    def part(a: Any, scale: float) -> Any:
        return (a @ w).tanh() * a * scale, a.exp()

    if use_reentrant is None:
        out, other = part(x, 2.0)
    else:
        out, other = checkpoint(part, x, 2.0, use_reentrant=use_reentrant)
    ((out * out).sum() + other.sum()).backward()
    return [out.detach().numpy(), x.grad.numpy(), w.grad.numpy()]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradients_are_those_of_the_whole(use_reentrant: bool) -> None:
    wanted = gradients(torch, None)
    for a, b in zip(gradients(flow, use_reentrant), wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_the_same_numbers_are_drawn_again(use_reentrant: bool) -> None:
    checkpoint = flow.utils.checkpoint.checkpoint
    calls = []

    def part(a: Any) -> Any:
        calls.append(1)
        return flow.nn.functional.dropout(a * a, 0.5)

    x = flow.ones(64).requires_grad_()
    flow.manual_seed(3)
    out = checkpoint(part, x, use_reentrant=use_reentrant)
    after = flow.get_rng_state().tolist()
    out.sum().backward()
    assert flow.get_rng_state().tolist() == after and len(calls) == 2
    assert x.grad.tolist() == (2 * out).tolist()  # out is 2 where kept, d out is 4 there


def test_what_is_saved_is_forgotten_and_found_once() -> None:
    checkpoint = flow.utils.checkpoint.checkpoint
    calls = []

    def part(a: Any) -> Any:
        calls.append(1)
        return a.exp().sin().tanh()

    x = flow.ones(3).requires_grad_()
    out = checkpoint(part, x, use_reentrant=False)
    (grad,) = flow.autograd.grad(out.sum(), x)
    assert len(calls) == 2
    y = torch.ones(3, requires_grad=True)
    y.exp().sin().tanh().sum().backward()
    np.testing.assert_allclose(grad.numpy(), y.grad.numpy(), 1e-6)


def test_a_function_that_does_something_else_is_found_out() -> None:
    calls = []

    def part(a: Any) -> Any:
        calls.append(1)
        return a.exp().sin() if len(calls) == 1 else a + 1

    out = flow.utils.checkpoint.checkpoint(part, flow.ones(2).requires_grad_(), use_reentrant=False)
    with pytest.raises(AutogradError, match="the same each time"):
        out.sum().backward()


def test_layers_one_after_another() -> None:
    net = flow.nn.Sequential(*(flow.nn.Linear(3, 3) for _ in range(5)))
    x = flow.randn(2, 3).requires_grad_()
    net(x).sum().backward()
    wanted, x.grad = x.grad.numpy(), None
    flow.utils.checkpoint.checkpoint_sequential(net, 2, x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), wanted, 1e-6)
