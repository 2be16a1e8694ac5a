"""Resized images and adaptive means beside PyTorch's, with gradients: sizes for which the compiled
loops are taken, on one thread and on several."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as torch_f

import oneflow as flow
import oneflow.nn.functional as flow_f
from oneflow.kernels import threads

Array = np.ndarray[Any, Any]
SHAPES = ((4, 8, 40, 33), (1, 1, 131, 140))
SIZES: tuple[dict[str, Any], ...] = (
    {"size": (7, 15)}, {"size": (80, 66)}, {"scale_factor": 2}, {"scale_factor": (0.6, 1.7)},
    {"size": (40, 33)}, {"size": (1, 1)},
)  # fmt: skip
WAYS = [
    *({"mode": mode} for mode in ("nearest", "nearest-exact", "area")),
    *(
        {"mode": mode, "align_corners": corners, "antialias": antialias}
        for mode, corners, antialias in itertools.product(
            ("bilinear", "bicubic"), (False, True), (False, True)
        )
    ),
]


def _compare(name: str, x: Array, rng: np.random.Generator, *args: Any, **given: Any) -> None:
    ours, theirs = flow.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    got = getattr(flow_f, name)(ours, *args, **given)
    want = getattr(torch_f, name)(theirs, *args, **given)
    d = rng.standard_normal(want.shape).astype(x.dtype)
    got.backward(flow.tensor(d))
    want.backward(torch.tensor(d))
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), rtol=0, atol=1e-4)
    assert ours.grad is not None and theirs.grad is not None
    scale = float(theirs.grad.abs().max())
    difference = np.abs(ours.grad.numpy() - theirs.grad.numpy()).max()
    assert difference <= 1e-4 * scale


@pytest.fixture(params=[1, 3])
def _threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "num_threads", lambda: request.param)
    monkeypatch.setattr(threads, "LEAST_SHARED", 1)
    monkeypatch.setattr(threads, "_helpers", threads.Helpers(least_asleep=1))
    monkeypatch.setattr(threads, "_LEAST_PIECE", 1)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.usefixtures("_threads")
def test_images_of_any_size(way: dict[str, Any], rng: np.random.Generator) -> None:
    for shape, size in itertools.product(SHAPES, SIZES):
        # PyTorch rounds nearest places of float64 in different ways.
        for dtype in (np.float32, np.float64)[: 1 if "nearest" in way["mode"] else 2]:
            _compare("interpolate", rng.standard_normal(shape).astype(dtype), rng, **size, **way)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((8, 20, 13, 13), 7), ((8, 8, 56, 56), 1), ((4, 700, 7, 7), 1), ((2, 9, 40, 31), (3, 50)),
        ((4, 40, 200), 17), ((2, 8, 9, 20, 30), (3, 4, 7)), ((1, 2, 100, 100), (4, 5)),
        ((1, 3, 30000), 4), ((4, 16, 32, 32), (1, 32)),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("_threads")
def test_means_of_adaptive_windows(
    shape: tuple[int, ...], size: Any, rng: np.random.Generator
) -> None:
    x = rng.standard_normal(shape).astype(np.float32)
    _compare(f"adaptive_avg_pool{len(shape) - 2}d", x, rng, size)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_places_are_copied(mode: str, rng: np.random.Generator) -> None:
    """An infinite or missing number stays at its own places, and zeros keep their signs."""
    x = rng.standard_normal((2, 16, 20, 24)).astype(np.float32)
    x[0, 0, 3, 4], x[0, 1, 5, 6], x[1, 2] = np.inf, np.nan, -0.0
    for dtype, size in itertools.product(("float32", "float64", "float16"), ((41, 50), (9, 7))):
        given = x.astype(dtype)
        got = flow_f.interpolate(flow.tensor(given), size, mode=mode).numpy()
        want = torch_f.interpolate(torch.from_numpy(given), size, mode=mode).numpy()
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_second_derivatives_of_resized_images(rng: np.random.Generator) -> None:
    x = flow.tensor(rng.standard_normal((2, 16, 24, 24)).astype(np.float32), requires_grad=True)
    y = flow_f.interpolate(x, size=(31, 17), mode="bilinear", align_corners=False)
    (first,) = flow.autograd.grad((y * y * y).sum(), x, create_graph=True)
    assert first is not None
    (second,) = flow.autograd.grad(first.square().sum(), x)
    assert second is not None
    t = torch.tensor(x.detach().numpy(), requires_grad=True)
    z = torch_f.interpolate(t, size=(31, 17), mode="bilinear", align_corners=False)
    (once,) = torch.autograd.grad((z * z * z).sum(), t, create_graph=True)
    (twice,) = torch.autograd.grad(once.square().sum(), t)
    np.testing.assert_allclose(second.numpy(), twice.numpy(), rtol=1e-3, atol=1e-3)
