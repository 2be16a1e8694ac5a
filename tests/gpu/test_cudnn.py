"""Attention and convolutions ask cuDNN for themselves: a stand-in of its front end computes it
through the same addresses, shapes and strides, and PyTorch gives the right values. Needs a CUDA
device.

Where the real cuDNN is installed, the other tests of this folder run it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.config import current_config, set_config
from oneflow.kernels import cudnn

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()

from .cudnn_stand_in import Graph, front_end  # noqa: E402  # where there is a device

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of the operations that ran. Bindings of a call are kept by its sizes: each test has
    its own."""
    monkeypatch.setitem(sys.modules, "cudnn", front_end())
    monkeypatch.setattr(cudnn, "_plans", {})
    monkeypatch.setattr(cudnn._handles, "made", {}, raising=False)
    monkeypatch.setattr(Graph, "runs", [])
    cudnn._library.cache_clear()
    yield Graph.runs
    cudnn._library.cache_clear()


def _drawn(*shape: int, seed: int) -> Array:
    made = flow.tensor(np.random.default_rng(seed).normal(size=shape), dtype=flow.bfloat16)
    return made.to(flow.float64).numpy()


def _sides(values: list[Array], dtype: str) -> list[tuple[Any, list[Any]]]:
    """Both libraries with their inputs: ours on the GPU, PyTorch's in float64."""
    ours = [flow.tensor(x, dtype=getattr(flow, dtype), device="cuda") for x in values]
    theirs = [torch.tensor(x) for x in values]
    return [(lib, [x.requires_grad_() for x in xs]) for lib, xs in ((flow, ours), (torch, theirs))]


def _compare(pairs: list[list[Any]], close: float) -> None:
    for got, want in zip(*pairs, strict=True):
        made = got.to("cpu").to(flow.float64).numpy()
        most = max(1.0, float(want.abs().max()))
        np.testing.assert_allclose(made, want.numpy(), atol=close * most, rtol=0)


def _attend(lib: Any, q: Any, k: Any, v: Any, causal: bool) -> list[Any]:
    out = lib.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return [out.detach(), *lib.autograd.grad((out * out).sum(), (q, k, v))]


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
def test_attention(causal: bool, runs: list[str]) -> None:
    columns = 18 + causal
    values = [_drawn(2, 4, 17, 8, seed=0), *(_drawn(2, 2, columns, 8, seed=i) for i in (1, 2))]
    made = [_attend(lib, *xs, causal) for lib, xs in _sides(values, "bfloat16")]
    assert runs == ["sdpa", "sdpa_backward"]
    _compare(made, 4e-2)


def _attend_beside(lib: Any, x: Any, heads: int, size: int) -> list[Any]:
    q, k, v = (x.reshape(2, 21, 3, heads, size).permute(2, 0, 3, 1, 4)[i] for i in range(3))
    out = lib.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return [out.detach(), *lib.autograd.grad((out * out).sum(), x)]


@pytest.mark.parametrize(
    ("heads", "size", "refuses"),
    [(2, 8, False), (2, 24, True), (1, 4, False)],
    ids=["read", "refused", "unaligned"],
)
def test_heads_beside_each_other(
    heads: int, size: int, refuses: bool, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read where they lie, or else by our own kernels."""
    monkeypatch.setattr(Graph, "refuses_gaps", refuses)
    values = [_drawn(2, 21, 3 * heads * size, seed=3)]
    made = [_attend_beside(lib, *xs, heads, size) for lib, xs in _sides(values, "bfloat16")]
    assert runs == (["sdpa", "sdpa_backward"] if (heads, size) == (2, 8) else [])
    _compare(made, 5e-2)


def test_masks_and_float32_are_left_to_our_kernels(runs: list[str]) -> None:
    values = [_drawn(1, 2, 19, 8, seed=i) for i in range(3)]
    made = [_attend(lib, *xs, True) for lib, xs in _sides(values, "float32")]
    _compare(made, 1e-5)
    seen = np.random.default_rng(0).random((19, 19)) < 0.7
    pairs = []
    for lib, xs in _sides(values, "bfloat16"):
        mask = lib.tensor(seen, device=xs[0].device)
        pairs.append([lib.nn.functional.scaled_dot_product_attention(*xs, mask).detach()])
    _compare(pairs, 4e-2)
    assert runs == []


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one dim": ((2, 3, 11), (4, 3, 3), {"stride": 2, "padding": 1}),
    "two dims": ((2, 6, 7, 9), (4, 3, 3, 2), {"padding": (1, 0), "groups": 2, "dilation": 2}),
    "three dims": ((2, 2, 4, 5, 6), (3, 2, 2, 2, 2), {"stride": (1, 2, 1)}),
}


def _convolve(lib: Any, x: Any, w: Any, options: dict[str, Any]) -> list[Any]:
    convolve = getattr(lib.nn.functional, f"conv{x.ndim - 2}d")
    out = convolve(x, w, **options)
    return [out.detach(), *lib.autograd.grad((out * out).sum(), (x, w))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case: str, dtype: str, runs: list[str]) -> None:
    image, weight, options = CONVOLUTIONS[case]
    sides = _sides([_drawn(*image, seed=0), _drawn(*weight, seed=1)], dtype)
    made = [_convolve(lib, *xs, options) for lib, xs in sides]
    assert sorted(runs) == ["conv_dgrad", "conv_fprop", "conv_wgrad"]
    _compare(made, 1e-5 if dtype == "float32" else 4e-2)


@pytest.mark.parametrize("refuses", [False, True], ids=["read", "copied"])
def test_channels_last_images(
    refuses: bool, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read where they lie, or else as copies."""
    monkeypatch.setattr(Graph, "refuses_gaps", refuses)
    width = 6 + refuses
    sides = _sides([_drawn(2, 5, width, 8, seed=0), _drawn(4, 8, 3, 3, seed=1)], "float32")
    pairs = []
    for lib, (x, w) in sides:
        out = lib.nn.functional.conv2d(x.permute(0, 3, 1, 2), w, padding=1)
        pairs.append([out.detach(), *lib.autograd.grad((out * out).sum(), (x, w))])
    assert sorted(runs) == ["conv_dgrad", "conv_fprop", "conv_wgrad"]
    _compare(pairs, 1e-5)


def test_a_graph_tells_which_ops_it_leaves_to_cudnn(
    runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    class Attend(flow.nn.Graph):  # type: ignore[misc,name-defined]
        def build(self, q: Any, k: Any, v: Any) -> Any:
            return flow.nn.functional.scaled_dot_product_attention(q, k, v)

    before = current_config()
    set_config(replace(before, cuda_graphs=False))  # the stand-in copies to the host
    try:
        graph = Attend()
        graph.debug(2)
        values = [_drawn(1, 1, 23, 8, seed=i) for i in range(3)]
        (_, ours), (_, theirs) = _sides(values, "bfloat16")
        made = graph(*(x.detach() for x in ours))
    finally:
        set_config(before)
    assert "attention by cuDNN 1" in capsys.readouterr().out
    assert runs == ["sdpa"]
    attend = torch.nn.functional.scaled_dot_product_attention
    _compare([[made], [attend(*theirs).detach()]], 4e-2)


def test_it_can_be_switched_off(runs: list[str]) -> None:
    before = current_config()
    set_config(replace(before, cudnn=False))
    try:
        values = [_drawn(2, 2, 25, 8, seed=i) for i in range(3)]
        _compare([_attend(lib, *xs, True) for lib, xs in _sides(values, "bfloat16")], 4e-2)
    finally:
        set_config(before)
    assert runs == []
