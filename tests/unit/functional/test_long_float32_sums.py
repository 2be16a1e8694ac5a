"""Sums of ten million float32 numbers, over inner and outer dims, beside float64.

All equal, which is the worst for a chain of additions: each rounds to the same side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

COUNT = 10**7
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda lib, x: x.sum(),
    "sum over rows": lambda lib, x: x.reshape(-1, 2).sum(0),
    "sum over the middle": lambda lib, x: x.reshape(2, -1, 2).sum(1),
    "sum of channels": lambda lib, x: x.reshape(2, 1, -1).sum((0, 2)),
    "mean": lambda lib, x: x.mean(),
    "mean over rows": lambda lib, x: x.reshape(-1, 2).mean(0),
    "norm over columns": lambda lib, x: x.reshape(2, -1).norm(dim=1),
    "logsumexp over rows": lambda lib, x: x.reshape(-1, 2).logsumexp(0),
    "running sum": lambda lib, x: x.cumsum(0)[-1],
    "running sum over rows": lambda lib, x: x.reshape(-1, 2).cumsum(0)[-1],
    "running product": lambda lib, x: (x * 0 + (1 + 2.0**-23)).cumprod(0)[-1],
    "running logsumexp": lambda lib, x: lib.logcumsumexp(x[:100_000], 0)[-1],
    "std": lambda lib, x: lib.cat([x, -x]).std(),
    "variance over rows": lambda lib, x: lib.cat([x, -x]).reshape(-1, 2).var(0),
    "softmax": lambda lib, x: lib.softmax(x, 0)[:1],
    "layer norm": lambda lib, x: lib.nn.functional.layer_norm(
        lib.cat([x[:500_000], x[:500_000] * 3]), (1_000_000,)
    )[:1],
}


@pytest.mark.parametrize("name", CASES)
def test_long_sums_do_not_drift(name: str) -> None:
    x = np.full(COUNT, 0.1, np.float32)
    got = CASES[name](flow, flow.tensor(x))
    want = CASES[name](torch, torch.tensor(x).double())
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=2e-5)


def test_the_gradient_of_a_bias_does_not_drift() -> None:
    x = flow.full((COUNT // 4, 1), 0.1)
    bias = flow.zeros(2, requires_grad=True)
    flow.nn.functional.linear(x, flow.zeros(2, 1), bias).backward(x.expand(COUNT // 4, 2))
    np.testing.assert_allclose(bias.grad.numpy(), COUNT // 4 * float(np.float32(0.1)), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_deviations_and_means_at_the_ends_of_a_dtype(dtype: str) -> None:
    kind = getattr(flow, dtype)
    large = flow.finfo(kind).max * 0.9
    spread = 1e30 if dtype != "float16" else 300.0
    mean = flow.tensor([large, large, -large], dtype=flow.float64).to(kind)[:2]
    if dtype == "float16":  # the sum is a float32
        assert float(mean.mean()) == pytest.approx(float(mean[0]), rel=0.01)
    found = flow.tensor([spread, 3 * spread], dtype=flow.float64).to(kind).std()
    assert float(found) == pytest.approx(spread * 2**0.5, rel=0.02)
