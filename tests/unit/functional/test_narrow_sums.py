"""Means, norms and running sums of 16-bit numbers are added up in float32, as PyTorch's are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda lib, x: x.mean(),
    "mean of a dim": lambda lib, x: x.mean(0),
    "std": lambda lib, x: (x[:2000] * 3).std(),
    "var of a dim": lambda lib, x: lib.cat([x, x * 2], 1).var(1),
    "norm": lambda lib, x: x.norm(),
    "norm of order 3": lambda lib, x: (x / 100).norm(3),
    "mse": lambda lib, x: lib.nn.functional.mse_loss(x, x * 0),
    "l1": lambda lib, x: lib.nn.functional.l1_loss(x, x * 0),
    "smooth l1": lambda lib, x: lib.nn.functional.smooth_l1_loss(x, x * 0),
    "cosine": lambda lib, x: lib.nn.functional.cosine_similarity(x, x, dim=0),
    "running sum": lambda lib, x: (x / 100).cumsum(0)[-1],
    "running product": lambda lib, x: (x / 100 * 1.001).cumprod(0)[-1],
    "average pool": lambda lib, x: lib.nn.functional.avg_pool2d((x * 600).reshape(1, 1, 50, 80), 2),
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_sums_larger_than_the_dtype_holds(name: str, dtype: str) -> None:
    found = []
    for lib in (flow, torch):
        x = (lib.ones(4000, 1) * 100).to(getattr(lib, dtype))
        made = CASES[name](lib, x)
        assert str(made.dtype).endswith("." + dtype)
        found.append(np.asarray(made.float().numpy()))
    np.testing.assert_allclose(*found, rtol=0.01)


def test_variance_of_complex_numbers_is_real() -> None:
    values = [[1 + 1j, 2 - 1j], [3j, 1 + 0j]]
    for of in (lambda x: x.var(), lambda x: x.std(0), lambda x: x.norm(), lambda x: x.norm(1)):
        ours, theirs = of(flow.tensor(values)), of(torch.tensor(values))
        assert str(ours.dtype).split(".")[1] == str(theirs.dtype).split(".")[1]
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6)


def test_a_label_that_is_no_class_is_refused() -> None:
    with pytest.raises(IndexError, match="Target 5 is out of bounds: labels are classes, 0 to 2"):
        flow.nn.functional.nll_loss(flow.ones(2, 3), flow.tensor([5, 0]))


def test_a_recurrent_layer_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="num_layers must be greater than zero"):
        flow.nn.LSTM(3, 4, num_layers=0)
