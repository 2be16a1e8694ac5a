"""Clipping of gradients and parameters as one vector, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from oneflow.core.errors import NonFiniteError, ShapeError
from oneflow.nn.parameter import Parameter
from oneflow.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from oneflow.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from oneflow.tensor.tensor import wrap

SHAPES = [(3, 4), (5,), ()]
GRADS = [np.random.default_rng(0).normal(size=shape) for shape in SHAPES]
FLAT = np.concatenate([g.ravel() for g in GRADS])


def parameters(dtype: Any = np.float64) -> list[Parameter]:
    made = [Parameter(wrap(np.zeros(shape, dtype))) for shape in SHAPES]
    for parameter, grad in zip(made, GRADS, strict=True):
        parameter.grad = wrap(grad.astype(dtype))
    return [*made, Parameter(wrap(np.zeros(2)))]  # the last has no gradient


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, math.inf])
@pytest.mark.parametrize("share", [0.5, 2.0])
def test_norm_is_returned_and_limited(p: float, share: float) -> None:
    norm = np.linalg.norm(FLAT, p)
    owners = parameters()
    total = clip_grad_norm_(owners, share * norm, p)
    assert total.shape == () and total.item() == pytest.approx(norm)
    factor = min(1.0, share * norm / (norm + 1e-6))
    for owner, grad in zip(owners, GRADS, strict=False):
        np.testing.assert_allclose(owner.grad.numpy(), grad * factor, rtol=1e-12)


def test_half_precision_sums_do_not_overflow() -> None:
    owner = Parameter(wrap(np.zeros(4, np.float16)))
    owner.grad = wrap(np.full(4, 300.0, np.float16))  # the square is over 65504
    assert clip_grad_norm_(owner, 300.0).item() == pytest.approx(600.0)
    np.testing.assert_allclose(owner.grad.numpy(), 150.0, rtol=1e-3)


def test_no_gradients_have_norm_0() -> None:
    assert clip_grad_norm_([Parameter(wrap(np.zeros(2)))], 1.0).item() == 0.0


def test_a_norm_that_is_not_finite_is_an_error_if_asked_for() -> None:
    owner = Parameter(wrap(np.zeros(2)))
    owner.grad = wrap(np.array([np.inf, 1.0]))
    with pytest.raises(NonFiniteError, match="non-finite"):
        clip_grad_norm_([owner], 1.0, error_if_nonfinite=True)


def test_values_are_limited() -> None:
    owners = parameters(np.float32)
    clip_grad_value_(owners, 0.5)
    for owner, grad in zip(owners, GRADS, strict=False):
        np.testing.assert_array_equal(owner.grad.numpy(), grad.astype(np.float32).clip(-0.5, 0.5))


def test_norm_is_that_of_torch() -> None:
    import torch

    theirs = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in SHAPES]
    for parameter, grad in zip(theirs, GRADS, strict=True):
        parameter.grad = torch.tensor(grad)
    torch.nn.utils.clip_grad_norm_(theirs, 1.5)
    owners = parameters()
    clip_grad_norm_(owners, 1.5)
    for owner, other in zip(owners, theirs, strict=False):
        np.testing.assert_allclose(owner.grad.numpy(), other.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_norms_and_scaling_apart_are_those_of_torch(p: float) -> None:
    import torch

    owners, others = parameters(), [torch.zeros(s, dtype=torch.double) for s in SHAPES]
    for other, grad in zip(others, GRADS, strict=True):
        other.grad = torch.tensor(grad)
    total = get_total_norm([o.grad for o in owners if o.grad is not None], p, foreach=True)
    wanted = torch.nn.utils.get_total_norm([o.grad for o in others], p)
    assert total.item() == pytest.approx(wanted.item())
    clip_grads_with_norm_(owners, 0.5, total * 2)
    torch.nn.utils.clip_grads_with_norm_(others, 0.5, wanted * 2)
    for owner, other in zip(owners, others, strict=False):
        np.testing.assert_allclose(owner.grad.numpy(), other.grad.numpy(), rtol=1e-9)
    with pytest.raises(RuntimeError, match="non-finite"):
        get_total_norm([wrap(np.array([np.nan]))], error_if_nonfinite=True)
    assert get_total_norm([]).item() == 0.0


def test_the_deprecated_name_warns() -> None:
    with pytest.warns(FutureWarning, match="clip_grad_norm_"):
        assert clip_grad_norm(parameters(), 1.0).item() == pytest.approx(np.linalg.norm(FLAT))


def test_parameters_go_to_a_vector_and_back() -> None:
    owners = [Parameter(wrap(grad)) for grad in GRADS]
    vector = parameters_to_vector(owners)
    np.testing.assert_array_equal(vector.detach().numpy(), FLAT)
    vector_to_parameters(wrap(np.arange(18.0)), owners)
    np.testing.assert_array_equal(
        np.concatenate([o.numpy().ravel() for o in owners]), np.arange(18.0)
    )
    with pytest.raises(ShapeError, match="18 elements"):
        vector_to_parameters(wrap(np.zeros(17)), owners)
