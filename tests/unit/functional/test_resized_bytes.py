"""Pictures of uint8 are resized in fixed point: beside PyTorch, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.core.errors import DTypeError

SIZES = [(32, 32), (7, 20), (64, 81), (3, 5), (40, 25)]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_bytes_are_those_of_torch(
    mode: str, antialias: bool, channels: int, rng: np.random.Generator
) -> None:
    for shape in ((40, 50), (7, 9)):
        picture = rng.integers(0, 256, (2, channels, *shape)).astype(np.uint8)
        for size in SIZES:
            for corners in (False, True):
                options = {"mode": mode, "antialias": antialias, "align_corners": corners}
                wanted = torch.nn.functional.interpolate(torch.tensor(picture), size, **options)
                found = flow.nn.functional.interpolate(flow.tensor(picture), size, **options)
                assert found.dtype is flow.uint8
                np.testing.assert_array_equal(found.numpy(), wanted.numpy(), f"{shape} {options}")


def test_bytes_are_resized_in_a_graph(rng: np.random.Generator) -> None:
    class Resize(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return flow.nn.functional.interpolate(x, (5, 6), mode="bilinear", antialias=True)

    picture = rng.integers(0, 256, (1, 3, 9, 8)).astype(np.uint8)
    options = {"mode": "bilinear", "antialias": True}
    wanted = torch.nn.functional.interpolate(torch.tensor(picture), (5, 6), **options)
    np.testing.assert_array_equal(Resize()(flow.tensor(picture)).numpy(), wanted.numpy())


@pytest.mark.parametrize(
    ("dtype", "mode"), [("int64", "bilinear"), ("bool", "bicubic"), ("uint8", "area")]
)
def test_other_integers_are_refused(dtype: str, mode: str) -> None:
    """PyTorch refuses them, too; cast weights would all be zero."""
    x = flow.ones(1, 1, 4, 4, dtype=getattr(flow, dtype))
    with pytest.raises(DTypeError, match="use a floating-point dtype"):
        flow.nn.functional.interpolate(x, (2, 2), mode=mode)


@pytest.mark.parametrize("mode", ["nearest", "linear", "bilinear", "trilinear", "bicubic", "area"])
def test_results_lie_in_memory_like_those_of_torch(mode: str, rng: np.random.Generator) -> None:
    spatial = {"linear": (5,), "trilinear": (3, 4, 5)}.get(mode, (4, 5))
    x = rng.standard_normal((2, 3, *spatial))
    wanted = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=2, mode=mode)
    found = flow.nn.functional.interpolate(flow.tensor(x), scale_factor=2, mode=mode)
    assert found.stride() == wanted.stride()
    np.testing.assert_allclose(found.view(6, -1).numpy(), wanted.view(6, -1).numpy(), atol=1e-12)
