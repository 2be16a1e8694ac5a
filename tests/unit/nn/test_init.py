"""First values: their statistics, their exact bounds, and that a layout does not change them."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST
from oneflow.core.tensor_type import TensorType
from oneflow.functional.initial import _inverse_normal
from oneflow.functional.random_state import Generator, manual_seed
from oneflow.nn import init
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import wrap, wrap_global

N = 200 * 300


def blank(*shape: int, dtype: Any = np.float32) -> Parameter:
    return Parameter(wrap(np.full(shape, np.nan, dtype)))


@pytest.mark.parametrize(
    ("fill", "std"),
    [
        (lambda x: init.uniform_(x, -1, 1), 2 / math.sqrt(12)),
        (lambda x: init.normal_(x, 0.0, 3.0), 3.0),
        (init.xavier_uniform_, math.sqrt(2 / 500)),
        (lambda x: init.xavier_normal_(x, gain=2.0), 2 * math.sqrt(2 / 500)),
        (init.kaiming_uniform_, math.sqrt(2 / 300)),
        (lambda x: init.kaiming_uniform_(x, a=math.sqrt(5)), math.sqrt(1 / 900)),
        (
            lambda x: init.kaiming_normal_(x, mode="fan_out", nonlinearity="relu"),
            math.sqrt(2 / 200),
        ),
    ],
)
def test_mean_and_deviation_are_as_documented(fill: Any, std: float) -> None:
    x = blank(200, 300)
    assert fill(x) is x and x.requires_grad and x.grad_fn is None
    values = x.numpy()
    # 5 standard errors of mean and deviation
    assert abs(values.mean()) < 5 * std / math.sqrt(N)
    assert abs(values.std() / std - 1) < 5 / math.sqrt(2 * N)


def test_uniform_stays_in_its_bounds_and_follows_the_seed() -> None:
    manual_seed(3)
    first = init.uniform_(blank(50), 2.0, 5.0).numpy()
    second = init.uniform_(blank(50), 2.0, 5.0).numpy()
    manual_seed(3)
    np.testing.assert_array_equal(init.uniform_(blank(50), 2.0, 5.0).numpy(), first)
    assert (first >= 2).all() and (first < 5).all() and (first != second).any()
    own = init.uniform_(blank(9), generator=Generator().manual_seed(1)).numpy()
    np.testing.assert_array_equal(
        init.uniform_(blank(9), generator=Generator().manual_seed(1)).numpy(), own
    )


def test_truncated_normal_has_the_moments_of_its_closed_form() -> None:
    values = init.trunc_normal_(blank(N, dtype=np.float64), 1.0, 2.0, 0.0, 2.0).numpy()
    assert values.min() >= 0.0 and values.max() <= 2.0
    density, mass = NormalDist().pdf(0.5), NormalDist().cdf(0.5) - NormalDist().cdf(-0.5)
    variance = 4 * (1 - 2 * 0.5 * density / mass)
    assert abs(values.mean() - 1.0) < 5 * math.sqrt(variance / N)
    assert abs(values.var() / variance - 1) < 5 * math.sqrt(2 / N)


def test_inverse_normal_is_that_of_the_standard_library() -> None:
    p = np.concatenate([np.linspace(1e-4, 1 - 1e-4, 301), [1e-10, 1e-7, 1 - 1e-7]])
    expected = [NormalDist().inv_cdf(v) for v in p]
    np.testing.assert_allclose(_inverse_normal(p), expected, rtol=1e-10, atol=1e-15)


def test_constants_and_structured_values() -> None:
    assert init.constant_(blank(2), 3.0).tolist() == [3.0, 3.0]
    assert init.ones_(blank(2)).tolist() == [1.0, 1.0] and init.zeros_(blank(1)).tolist() == [0.0]
    np.testing.assert_array_equal(init.eye_(blank(2, 3)).numpy(), np.eye(2, 3))
    kernel = init.dirac_(blank(4, 2, 3), groups=2).numpy()
    x = np.random.default_rng(0).normal(size=(4, 7))
    out = [
        sum(np.convolve(x[o // 2 * 2 + i], kernel[o, i], "same") for i in range(2))
        for o in range(4)
    ]
    np.testing.assert_allclose(out, x, rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 3)])
def test_orthogonal_rows_or_columns(shape: tuple[int, ...]) -> None:
    matrix = (
        init.orthogonal_(blank(*shape, dtype=np.float64), gain=2.0).numpy().reshape(shape[0], -1)
    )
    small = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    np.testing.assert_allclose(small, 4.0 * np.eye(len(small)), atol=1e-12)


def test_a_shard_holds_what_the_whole_would_hold_there() -> None:
    manual_seed(7)
    whole = init.normal_(blank(4, 6)).numpy()
    manual_seed(7)
    shard = np.zeros((4, 6), np.float32)
    placement = Placement("cpu", [0])
    held = wrap_global(shard, TensorType((4, 6), blank(1).dtype), placement, (BROADCAST,))
    init.normal_(held)
    np.testing.assert_array_equal(shard, whole)


def test_gains() -> None:
    gains = {
        "linear": 1,
        "conv2d": 1,
        "sigmoid": 1,
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "selu": 0.75,
    }
    for name, gain in gains.items():
        assert init.calculate_gain(name) == pytest.approx(gain)
    assert init.calculate_gain("leaky_relu", 0.5) == pytest.approx(math.sqrt(1.6))
    assert init._calculate_fan_in_and_fan_out(blank(4, 3, 2, 5)) == (30, 40)


def test_mistakes_are_named() -> None:
    for fill, x, message in (
        (init.eye_, blank(2), "2 dimensions"),
        (init.xavier_uniform_, blank(2), "fewer than 2 dimensions"),
        (init.orthogonal_, blank(2), "at least 2 dims"),
        (init.dirac_, blank(2, 2), "3 to 5 dims"),
        (lambda x: init.kaiming_normal_(x, mode="fan"), blank(2, 2), "Mode fan not supported"),
        (
            lambda x: init.kaiming_normal_(x, nonlinearity="f"),
            blank(2, 2),
            "Unsupported nonlinearity f",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            fill(x)
