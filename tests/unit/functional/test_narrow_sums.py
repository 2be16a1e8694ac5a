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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mode", ["eager", "autocast", "graph"])
def test_the_gradient_of_a_bias_does_not_stop_growing(mode: str, dtype: str) -> None:
    kind, rows = getattr(flow, dtype), 5000
    layer = flow.nn.Linear(2, 3)
    flow.nn.init.zeros_(layer.bias)
    if mode == "eager":
        layer.to(kind)(flow.ones(rows, 2, dtype=kind)).sum().backward()
        found = layer.bias.grad
    elif mode == "autocast":
        with flow.autocast("cpu", dtype=kind):
            out = layer(flow.ones(rows, 2))
        out.float().sum().backward()
        found = layer.bias.grad
    else:

        class Train(flow.nn.Graph):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer
                self.add_optimizer(flow.optim.SGD(layer.parameters(), lr=1.0))
                self.config.enable_amp(True, dtype=kind)

            def build(self, x: Any) -> Any:
                loss = self.layer(x).float().sum()
                loss.backward()
                return loss

        Train()(flow.ones(rows, 2))
        found = -layer.bias
    np.testing.assert_allclose(found.float().detach().numpy(), rows, rtol=0.01)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5000,), (56, 56), (300, 300), (20, 20, 20)])
def test_adaptive_averages_of_equal_numbers_are_that_number(
    shape: tuple[int, ...], dtype: str
) -> None:
    x = flow.full((1, 1, *shape), 3.0, dtype=getattr(flow, dtype))
    pool = getattr(flow.nn.functional, f"adaptive_avg_pool{len(shape)}d")
    assert float(pool(x, 1)) == 3.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("value", [1.0, 1.7])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": 0.0}])
def test_attention_to_equal_values_is_that_value(
    options: dict[str, Any], value: float, dtype: str
) -> None:
    x = flow.full((2, 300, 32), value, dtype=getattr(flow, dtype))
    mask = {k: flow.zeros(300, 300, dtype=x.dtype) for k in options if k == "attn_mask"}
    v = x.clone().requires_grad_()
    y = flow.nn.functional.scaled_dot_product_attention(x, x, v, **(options | mask))
    assert y.dtype == x.dtype and bool((y == x).all())
    y.sum().backward()
    want = (1.0 / np.arange(1, 301))[::-1].cumsum()[::-1] if options.get("is_causal") else 1.0
    got = v.grad.float().numpy()[0, :, 0]
    np.testing.assert_allclose(got, np.broadcast_to(want, 300), rtol=0.005)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
def test_gradients_of_small_probabilities_in_float16(target: float, reduction: str) -> None:
    """Neither p (1 - p) nor d (p - t) of p = 1e-6 is a float16."""
    p = np.concatenate([np.geomspace(6e-8, 0.5, 400), np.linspace(0.5, 0.999, 100)])
    x = flow.tensor(p, dtype=flow.float16).requires_grad_()
    y = flow.full_like(x, target).detach()
    flow.nn.functional.binary_cross_entropy(x, y, reduction=reduction).backward()
    wide = x.detach().numpy().astype(np.float64)
    want = (wide - float(y[0])) / (wide * (1 - wide)) / (500 if reduction == "mean" else 1)
    seen = np.abs(want) < 6e4
    np.testing.assert_allclose(x.grad.numpy()[seen], want[seen], rtol=2e-3, atol=1e-7)
