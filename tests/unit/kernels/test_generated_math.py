"""exp, log, tanh, erf and their kin in compiled loops: close to the float64 result over every
exponent, with denormals, infinities and NaN as NumPy has them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oneflow.core import dtype as dtypes
from oneflow.core.config import Config
from oneflow.core.expression import apply, cast, symbol, word
from oneflow.core.rng import Rng
from oneflow.kernels.expressions.compiled_loop import compile_spec
from oneflow.kernels.expressions.loops import LoopArray, Spec
from oneflow.kernels.native import machine_code

X = symbol("x")
EDGES = [
    0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-45, -1e-45, 1.1754942e-38, 88.722839,
    88.72284, -87.33655, -103.97, -103.98, 0.625, 0.927734375, 3.4028235e38,
]  # fmt: skip


def run(root: Any, x: Any, dtype: Any = None) -> Any:
    out = np.empty(x.shape, x.dtype if dtype is None else dtype)
    arrays = LoopArray("", dtypes.dtype_of(out.dtype)), LoopArray("x", dtypes.dtype_of(x.dtype))
    function = compile_spec(Spec(((root, arrays[0]),), arrays[1:]))
    assert function(out, x, None, 1, 0, x.size) == 0
    return out


def every_exponent() -> Any:
    """Some 700,000 float32 values: all exponents and both signs, and a step that is prime."""
    bits = np.arange(0, 1 << 32, 6151, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([bits.view(np.float32), np.array(EDGES, np.float32)])


def off_by(got: Any, want: Any) -> float:
    """Largest difference in units in the last place of `got`'s dtype."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rounded))
    differs = (got != rounded) & ~np.isnan(rounded)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.abs(rounded)).astype(np.float64)
        far = np.abs(got.astype(np.float64) - want) / unit
    return float(far[differs].max(initial=0.0))


EXACT: dict[str, Callable[[Any], Any]] = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh,
    "erf": np.vectorize(math.erf),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_float32_is_within_two_units(name: str) -> None:
    x = every_exponent()
    with np.errstate(all="ignore"):
        want = EXACT[name](x.astype(np.float64))
    assert off_by(run(apply(name, X), x), want) <= 2.0


@pytest.mark.parametrize("name", EXACT)
def test_float64_is_within_four_units(name: str) -> None:
    """NumPy itself is one or two units off."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(20000) * np.exp2(rng.uniform(-70, 10, 20000))
    x = np.concatenate([x, np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 709.7])])
    with np.errstate(all="ignore"):
        want = EXACT[name](x)
    assert off_by(run(apply(name, X), x), want) <= 4.0


def test_sigmoid_has_no_wrong_tails() -> None:
    x = np.concatenate([np.linspace(-88, 88, 50001), [-math.inf, math.inf, math.nan, -200, 200]])
    x = x.astype(np.float32)
    with np.errstate(all="ignore"):
        want = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert off_by(run(apply("sigmoid", X), x), want) <= 4.0


def test_erfc_keeps_the_tail() -> None:
    x = np.linspace(-9, 9, 30001).astype(np.float32)
    want = np.vectorize(math.erfc)(x.astype(np.float64))
    np.testing.assert_allclose(run(apply("erfc", X), x), want, rtol=2e-5)
    edges = np.array([math.inf, -math.inf, math.nan, 50.0], np.float32)
    np.testing.assert_array_equal(run(apply("erfc", X), edges), [0, 2, math.nan, 0])


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_dtypes_round_as_numpy_does(name: str) -> None:
    half = dtypes.dtype_of(name)
    x = np.arange(1 << 16, dtype=np.uint16).view(half.np)
    doubled = run(X * 2.0, x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            doubled.astype(np.float32), (x.astype(np.float32) * 2).astype(half.np).astype("f4")
        )
        floats = every_exponent()[::7].copy()
        np.testing.assert_array_equal(
            run(cast(X, half), floats, half.np).astype("f4"), floats.astype(half.np).astype("f4")
        )


def test_words_are_those_of_the_generator() -> None:
    seed, size = 0x1234567890ABCDEF, 1003
    out = np.empty(size, np.int64)
    spec = Spec(((word(), LoopArray("", dtypes.int64)),), ())
    table = np.array([size, 8, 5, 1], np.int64)  # the size, strides; first index and its stride
    function = compile_spec(spec)
    assert function(out, seed, table.ctypes.data, 1, 0, size) == 0
    want, _ = Rng(seed, (5 + size,), (5,)).words((size,))
    np.testing.assert_array_equal(out, want)


def test_code_is_kept_on_disk_and_a_cut_file_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Config.from_env({"ONEFLOW_KERNEL_CACHE": str(tmp_path)})
    monkeypatch.setattr("oneflow.core.config._current", found)
    machine_code.stored.cache_clear()
    x = np.ones(8, np.float32)
    try:
        assert (run(X * 3.0 + 0.25, x) == 3.25).all()
        (file,) = tmp_path.iterdir()
        file.write_bytes(file.read_bytes()[:100])
        assert machine_code.stored().get(file.stem) is None
        assert (run(X * 3.0 + 0.25, x) == 3.25).all()
    finally:
        machine_code.stored.cache_clear()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
def test_erfcx_is_the_tail_without_its_exponential(dtype: Any, tolerance: float) -> None:
    x = np.linspace(0, 9, 3001).astype(dtype)
    wide = x.astype(np.float64)
    want = np.vectorize(math.erfc)(wide) * np.exp(wide * wide)
    np.testing.assert_allclose(run(apply("erfcx", X), x), want, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-5), (np.float64, 1e-12)])
def test_the_tail_of_the_normal_distribution_has_all_its_digits(
    dtype: Any, tolerance: float
) -> None:
    x = np.concatenate([np.linspace(0, 12, 3001), [40.0, 1e20, math.inf]]).astype(dtype)
    wide = x.astype(np.float64)
    want = 0.5 * np.vectorize(math.erfc)(wide * math.sqrt(0.5))
    with np.errstate(over="ignore"):
        root = apply("gauss", X) * apply("normal_tail", X)
        np.testing.assert_allclose(run(root, x), want, rtol=tolerance, atol=1e-37)
        np.testing.assert_allclose(
            run(apply("gauss", X), -x), np.exp(wide * wide * -0.5), rtol=tolerance, atol=1e-37
        )
    assert math.isnan(run(root, np.array([math.nan], dtype))[0])
