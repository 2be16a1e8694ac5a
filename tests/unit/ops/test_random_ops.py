"""Random tensors: the same bits for every layout, the right distribution, and errors that explain
themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oneflow.core import dtype as dtypes
from oneflow.core.draws import mix_seed
from oneflow.core.errors import ArgumentError
from oneflow.core.op import Box
from oneflow.core.rng import COMPILED_FROM, Rng, philox
from oneflow.kernels import registry

from .numpy_mode import bind_whole, run_bound, run_whole

SEED = mix_seed(1, 2)
SHAPE = (40, 30, 25)  # large enough for the compiled loop
ATTRS: dict[str, dict[str, Any]] = {
    "uniform": {"low": -1.0, "high": 1.0},
    "normal": {"mean": 0.5, "std": 2.0},
    "randint": {"low": -5, "high": 100},
}


def _whole(name: str, dtype: dtypes.DType, shape: tuple[int, ...] = SHAPE) -> Any:
    return run_whole(name, (), {"shape": shape, "dtype": dtype, "seed": SEED, **ATTRS[name]})[0]


def _part(name: str, dtype: dtypes.DType, slices: tuple[slice, ...]) -> Any:
    box = Box(tuple(s.start for s in slices), tuple(s.stop for s in slices))
    attrs = {"shape": SHAPE, "dtype": dtype, "seed": SEED, **ATTRS[name]}
    whole = bind_whole(name, (), attrs, registry.variants(name, "cpu")[0])
    part = replace(whole, outs=((box.shape, dtype.np),), out_boxes=(box,))
    return run_bound(part, (), SEED)[0]


@pytest.mark.parametrize("name", ["uniform", "normal", "randint"])
@pytest.mark.parametrize(
    "slices",
    [
        (slice(7, 40), slice(0, 30), slice(0, 25)),
        (slice(0, 40), slice(3, 29), slice(0, 25)),
        (slice(0, 40), slice(0, 30), slice(1, 24)),
        (slice(5, 6), slice(2, 3), slice(4, 9)),
        (slice(5, 5), slice(0, 30), slice(0, 25)),
    ],
    ids=["dim 0", "dim 1", "dim 2", "few", "none"],
)
def test_a_shard_holds_the_bits_of_the_whole(name: str, slices: tuple[slice, ...]) -> None:
    dtype = dtypes.int64 if name == "randint" else dtypes.float32
    np.testing.assert_array_equal(_part(name, dtype, slices), _whole(name, dtype)[slices])


@pytest.mark.parametrize("shape", [(COMPILED_FROM,), (3, COMPILED_FROM // 2), (130, 1, 130)])
def test_compiled_words_equal_the_reference(shape: tuple[int, ...]) -> None:
    starts = tuple(range(1, len(shape) + 1))
    whole = tuple(n + 2 * s for n, s in zip(shape, starts, strict=True))
    rng = Rng(SEED, whole, starts)
    for got, want in zip(rng.words(shape), philox(SEED, rng.indices(shape)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_uniform_is_uniform() -> None:
    x = _whole("uniform", dtypes.float64)
    counts = np.histogram(x, 20, (-1, 1))[0]
    expected = x.size / 20
    assert counts.sum() == x.size
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi-square, 19 degrees: p < 0.001


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float32])
def test_uniform_never_reaches_its_upper_bound(dtype: dtypes.DType) -> None:
    x = _whole("uniform", dtype).astype(np.float64)
    assert x.min() >= -1.0
    assert x.max() < 1.0


def test_normal_has_its_moments() -> None:
    z = (_whole("normal", dtypes.float64) - 0.5) / 2.0
    n = z.size
    assert abs(z.mean()) < 4 / np.sqrt(n)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / n)
    assert abs((z**3).mean()) < 4 * np.sqrt(15 / n)
    assert abs((z**4).mean() - 3) < 4 * np.sqrt(96 / n)


def test_randint_takes_every_value() -> None:
    assert sorted(set(_whole("randint", dtypes.int32).ravel().tolist())) == list(range(-5, 100))


def test_randperm_is_a_permutation() -> None:
    (x,) = run_whole("randperm", (), {"n": 1000, "dtype": dtypes.int64, "seed": 3})
    assert sorted(x.tolist()) == list(range(1000))
    assert (x != np.arange(1000)).mean() > 0.95


def test_bernoulli_follows_its_chances() -> None:
    p = np.repeat(np.array([[0.0], [0.25], [1.0]]), 4000, 1)
    (x,) = run_whole("bernoulli", (p,), {"seed": 3})
    mean = x.mean(1)
    assert (mean[0], mean[2]) == (0.0, 1.0)
    assert abs(mean[1] - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 4000)


@pytest.mark.parametrize("shape", [0.1, 0.8, 1.0, 3.5, 200.0])
def test_gamma_numbers_have_their_moments(shape: float) -> None:
    n = 4000
    (x,) = run_whole("standard_gamma", (np.full((n,), shape),), {"seed": 3})
    assert (x > 0).all()
    assert abs(x.mean() - shape) < 4 * np.sqrt(shape / n)
    fourth = 3 * shape * (shape + 2)
    assert abs(((x - shape) ** 2).mean() - shape) < 4 * np.sqrt((fourth - shape**2) / n)


@pytest.mark.parametrize("mean", [0.0, 0.3, 4.0, 9.99, 10.0, 75.0, 1e5])
def test_poisson_numbers_have_their_moments(mean: float) -> None:
    n = 4000
    (x,) = run_whole("poisson", (np.full((n,), mean),), {"seed": 3})
    assert (x == np.floor(x)).all()
    assert abs(x.mean() - mean) <= 4 * np.sqrt(mean / n)
    spread = np.sqrt((mean + 2 * mean**2) / n)
    assert abs(((x - mean) ** 2).mean() - mean) <= 4 * spread


@pytest.mark.parametrize("name", ["standard_gamma", "poisson"])
def test_numbers_tried_again_are_the_same_in_every_part(name: str) -> None:
    means = np.linspace(0.2, 60, 600).reshape(20, 30)
    (whole,) = run_whole(name, (means,), {"seed": SEED})
    box = Box((3, 5), (17, 30))
    bound = bind_whole(name, (means,), {"seed": SEED}, registry.variants(name, "cpu")[0])
    part = replace(bound, outs=((box.shape, means.dtype),), out_boxes=(box,))
    (found,) = run_bound(part, (means[box.slices],), SEED)
    np.testing.assert_array_equal(found, whole[box.slices])


@pytest.mark.parametrize(
    ("name", "value"), [("standard_gamma", 0.0), ("standard_gamma", np.inf), ("poisson", -1.0)]
)
def test_numbers_of_no_distribution_are_refused(name: str, value: float) -> None:
    with pytest.raises(ArgumentError, match=name):
        run_whole(name, (np.array([1.0, value]),), {"seed": SEED})
