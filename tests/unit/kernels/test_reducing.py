"""Sums and extremes of large float32 arrays on a CPU, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.kernels.native import reducing
from oneflow.kernels.threads import handed_out

Array = np.ndarray[Any, Any]

# shape, dims
CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((900, 130), (0,)),
    ((900, 130), (1,)),
    ((900, 130), (0, 1)),
    ((70_001,), (0,)),
    ((2, 140_000), (1,)),
    ((9000, 16), (0,)),
    ((3000, 33), (0,)),
    ((5, 1500, 65), (1,)),
    ((6, 16, 30, 31), (2, 3)),
    ((6, 16, 30, 31), (-1,)),
    ((6, 16, 30, 31), (1, 2)),
    ((6, 16, 30, 31), (0, 2, 3)),  # channels, of which sums have a loop of their own
    ((6, 16, 30, 31), (0, 2)),
    ((14, 1, 64, 1, 90), (0, 2)),
    ((30000, 3), (0,)),  # rows that fill no vector
    ((30000, 3), (1,)),
]
FUNCTIONS: dict[str, tuple[Callable[..., flow.Tensor], Callable[..., Any]]] = {
    "sum": (flow.sum, np.sum),
    "amax": (flow.amax, np.max),
    "amin": (flow.amin, np.min),
    "mean": (flow.mean, np.mean),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_large_arrays_along_dims(case: Any, name: str, rng: np.random.Generator) -> None:
    shape, dims = case
    ours, exact = FUNCTIONS[name]
    x = rng.standard_normal(shape, np.float32)
    for keepdim in (False, True):
        got = ours(flow.tensor(x), dim=dims, keepdim=keepdim).numpy()
        want = exact(x.astype(np.float64), axis=dims, keepdims=keepdim)
        assert got.dtype == np.float32 and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.sqrt(x.size / got.size))
    turned = flow.tensor(np.ascontiguousarray(x.T)).permute(*reversed(range(x.ndim)))
    np.testing.assert_allclose(
        ours(turned, dim=dims, keepdim=True).numpy(), got, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)])
def test_nan_and_infinities_are_extremes(dims: tuple[int, ...], rng: np.random.Generator) -> None:
    x = rng.standard_normal((500, 170), np.float32)
    x[3, 4], x[7, 8], x[9, 10] = np.nan, np.inf, -np.inf
    for name in ("amax", "amin"):
        ours, exact = FUNCTIONS[name]
        np.testing.assert_array_equal(ours(flow.tensor(x), dim=dims).numpy(), exact(x, axis=dims))


@pytest.mark.parametrize("shape", [(10_000_000, 1), (1_000_000, 16)])
def test_equal_numbers_add_up(shape: tuple[int, int]) -> None:
    x = np.full(shape, 0.1, np.float32)
    want = shape[0] * float(np.float32(0.1))
    np.testing.assert_allclose(flow.tensor(x).sum(0).numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("sizes", [(1, 300_000, 1), (40, 9000, 1), (1, 9000, 70), (3, 500, 300)])
def test_threads_change_no_bit(
    sizes: tuple[int, int, int], rng: np.random.Generator, use_threads: Callable[..., None]
) -> None:
    outer, size, inner = sizes
    x = rng.standard_normal(sizes, np.float32)
    work = np.empty((outer, reducing.num_chunks(size, inner), inner), np.float32)
    found = []
    for count in (1, 2, 5):
        use_threads(count, least=1)
        before = handed_out()
        out = np.empty((outer, inner), np.float32)
        reducing.reduce("sum", out, x, sizes, work)
        assert (handed_out() > before) == (count > 1)
        found.append(out)
    for out in found[1:]:
        np.testing.assert_array_equal(out, found[0])
