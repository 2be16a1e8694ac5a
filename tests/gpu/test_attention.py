"""Attention on a GPU agrees with PyTorch in float64: sizes around the borders of tiles, strided
heads, heads that share keys, masks, every dtype. Needs a CUDA device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.config import current_config

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()

TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}
SIZES: list[tuple[int, int, int, int]] = [  # rows, columns, d, e
    (63, 65, 16, 16), (64, 64, 32, 40), (65, 128, 33, 8), (17, 200, 8, 129), (130, 31, 1, 1)
]  # fmt: skip


def _drawn(*shape: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


def _inputs(
    heads: int, shared: int, sizes: tuple[int, int, int, int]
) -> list[np.ndarray[Any, Any]]:
    rows, columns, d, e = sizes
    return [
        _drawn(2, heads, rows, d, seed=0),
        _drawn(2, shared, columns, d, seed=1),
        _drawn(2, shared, columns, e, seed=2),
    ]


def _step(
    library: Any, dtype: Any, inputs: list[Any], device: str, **options: Any
) -> list[np.ndarray[Any, Any]]:
    """The output and the gradients of q, k and v, in float64."""
    given = [library.tensor(x, dtype=dtype, device=device, requires_grad=True) for x in inputs]
    made = {
        key: library.tensor(x, device=device, dtype=library.bool if x.dtype == bool else dtype)
        if isinstance(x, np.ndarray)
        else x
        for key, x in options.items()
    }
    out = library.nn.functional.scaled_dot_product_attention(*given, **made)
    (out * out).sum().backward()
    arrays = [out.detach(), *(x.grad for x in given)]
    return [x.to("cpu").to(library.float64).numpy() for x in arrays]


def _compare(dtype: str, inputs: list[Any], **options: Any) -> None:
    kind = getattr(flow, dtype)
    rounded = [flow.tensor(x, dtype=kind).to(flow.float64).numpy() for x in inputs]
    found = _step(flow, kind, rounded, "cuda", **options)
    for got, want in zip(
        found, _step(torch, torch.float64, rounded, "cpu", **options), strict=True
    ):
        close = TOLERANCE[dtype] * max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, atol=close, rtol=0)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_sizes_around_tiles(sizes: tuple[int, int, int, int], causal: bool) -> None:
    assert current_config().attention == "auto"
    _compare("float32", _inputs(2, 2, sizes), is_causal=causal)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_dtypes(dtype: str) -> None:
    _compare(dtype, _inputs(4, 2, (70, 70, 24, 24)), is_causal=True, enable_gqa=True)


@pytest.mark.parametrize("shape", [(1, 2, 66, 70), (2, 1, 1, 70), (66, 1), (2, 2, 66, 70)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_masks(shape: tuple[int, ...], dtype: str) -> None:
    seen = np.random.default_rng(3).random(shape) < 0.7
    if shape[-1] > 1:
        seen[..., 0] = True
    inputs = _inputs(2, 2, (66, 70, 16, 16))
    _compare(dtype, inputs, attn_mask=np.broadcast_to(seen, shape).copy())
    hidden = np.where(seen, 0.5, -np.inf)
    _compare(dtype, inputs, attn_mask=hidden)


def _heads_of(library: Any, x: Any) -> list[Any]:
    """q, k and v as heads that lie beside each other in x, as a model's one product makes them."""
    parts = x.reshape(2, 70, 3, 3, 16).permute(2, 0, 3, 1, 4)
    return [parts[i] for i in range(3)]


def test_heads_are_read_where_they_lie() -> None:
    values = _drawn(2, 70, 144, seed=5).astype(np.float32)
    found = []
    for library, device, dtype in ((flow, "cuda", flow.float32), (torch, "cpu", torch.float64)):
        x = library.tensor(values, dtype=dtype, device=device, requires_grad=True)
        attend = library.nn.functional.scaled_dot_product_attention
        out = attend(*_heads_of(library, x), is_causal=True)
        (out.transpose(1, 2).reshape(2, 70, 48) ** 2).sum().backward()
        found.append(x.grad.to("cpu").numpy())
    np.testing.assert_allclose(*found, atol=2e-4)


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "mixed"])
def test_a_graph_trains_as_on_the_cpu(amp: bool) -> None:
    """Two layers of attention in a graph; the first steps of a process make its kernels' plans."""
    losses = {}
    for device in ("cuda", "cpu"):
        flow.manual_seed(3)
        layer = flow.nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=True, norm_first=True
        ).to(device)
        optimizer = flow.optim.SGD(layer.parameters(), lr=0.1)

        class Step(flow.nn.Graph):  # type: ignore[misc,name-defined]
            def __init__(self, layer: Any, optimizer: Any) -> None:
                super().__init__()
                self.layer = layer
                self.add_optimizer(optimizer)
                if amp:
                    self.config.enable_amp(True, dtype=flow.bfloat16)

            def build(self, x: Any) -> Any:
                loss = (self.layer(x) ** 2).mean()
                loss.backward()
                return loss

        step = Step(layer, optimizer)
        x = flow.tensor(_drawn(2, 20, 16, seed=6).astype(np.float32), device=device)
        losses[device] = [float(step(x).numpy()) for _ in range(4)]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=3e-2 if amp else 1e-4)
    assert losses["cuda"][-1] < losses["cuda"][0]
