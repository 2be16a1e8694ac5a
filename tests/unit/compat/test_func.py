"""Gradients as functions of functions, beside PyTorch's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.compat.torch.gradcheck import GradcheckError
from tests.parity.values import compare


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, too
        yield


def _x(m: Any, *shape: int) -> Any:
    values = np.random.default_rng(3).standard_normal(shape)
    return m.from_numpy(values)


def _quotient(x: Any, y: Any) -> Any:
    return (x.sin() * y / (1 + x**2)).sum()


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda m, f: f.grad(_quotient)(_x(m, 3), _x(m, 3) + 1),
    "both arguments": lambda m, f: f.grad(_quotient, argnums=(0, 1))(_x(m, 3), _x(m, 3) + 1),
    "gradient of a gradient": lambda m, f: f.grad(lambda x: (f.grad(_cubes)(x) ** 2).sum())(
        _x(m, 3)
    ),
    "of a dict": lambda m, f: f.grad(lambda d: (d["a"] * d["b"]).sum())(
        {"a": _x(m, 3), "b": _x(m, 3) * 2}
    ),
    "with more": lambda m, f: f.grad_and_value(lambda x: (_cubes(x), x * 2), has_aux=True)(
        _x(m, 3)
    ),
    "unused": lambda m, f: f.grad(lambda x, y: x.sum(), argnums=1)(_x(m, 2), _x(m, 3)),
    "vjp": lambda m, f: _pulled(f.vjp(lambda x, y: (x * y, x.exp()), _x(m, 3), _x(m, 3)), m),
    "jvp": lambda m, f: f.jvp(lambda x: x.sin() * x, (_x(m, 3),), (_x(m, 3) * 2,)),
    "jacrev": lambda m, f: f.jacrev(lambda x: x.sin() * x.sum())(_x(m, 2, 3)),
    "jacfwd": lambda m, f: f.jacfwd(lambda x: x**2 @ x)(_x(m, 3)),
    "two jacobians": lambda m, f: f.jacrev(lambda x, y: x * y.sum(), argnums=(0, 1))(
        _x(m, 2), _x(m, 3)
    ),
    "hessian": lambda m, f: f.hessian(lambda x: (x**3 * x.roll(1)).sum())(_x(m, 3)),
    "vmap": lambda m, f: f.vmap(lambda x, y: x @ y)(_x(m, 4, 3), _x(m, 4, 3)),
    "dims of batches": lambda m, f: f.vmap(lambda x, y: (x + y, x), (1, None), out_dims=(0, 1))(
        _x(m, 3, 4), _x(m, 3)
    ),
    "gradients of rows": lambda m, f: f.vmap(f.grad(_cubes))(_x(m, 4, 3)),
    "rows of a tree": lambda m, f: f.vmap(lambda d, s: d["a"] * s, in_dims=({"a": 0}, None))(
        {"a": _x(m, 4, 2)}, 2.0
    ),
}


def _cubes(x: Any) -> Any:
    return (x**3).sum()


def _pulled(made: tuple[Any, ...], m: Any) -> Any:
    outputs, pull = made
    return outputs, pull((_x(m, 3), _x(m, 3) + 1))


@pytest.mark.parametrize("name", CASES)
def test_function_of_a_function_equals_pytorchs(name: str) -> None:
    run = CASES[name]
    compare(run(torch, torch.func), run(flow, flow.func))


def test_modules_are_called_with_other_parameters() -> None:
    f = flow.func
    models = [flow.nn.Linear(3, 2) for _ in range(4)]
    weights, buffers = f.stack_module_state(models)
    x = flow.rand(5, 3)
    out = f.vmap(lambda w, b: f.functional_call(models[0], (w, b), (x,)))(weights, buffers)
    expected = np.stack([model(x).detach().numpy() for model in models])
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-6)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="one number"):
        flow.func.grad(lambda x: x)(flow.ones(2))
    with pytest.raises(ValueError, match=r"same size.*\[2, 3\]"):
        flow.func.vmap(lambda x, y: x)(flow.ones(2), flow.ones(3))


class _RightOnce(flow.autograd.Function):
    """x^3 with its gradient, whose own gradient is not the second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * (x * x.detach()) * grad


def test_checks_of_gradients_tell_right_from_wrong() -> None:
    check, again = flow.autograd.gradcheck, flow.autograd.gradgradcheck
    x = flow.tensor([0.5, -1.5], dtype=flow.float64, requires_grad=True)
    assert check(lambda t: t**3 * t.sum(), (x,)) and again(
        lambda t: t**3 * t.sum(), (x,), check_batched_grad=True
    )
    assert check(_RightOnce.apply, (x,), check_batched_grad=True)
    assert check(lambda t: (t.sin().cumsum(0), t.sum()), (x,), check_batched_grad=True)
    assert not again(_RightOnce.apply, (x,), raise_exception=False)
    with pytest.raises(GradcheckError, match="with respect to input 0"):
        again(_RightOnce.apply, (x,))
