"""Functions inside `autocast` give the dtypes that PyTorch's give on a CPU, and its values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal import autocast_test_lists as lists

import oneflow as flow
from oneflow.amp import autocasting

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


# ---- PyTorch's own lists of what its autocast does to functions ----------------------------------

DTYPES = {"fp16": "float16", "16": "bfloat16", "fp32": "float32"}
HERE = {"nll_loss2d": "nll_loss", "linalg_vecdot": "vecdot"}
UNNAMED = {
    *("_convolution", "convolution", "cudnn_convolution", "cudnn_convolution_transpose"),
    *("_addmm_activation", "_native_multi_head_attention", "grid_sampler", "rnn_relu_cell"),
    *("rnn_tanh_cell", "lstm_cell", "gru_cell", "linalg_multi_dot", "conv_tbc", "poisson_nll_loss"),
    *("reflection_pad1d", "einsum"),
}
"""Entries that have no public name here, or another signature; that of einsum lacks operands."""


def entries(device: str) -> list[Any]:
    """(name, list, arguments, keywords, dtype of the result) of PyTorch's tests of autocast."""
    kinds = lists.AutocastTestLists if device == "cuda" else lists.AutocastCPUTestLists
    found = []
    for kind, rows in vars(kinds("cpu")).items():
        for name, args, *rest in rows if not kind.startswith(("methods", "banned")) else ():
            if name not in UNNAMED and (name, device) != ("linear", "cuda"):  # a bias of two dims
                keywords = next((x for x in rest if isinstance(x, dict)), {})
                told = next((x for x in rest if isinstance(x, torch.dtype)), None)
                found.append((name, kind, args, keywords, told))
    return found


def ours(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(ours(v) for v in value)
    if not isinstance(value, torch.Tensor):
        return value
    whole = flow.tensor(value.float().numpy() if value.is_floating_point() else value.numpy())
    return whole.to(getattr(flow, str(value.dtype).removeprefix("torch.")))


@pytest.mark.parametrize(
    ("device", "entry"),
    [
        pytest.param(device, entry, id=f"{device}-{i}-{entry[0]}")
        for device in ("cpu", "cuda")
        for i, entry in enumerate(entries(device))
    ],
)
def test_autocast_does_to_functions_what_pytorchs_lists_say(
    device: str, entry: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors of the CPU are taken for those of a GPU where its lists are asked."""
    name, kind, args, keywords, told = entry
    monkeypatch.setattr(autocasting, "device_type", lambda _: device)
    name = HERE.get(name, name)
    homes = (flow.nn.functional, flow, flow.linalg)
    function = next(getattr(home, name) for home in homes if hasattr(home, name))
    kinds = {x.dtype for x in torch.utils._pytree.tree_leaves(args) if hasattr(x, "dtype")}
    wanted = DTYPES.get(kind.rpartition("_")[2])
    if wanted is None:
        wide = told or (torch.float32 if torch.float32 in kinds else torch.float16)
        wanted = str(wide).removeprefix("torch.")
    dtype = flow.float16 if device == "cuda" else flow.bfloat16
    with warnings.catch_warnings(), flow.autocast(device, dtype):
        warnings.simplefilter("ignore")
        made = function(*ours(args), **keywords)
    if name != "equal":
        assert str(made.dtype).removeprefix("oneflow.") == wanted
