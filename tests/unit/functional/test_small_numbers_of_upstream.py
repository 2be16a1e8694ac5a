"""Values that upstream and PyTorch define, one by one: default dtypes, limits, roots, zeros."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow


def test_legacy_tensors_and_complex_numbers_follow_the_default_dtype() -> None:
    before = flow.get_default_dtype()
    try:
        flow.set_default_dtype(flow.float64)
        assert flow.Tensor([1.0]).dtype is flow.Tensor((2, 3)).dtype is flow.float64
        assert flow.tensor(1 + 2j).dtype is flow.complex128
    finally:
        flow.set_default_dtype(before)
    assert flow.tensor(1 + 2j).dtype is flow.complex64


def test_the_resolution_of_a_dtype_is_a_decimal_number() -> None:
    found = [flow.finfo(getattr(flow, d)).resolution for d in ("float32", "float16", "bfloat16")]
    assert found == [1e-06, 1e-03, 1e-02]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["rsqrt", "sigmoid", "tanh", "exp", "erf", "erfc", "log1p"])
def test_half_floats_are_rounded_once_whatever_the_size(name: str, dtype: str) -> None:
    kind = getattr(flow, dtype)
    x = flow.tensor(np.random.default_rng(0).random(4096, np.float32) + 0.01).to(kind)
    f = getattr(flow, name)
    exact = f(x.double()).to(kind)
    steps = (f(x) != exact).float().mean().item()
    assert steps <= (0.0 if name == "rsqrt" else 0.01)
    assert (f(x[:8]) == f(x[:40])[:8]).all()


def test_a_float64_row_and_a_float32_weight_have_a_norm() -> None:
    x = flow.ones(2, 3, dtype=flow.float64)
    assert flow.nn.functional.rms_norm(x, [3], flow.ones(3)).dtype is flow.float64


def test_symmetric_unsigned_groups_have_their_zero_in_the_middle() -> None:
    q = flow.tensor(np.array([[0, 127, 254, 128]], np.uint8))
    found = flow._C.groupwise_dequantize(
        q, flow.tensor([[0.5]]), num_bits=8, symmetric=True, group_dim=1, group_size=4
    )
    assert found.tolist() == [[-63.5, 0.0, 63.5, 0.5]]


def test_sums_like_a_tensor_take_an_axis() -> None:
    y = flow._C.reduce_sum_like(flow.ones(1, 5, 6, 1, 6), flow.ones(1, 5, 6), axis=(3, 4))
    assert tuple(y.shape) == (1, 5, 6)
    assert (y == 6).all()


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["hardtanh", "leaky_relu", "softplus", "hardshrink", "elu"])
def test_numpy_scalars_are_numbers_in_gradients(name: str, kind: type) -> None:
    def grad(number: float) -> list[float]:
        x = flow.tensor([-1.0, 2.0], requires_grad=True)
        bounds = (-number, number) if name == "hardtanh" else (number,)
        getattr(flow.nn.functional, name)(x, *bounds).sum().backward()
        return x.grad.tolist()

    assert grad(kind(0.25)) == grad(0.25)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "prelu", "relu6", "hardtanh"])
def test_the_second_derivative_of_piecewise_linear_ops_is_zero(name: str) -> None:
    x = flow.tensor([-1.0, 2.0, 0.5], requires_grad=True)
    more = (flow.tensor([0.25]),) if name == "prelu" else ()
    y = getattr(flow.nn.functional, name)(x, *more)
    d_y = flow.ones_like(y).requires_grad_()
    (d_x,) = flow.autograd.grad(y, x, d_y, create_graph=True)
    assert flow.autograd.grad(d_x, [x, d_y], flow.ones_like(d_x))[0].tolist() == [0.0] * 3
