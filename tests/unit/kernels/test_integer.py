"""Programs of layers of 8-bit integers, for every width of vector registers: their sums against
those of NumPy, which have to be equal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oneflow.kernels.native import integer as programs
from oneflow.kernels.native.program import function_of
from oneflow.kernels.registry import variants
from tests.unit.ops.integer_samples import convolved, dense
from tests.unit.ops.numpy_mode import run_whole

Array = np.ndarray[Any, Any]
ONE, ZERO = np.ones(1, np.float32), np.array([3], np.int32)
LEVELS = {"low": -128, "high": 127}


@pytest.fixture(params=[4, 8, 16])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Code for vectors of so many floats, which LLVM splits or joins on other processors."""
    monkeypatch.setattr(programs, "LANES", request.param)
    function_of.cache_clear()
    yield request.param
    function_of.cache_clear()


def _layer(outs: int, runs: tuple[int, ...], filled: int, has_zeros: bool) -> tuple[Array, ...]:
    """Operands whose scales are 1: the result is the sum."""
    rng = np.random.default_rng([outs, *runs])
    zeros = rng.integers(-128, 128, outs).astype(np.int32) * has_zeros
    weight = rng.integers(-128, 128, (outs, *runs)).astype(np.int8)
    weight[..., filled:] = zeros.reshape(-1, *(1,) * len(runs))
    return weight, np.ones(outs, np.float32), zeros, ONE, ZERO


def _x(*shape: int) -> Array:
    found = np.random.default_rng(shape).integers(-200, 200, shape)
    return (found + 0.25).astype(np.float32)


def _fused(name: str) -> Any:
    found = variants(name, "cpu")[0]
    assert found.dtypes == ("float32",)
    return found


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(
    ("rows", "columns", "outs"),
    [(1, 70, 37), (2, 64, 9), (3, 33, 10), (4, 96, 3), (9, 40, 5), (70, 257, 12), (2, 3, 1)],
)
def test_sums_of_dense_layers_are_exact(
    lanes: int, rows: int, columns: int, outs: int, has_zeros: bool
) -> None:
    layer = _layer(outs, (-(-columns // 16) * 16,), columns, has_zeros)
    bias = np.arange(outs, dtype=np.float32)
    inputs = (_x(rows, columns), *layer, bias)
    (out,) = run_whole("integer_linear", inputs, LEVELS, _fused("integer_linear"))
    np.testing.assert_array_equal(out, dense(*inputs, **LEVELS))


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(
    ("image", "outs", "windows"),
    [
        ((2, 16, 9, 10), 6, {}),
        ((1, 3, 12, 5), 3, {"stride": (2, 1), "padding": (0, 2)}),
        ((1, 12, 9, 11), 4, {"kernel": (2, 3), "dilation": (3, 2), "groups": 2}),
        ((1, 8, 3, 3), 5, {"kernel": (1, 1), "padding": (0, 0)}),
    ],
)
def test_sums_of_windows_are_exact(
    lanes: int, image: tuple[int, ...], outs: int, windows: dict[str, Any], has_zeros: bool
) -> None:
    usual = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    attrs: dict[str, Any] = LEVELS | usual | {"groups": 1} | windows
    own, (lines, across) = image[1] // attrs["groups"], attrs["kernel"]
    places, count = (across, own) if attrs["dilation"][1] > 1 else (1, across * own)
    layer = _layer(outs, (lines * places, -(-count // 16) * 16), count, has_zeros)
    inputs = (_x(*image), *layer)
    (out,) = run_whole("integer_conv", inputs, attrs, _fused("integer_conv"))
    np.testing.assert_array_equal(out, convolved(*inputs, **attrs))


def test_threads_and_panels_share_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_PRODUCTS", 1)
    monkeypatch.setattr(programs, "_PANEL_NBYTES", 1000)
    for rows in (1, 131):
        inputs = (_x(rows, 300), *_layer(301, (304,), 300, True))
        (out,) = run_whole("integer_linear", inputs, LEVELS)
        np.testing.assert_array_equal(out, dense(*inputs, **LEVELS))


def test_operands_that_are_not_contiguous_and_none_at_all() -> None:
    layer = _layer(64, (304,), 300, False)
    x = _x(300, 70).T
    (out,) = run_whole("integer_linear", (x, *layer), LEVELS)
    np.testing.assert_array_equal(out, dense(x, *layer, **LEVELS))
    (out,) = run_whole("integer_linear", (x[:0], *layer), LEVELS)
    assert out.shape == (0, 64)


def test_nan_is_the_least_integer_in_every_kernel() -> None:
    inputs = (np.full((3, 32), np.nan, np.float32), *_layer(4, (32,), 32, False))
    want = dense(np.full((3, 32), -500.0), *inputs[1:], **LEVELS)
    for kernel in variants("integer_linear", "cpu"):
        (out,) = run_whole("integer_linear", inputs, LEVELS, kernel)
        np.testing.assert_array_equal(out, want)
