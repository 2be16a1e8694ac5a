"""Functions inside `autocast` give the dtypes that PyTorch's give on a CPU, and its values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow

from .values import compare


def ramp(m: Any, *shape: int) -> Any:
    numbers = np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32)
    return m.tensor(numbers.reshape(shape)).to(m.bfloat16)


def classes(m: Any) -> Any:
    return m.tensor([0, 1, 2])


CALLS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {  # of (library, F, a, b)
    "mse_loss": lambda m, F, a, b: F.mse_loss(a, b),
    "l1_loss": lambda m, F, a, b: F.l1_loss(a, b),
    "smooth_l1_loss": lambda m, F, a, b: F.smooth_l1_loss(a, b),
    "huber_loss": lambda m, F, a, b: F.huber_loss(a, b),
    "kl_div": lambda m, F, a, b: F.kl_div(a, b, reduction="sum"),
    "binary_cross_entropy": lambda m, F, a, b: F.binary_cross_entropy(a, b),
    "cross_entropy": lambda m, F, a, b: F.cross_entropy(a, classes(m)),
    "margin_ranking_loss": lambda m, F, a, b: F.margin_ranking_loss(a[0], b[0], m.ones(4)),
    "triplet_margin_loss": lambda m, F, a, b: F.triplet_margin_loss(a, b, b * 0.5),
    "soft_margin_loss": lambda m, F, a, b: F.soft_margin_loss(a, m.ones(3, 4)),
    "hinge_embedding_loss": lambda m, F, a, b: F.hinge_embedding_loss(a, m.ones(3, 4)),
    "cosine_embedding_loss": lambda m, F, a, b: F.cosine_embedding_loss(a, b, m.ones(3)),
    "poisson_nll_loss": lambda m, F, a, b: F.poisson_nll_loss(a, b),
    "multi_margin_loss": lambda m, F, a, b: F.multi_margin_loss(a, classes(m)),
    "multilabel_margin_loss": lambda m, F, a, b: F.multilabel_margin_loss(
        a, m.tensor([[0, 1, -1, 2]] * 3)
    ),
    "quantile": lambda m, F, a, b: m.quantile(a, 0.3),
    "nanquantile": lambda m, F, a, b: m.nanquantile(a, 0.3),
    "trace": lambda m, F, a, b: a.trace(),
    "cdist": lambda m, F, a, b: m.cdist(a, b),
    "inverse": lambda m, F, a, b: m.inverse(a[:, :3] + m.eye(3)),
    "grid_sample": lambda m, F, a, b: F.grid_sample(
        a.reshape(1, 1, 3, 4), b[:2].reshape(1, 2, 2, 2), align_corners=False
    ),
    "avg_pool3d": lambda m, F, a, b: F.avg_pool3d(ramp(m, 1, 1, 4, 4, 4), 2),
    "adaptive_avg_pool3d": lambda m, F, a, b: F.adaptive_avg_pool3d(ramp(m, 1, 1, 4, 4, 4), 2),
    "fft": lambda m, F, a, b: m.fft.fft(a),
    "rfft": lambda m, F, a, b: m.fft.rfft(a),
    "softmax": lambda m, F, a, b: F.softmax(a, -1),
    "gelu": lambda m, F, a, b: F.gelu(a),
    "softplus": lambda m, F, a, b: F.softplus(a),
    "logsumexp": lambda m, F, a, b: m.logsumexp(a, 1),
}


@pytest.mark.parametrize("name", CALLS)
def test_autocast_runs_a_function_in_the_dtype_of_torch(name: str) -> None:
    results = []
    for m in (torch, flow):
        a, b = ramp(m, 3, 4), ramp(m, 3, 4) * 0.5
        with warnings.catch_warnings(), m.autocast("cpu", m.bfloat16):
            warnings.simplefilter("ignore")
            results.append(CALLS[name](m, m.nn.functional, a, b))
    compare(*results)


def test_a_function_outside_of_autocast_keeps_its_dtype() -> None:
    a = ramp(flow, 3, 4)
    assert flow.nn.functional.mse_loss(a, a).dtype == flow.bfloat16
    with flow.autocast("cuda"):
        assert flow.nn.functional.mse_loss(a, a).dtype == flow.bfloat16


def test_a_widened_loss_has_gradients_in_the_dtypes_of_its_inputs() -> None:
    x = ramp(flow, 3, 4).requires_grad_()
    with flow.autocast("cpu"):
        loss = flow.nn.functional.mse_loss(x, flow.zeros(3, 4))
    loss.backward()
    assert x.grad.dtype == flow.bfloat16
    wanted = 2 * x.detach().float().numpy() / 12
    np.testing.assert_allclose(x.grad.float().numpy(), wanted, rtol=8e-3)
