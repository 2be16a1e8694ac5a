"""The fused convolutions and poolings equal the plain ones, at sizes where they are taken and where
they hand over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow.kernels import conv as conv_file
from oneflow.kernels import registry

from .run_kernel import run

TOLERANCE = {"rtol": 1e-5, "atol": 2e-5}


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def agree(name: str, *inputs: Any, **attrs: Any) -> tuple[Any, ...]:
    """Outputs of the selected kernel, which is not the plain one, after comparing both."""
    variants = registry.variants(name, "cpu")
    plain = next(i for i, v in enumerate(variants) if not v.min_elements and not v.dtypes)
    fused = run(name, *inputs, which=plain - 1, **attrs)
    for got, want in zip(fused, run(name, *inputs, which=plain, **attrs), strict=True):
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(got / scale, want / scale, **TOLERANCE)
    return fused


CONVS: list[tuple[tuple[int, ...], tuple[int, ...], int, dict[str, Any]]] = [
    ((96, 1, 8, 8), (16, 1, 3, 3), 1, {"padding": (1, 1)}),
    ((48, 16, 8, 8), (32, 16, 3, 3), 1, {"padding": (1, 1), "stride": (2, 2)}),
    ((37, 6, 9, 7), (8, 3, 3, 2), 2, {"padding": (2, 0), "stride": (1, 2), "dilation": (2, 1)}),
    ((19, 4, 5, 6), (4, 1, 1, 1), 4, {}),
    ((17, 3, 4, 4), (2, 3, 5, 5), 1, {"padding": (3, 3), "stride": (3, 2)}),
    ((7, 40, 6, 5), (18, 20, 3, 3), 2, {"padding": (1, 1), "stride": (2, 2)}),  # narrow results
    ((5, 3, 12, 12), (4, 3, 3, 3), 1, {"padding": (1, 1)}),  # few samples: the plain way
    ((20, 3, 40), (4, 3, 5), 1, {"padding": (2,), "stride": (2,), "dilation": (2,)}),
    ((20, 2, 5, 4, 6), (4, 2, 2, 2, 3), 1, {"padding": (1, 0, 1), "stride": (1, 2, 1)}),
]


@pytest.mark.parametrize("case", CONVS, ids=str)
@pytest.mark.parametrize("elements", [1 << 20, 1 << 14])
def test_convolution_and_its_gradients(
    case: Any, elements: int, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """elements: of a chunk, so that there is one and that there are several."""
    monkeypatch.setattr(conv_file, "_CHUNK_ELEMENTS", elements)
    x_shape, w_shape, groups, given = case
    ones = (1,) * (len(x_shape) - 2)
    attrs = {"stride": ones, "padding": tuple(0 for _ in ones), "dilation": ones, **given}
    attrs["groups"] = groups
    x, w = normal(rng, *x_shape), normal(rng, *w_shape)
    (out,) = agree("conv", x, w, **attrs)
    d = normal(rng, *out.shape)
    agree("conv_data_grad", d, w, spatial=x_shape[2:], **attrs)
    agree("conv_filter_grad", d, x, kernel=w_shape[2:], **attrs)


def test_strided_inputs_give_the_same(rng: np.random.Generator) -> None:
    ones = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    x, w = normal(rng, 8, 8, 3, 64).transpose(3, 2, 0, 1), normal(rng, 5, 3, 3, 3)
    (got,) = run("conv", x, w, **ones)
    (want,) = run("conv", x.astype(np.float64), w.astype(np.float64), **ones)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keepdim", [False, True])
def test_sums_over_all_but_the_channels(keepdim: bool, rng: np.random.Generator) -> None:
    agree("reduce_sum", normal(rng, 48, 5, 8, 6), dims=(0, 2, 3), keepdim=keepdim)
    agree("reduce_sum", normal(rng, 48, 5, 40), dims=(0, 1), keepdim=keepdim)
    agree("reduce_sum", normal(rng, 48, 5, 8, 6).swapaxes(0, 1), dims=(0, 2, 3), keepdim=keepdim)


POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((48, 4, 8, 8), {"kernel": (2, 2), "stride": (2, 2)}),
    ((7, 3, 9, 11), {"kernel": (3, 2), "stride": (1, 3), "padding": (1, 1)}),
    ((2, 3, 7, 8), {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil_mode": True}),
    ((3, 2, 20), {"kernel": (4,), "stride": (2,), "padding": (1,)}),
    ((2, 2, 6, 6, 5), {"kernel": (2, 2, 2), "stride": (2, 2, 1)}),
]


def _geometry(shape: tuple[int, ...], given: dict[str, Any]) -> dict[str, Any]:
    return {"padding": (0,) * (len(shape) - 2), "ceil_mode": False, **given}


@pytest.mark.parametrize("case", POOLS, ids=str)
def test_max_pool_and_its_gradient(case: Any, rng: np.random.Generator) -> None:
    shape, given = case
    for dilation in (1, 2):
        attrs = _geometry(shape, given) | {"dilation": (dilation,) * (len(shape) - 2)}
        out, indices = agree("max_pool", normal(rng, *shape), **attrs)
        del attrs["ceil_mode"]
        agree("max_pool_grad", normal(rng, *out.shape), indices, spatial=shape[2:], **attrs)


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("counts", [{}, {"count_include_pad": False}, {"divisor_override": 3}])
def test_avg_pool_and_its_gradient(
    case: Any, counts: dict[str, Any], rng: np.random.Generator
) -> None:
    shape, given = case
    attrs = _geometry(shape, given) | counts
    (out,) = agree("avg_pool", normal(rng, *shape), **attrs)
    agree("avg_pool_grad", normal(rng, *out.shape), spatial=shape[2:], **attrs)


def test_max_pool_of_nan_and_of_infinity(rng: np.random.Generator) -> None:
    x = normal(rng, 4, 2, 8, 8)
    x[0, 0, 3, 3], x[1, 1, 4:, 4:] = np.nan, -np.inf
    window = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}
    plain = len(registry.variants("max_pool", "cpu")) - 1
    got, want = (run("max_pool", x, which=i, ceil_mode=False, **window) for i in (0, plain))
    assert np.isnan(got[0][0, 0, 1, 1])
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    agree("max_pool_grad", normal(rng, *got[0].shape), got[1], spatial=(8, 8), **window)
