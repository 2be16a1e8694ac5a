"""The compiled passes of batch norm, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oneflow.kernels import registry, threads

from .run_kernel import run

SHAPES = [(4, 16, 23, 13), (3, 700, 16), (17, 5, 3, 4, 17), (2, 300, 7, 7), (20000, 3), (600, 9, 5)]
"""The last two have samples that are too short for whole vectors."""


def normal(rng: np.random.Generator, *shape: int) -> Any:
    return (rng.standard_normal(shape) + 3.0).astype(np.float32)


def over_channels(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def like(row: Any, x: Any) -> Any:
    return row.astype(np.float64).reshape(1, -1, *(1,) * (x.ndim - 2))


def close(got: Any, want: Any) -> None:
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6 * float(np.abs(want).max()))


@pytest.fixture
def rows(rng: np.random.Generator) -> Any:
    """Makes mean, inv_std, gamma and beta."""
    return lambda x: [normal(rng, x.shape[1]) for _ in range(4)]


def test_large_images_take_the_compiled_passes() -> None:
    for name in ("batch_sums", "batch_norm_apply", "batch_norm_grad_sums", "batch_norm_grad_apply"):
        assert registry.variants(name, "cpu")[0].function.__name__ == f"{name}_fused"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_passes_equal_float64(
    shape: Any, count: int, rng: np.random.Generator, rows: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """count: of threads."""
    x, d_y = normal(rng, *shape), normal(rng, *shape)
    mean, inv_std, gamma, beta = rows(x)
    dims, wide, wide_d = over_channels(x), x.astype(np.float64), d_y.astype(np.float64)
    monkeypatch.setattr(threads, "_limit", count)
    sums = run("batch_sums", x)
    y = run("batch_norm_apply", x, mean, inv_std, gamma, beta, count=0)
    plain_y = run("batch_norm_apply", x, mean, inv_std, count=0)
    d_beta, d_gamma = run("batch_norm_grad_sums", d_y, x, mean, inv_std)
    given = d_y, x, mean, inv_std, d_beta, d_gamma, gamma
    d_x = run("batch_norm_grad_apply", *given, count=x.size // x.shape[1])
    constant = run("batch_norm_grad_apply", *given, count=0)
    np.testing.assert_allclose(sums[0], wide.sum(dims), rtol=1e-12)
    np.testing.assert_allclose(sums[1], np.square(wide).sum(dims), rtol=1e-12)
    hat = (wide - like(mean, x)) * like(inv_std, x)
    close(plain_y[0], hat)
    close(y[0], hat * like(gamma, x) + like(beta, x))
    close(d_beta, wide_d.sum(dims))
    close(d_gamma, (hat * wide_d).sum(dims))
    factor, number = like(inv_std, x) * like(gamma, x), x.size // x.shape[1]
    close(constant[0], factor * wide_d)
    close(d_x[0], factor * (wide_d - (like(d_beta, x) + hat * like(d_gamma, x)) / number))


def test_apply_may_write_over_what_it_reads(rng: np.random.Generator, rows: Any) -> None:
    x = normal(rng, 3, 200, 7, 9)
    mean, inv_std, gamma, beta = rows(x)
    (want,) = run("batch_norm_apply", x, mean, inv_std, gamma, beta, count=0)
    function = registry.variants("batch_norm_apply", "cpu")[0].function
    function(np, x, x, mean, inv_std, gamma, beta, count=0)
    np.testing.assert_array_equal(x, want)
