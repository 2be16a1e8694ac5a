"""Compiled sorts beside PyTorch's stable ones: lengths on both sides of where the ways change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import oneflow as flow
from oneflow.kernels import registry
from oneflow.kernels.threads import handed_out

from .run_kernel import run

Array = np.ndarray[Any, Any]
DTYPES = ("float32", "float64", "int32", "int64")
SHAPES = ((7, 1), (300, 17), (90, 48), (90, 49), (20, 300), (1, 5000), (2, 9000), (1, 70001))


def _numbers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], kind: str) -> Array:
    if dtype.startswith("int"):
        limits = np.iinfo(dtype)
        low, high = (-3, 4) if kind == "few" else (limits.min, limits.max)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    x = rng.standard_normal(shape).astype(dtype)
    if kind == "few":
        x = np.round(x)
        for special in (np.nan, -np.nan, -0.0, np.inf, -np.inf):
            x[rng.random(shape) < 0.1] = special
    return x


def _compiled(name: str, x: Array, **attrs: Any) -> list[Array]:
    """The outputs of the variant for large arrays on a CPU."""
    kernels = registry.variants(name, "cpu")
    which = next(i for i, kernel in enumerate(kernels) if x.dtype.name in kernel.dtypes)
    return list(run(name, x, which=which, **attrs))


def _sorted(x: Array, dim: int, descending: bool) -> list[Array]:
    found = torch.sort(torch.from_numpy(x), dim=dim, descending=descending, stable=True)
    return [found.values.numpy(), found.indices.numpy()]


def _same(got: list[Array], want: list[Array]) -> None:
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)
    if got[0].dtype.kind == "f":
        np.testing.assert_array_equal(np.signbit(got[0]), np.signbit(want[0]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sorts_and_their_beginnings_are_pytorchs(
    dtype: str,
    shape: tuple[int, int],
    threads: int,
    rng: np.random.Generator,
    use_threads: Callable[..., None],
) -> None:
    use_threads(threads, least=1)
    for kind in ("all", "few"):
        x = _numbers(rng, dtype, shape, kind)
        for descending in (False, True):
            want = _sorted(x, 1, descending)
            _same(_compiled("sort", x, dim=1, descending=descending), want)
            for k in {1, 5, 10, 64, 65, shape[1]}:
                if k <= shape[1]:
                    got = _compiled("topk", x, k=k, dim=1, largest=descending)
                    _same(got, [a[:, :k] for a in want])


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_any_dim_of_any_strides_is_sorted(dim: int, rng: np.random.Generator) -> None:
    x = rng.integers(0, 9, (40, 60, 50)).swapaxes(0, 2)
    _same(_compiled("sort", x, dim=dim, descending=True), _sorted(x, dim, True))
    got = _compiled("topk", x, k=3, dim=dim, largest=False)
    _same(got, [a.take(range(3), dim) for a in _sorted(x, dim, False)])


def test_equal_integers_and_orders_that_are_there(rng: np.random.Generator) -> None:
    for x in (np.full((1, 9000), 7), np.arange(9000)[None], np.arange(9000)[None, ::-1].copy()):
        for descending in (False, True):
            want = _sorted(x, 1, descending)
            _same(_compiled("sort", x, dim=1, descending=descending), want)
            got = _compiled("topk", x, k=30, dim=1, largest=descending)
            _same(got, [a[:, :30] for a in want])


@pytest.mark.parametrize("shape", [(0, 5000), (5000, 0)])
def test_nothing_is_sorted(shape: tuple[int, int]) -> None:
    x = np.ones(shape, np.float32)
    values, index = _compiled("sort", x, dim=1, descending=False)
    assert values.shape == index.shape == shape
    assert [a.shape for a in _compiled("topk", x.T, k=0, dim=0, largest=True)] == [
        (0, shape[0])
    ] * 2


@pytest.mark.parametrize(("rows", "length"), [(1, 1 << 17), (400, 400), (4000, 12)])
def test_threads_share_a_sort(rows: int, length: int, rng: np.random.Generator,
                              use_threads: Callable[..., None]) -> None:  # fmt: skip
    use_threads(2)
    x = rng.standard_normal((rows, length)).astype(np.float32)
    before = handed_out()
    _compiled("sort", x, dim=1, descending=False)
    assert handed_out() > before


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8"])
def test_different_elements_their_places_and_counts(dtype: str, rng: np.random.Generator) -> None:
    x = rng.integers(-20, 20, (90, 70)).astype(dtype)
    ours = flow.unique(flow.tensor(x), return_inverse=True, return_counts=True)
    theirs = torch.unique(torch.from_numpy(x), return_inverse=True, return_counts=True)
    for got, want in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert flow.unique(flow.tensor([np.nan, 1.0, np.nan])).shape == (3,)
    assert flow.unique(flow.zeros(0)).shape == (0,)
