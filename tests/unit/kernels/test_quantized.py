"""Products with packed integers, for every width of vector registers, against float64 weights that
are unpacked one number at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.tensor_type import TensorType
from oneflow.kernels import quantized as kernels
from oneflow.kernels.native import quantized as floats
from oneflow.kernels.native import quantized_dot as programs
from oneflow.kernels.native.machine_code import machine
from oneflow.kernels.native.program import function_of
from oneflow.kernels.registry import variants
from oneflow.kernels.work import work_of
from oneflow.ops.quantized import Dequantize, QuantizedLinear, dequantize, quantized_linear
from tests.unit.ops.numpy_mode import run_whole, type_of
from tests.unit.ops.quantized_samples import dequantized

Array = np.ndarray[Any, Any]
ERROR = 1e-4 if machine().has_byte_dots else 1e-5
"""Error of a product of a few rows, as a share of the largest one; x may be rounded to 16 bits."""


def _weight(rows: int, columns: int, groups: int, bits: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng([rows, columns, groups, bits])
    weight = rng.integers(0, 256, (rows, columns * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.01, 0.03, (rows, groups)).astype(np.float32)
    return weight, scales, rng.integers(0, 1 << bits, (rows, groups)).astype(np.uint8)


@pytest.fixture(params=[4, 8, 16])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Code for vectors of so many floats, which LLVM splits or joins on other processors."""
    monkeypatch.setattr(floats, "LANES", request.param)
    for cache in (programs._programs, function_of):
        cache.cache_clear()
    yield request.param
    for cache in (programs._programs, function_of):
        cache.cache_clear()


COLUMNS = [
    (4, 512, 128), (4, 320, 32), (4, 640, 64), (4, 480, 96), (4, 200, 200), (4, 240, 6),
    (8, 512, 512), (8, 320, 32), (8, 100, 100), (8, 264, 88),
]  # fmt: skip
"""Bits, inputs, and inputs of a group: whole registers, parts of them, and neither."""


@pytest.mark.parametrize(("bits", "columns", "group"), COLUMNS)
def test_a_row_of_every_grouping(lanes: int, bits: int, columns: int, group: int) -> None:
    weight, scales, zeros = _weight(70, columns, columns // group, bits)
    x = np.random.default_rng(1).normal(size=(1, columns)).astype(np.float32)
    for rest in ((), (zeros,)):
        want = x @ dequantized(weight, scales, *rest, bits=bits).T
        (out,) = run_whole("quantized_linear", (x, weight, scales, *rest), {"bits": bits})
        np.testing.assert_allclose(out, want, atol=ERROR * np.abs(want).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_any_number_of_rows(bits: int) -> None:
    weight, scales, zeros = _weight(131, 256, 2, bits)
    bias = np.random.default_rng(2).normal(size=131).astype(np.float32)
    whole = dequantized(weight, scales, zeros, bits=bits)
    for rows in (1, 2, 3, 4, 5, 7, 8, 9, 40):
        x = np.random.default_rng(rows).normal(size=(rows, 256)).astype(np.float32)
        inputs = (x, weight, scales, zeros, bias)
        (out,) = run_whole("quantized_linear", inputs, {"bits": bits})
        want = x @ whole.T + bias
        np.testing.assert_allclose(out, want, atol=ERROR * np.abs(want).max())


@pytest.mark.parametrize("bits", [4, 8])
def test_large_numbers_of_one_group_leave_the_others_exact(bits: int) -> None:
    weight, scales, _ = _weight(40, 1024, 8 if bits == 4 else 1, bits)
    x = np.random.default_rng(3).normal(size=(1, 1024)).astype(np.float32)
    x[0, 600] = 1e6
    scales[:, 4:5] = 0 if bits == 4 else scales[:, 4:5]
    whole = dequantized(weight, scales, bits=bits)
    (out,) = run_whole("quantized_linear", (x, weight, scales), {"bits": bits})
    want = x @ whole.T
    np.testing.assert_allclose(out, want, atol=ERROR * np.abs(want).max())
    x[0, 3] = np.nan
    (out,) = run_whole("quantized_linear", (x, weight, scales), {"bits": bits})
    assert np.isnan(out).all()


def test_threads_and_parts_of_the_weight_share_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_BYTES", 1)
    monkeypatch.setattr(kernels, "_PANEL_ELEMENTS", 100 * 512)
    weight, scales, zeros = _weight(2051, 512, 4, 4)
    whole = dequantized(weight, scales, zeros, bits=4)
    for rows in (1, 30):
        x = np.random.default_rng(rows).normal(size=(rows, 512)).astype(np.float32)
        (out,) = run_whole("quantized_linear", (x, weight, scales, zeros), {"bits": 4})
        want = x @ whole.T
        np.testing.assert_allclose(out, want, atol=ERROR * np.abs(want).max())


@pytest.mark.parametrize(("bits", "columns", "group"), COLUMNS)
def test_floats_are_exact(bits: int, columns: int, group: int) -> None:
    weight, scales, zeros = _weight(130, columns, columns // group, bits)
    assert len(variants("dequantize", "cpu")) == 2
    for rest, kernel in product(((), (zeros,)), variants("dequantize", "cpu")):
        (out,) = run_whole("dequantize", (weight, scales, *rest), {"bits": bits}, kernel)
        want = dequantized(weight, scales, *rest, bits=bits).astype(np.float32)
        np.testing.assert_array_equal(out, want)


def test_operands_that_are_not_contiguous() -> None:
    weight, scales, zeros = _weight(130, 512, 4, 4)
    x = np.random.default_rng(0).normal(size=(512, 3)).astype(np.float32).T
    wide = np.repeat(weight, 2, axis=1)[:, ::2]
    want = x @ dequantized(weight, scales, zeros, bits=4).T
    for rows in (x, np.asfortranarray(np.tile(x, (5, 1)))):
        (out,) = run_whole("quantized_linear", (rows, wide, scales, zeros), {"bits": 4})
        expected = np.tile(want, (len(rows) // 3, 1))
        np.testing.assert_allclose(out, expected, atol=ERROR * np.abs(want).max())
    (floats,) = run_whole("dequantize", (wide, scales, zeros), {"bits": 4})
    np.testing.assert_array_equal(floats, run_whole("dequantize", (weight, scales, zeros),
                                                    {"bits": 4})[0])  # fmt: skip


def test_no_rows_and_no_outputs() -> None:
    weight, scales, _ = _weight(200, 256, 1, 8)
    x = np.zeros((0, 256), np.float32)
    assert run_whole("quantized_linear", (x, weight, scales), {"bits": 8})[0].shape == (0, 200)
    x = np.zeros((100, 256), np.float32)
    inputs = x, weight[:0], scales[:0]
    assert run_whole("quantized_linear", inputs, {"bits": 8})[0].shape == (100, 0)


@pytest.mark.parametrize("dtype", [flow.float16, flow.bfloat16, flow.float64])
@pytest.mark.parametrize("is_wide", [False, True])
def test_other_dtypes_of_x(dtype: Any, is_wide: bool) -> None:
    weight, scales, zeros = _weight(96, 256, 2, 4)
    x = flow.tensor(np.random.default_rng(0).normal(size=(2, 256)).astype(np.float32)).to(dtype)
    given = flow.tensor(scales) if is_wide else flow.tensor(scales).to(dtype)
    out = quantized_linear(x, flow.tensor(weight), given, flow.tensor(zeros), bits=4)
    assert out.dtype is dtype
    held = given.to(flow.float64).numpy()
    want = x.to(flow.float64).numpy() @ dequantized(weight, held, zeros, bits=4).T
    error = {flow.float16: 2e-3, flow.bfloat16: 1e-2, flow.float64: 1e-12}[dtype]
    found = out.to(flow.float64).numpy()
    np.testing.assert_allclose(found, want, atol=error * np.abs(want).max())


def _t(shape: tuple[int, ...], dtype: Any = flow.float32) -> TensorType:
    return TensorType(shape, dtype)


W, S, Z = _t((6, 16), flow.uint8), _t((6, 4)), _t((6, 4), flow.uint8)


@pytest.mark.parametrize(
    ("operands", "bits", "error", "message"),
    [
        ((_t((2, 32)), W, S), 3, ArgumentError, "weights have 4 or 8 bits, not 3"),
        ((_t((2, 31)), W, S), 4, ShapeError, "x needs 32 columns"),
        ((_t((2, 32)), _t((6, 16)), S), 4, DTypeError, "uint8 matrix"),
        ((_t((2, 32)), W, _t((6, 5))), 4, ShapeError, r"scales float32\[6, 5\] do not fit"),
        ((_t((2, 32)), W, _t((6, 32))), 4, ShapeError, "groups of whole bytes"),
        ((_t((2, 32)), W, S, _t((6, 2), flow.uint8)), 4, ShapeError, r"must be uint8\[6, 4\]"),
        ((_t((2, 32)), W, S, Z, _t((5,))), 4, ShapeError, r"must be float32\[6\]"),
        ((_t((2, 32), flow.float64), W, _t((6, 4), flow.float16)), 4, DTypeError, "or float32"),
        ((_t((2, 32), flow.int64), W, S), 4, DTypeError, "floating-point"),
    ],
)
def test_operands_that_do_not_fit(
    operands: tuple[TensorType, ...], bits: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"quantized_linear: .*{message}"):
        QuantizedLinear.infer(*operands, bits=bits)


def test_work_counts_packed_bytes() -> None:
    types = _t((2, 32)), W, S
    out = QuantizedLinear.infer(*types, bits=4)
    found = work_of(QuantizedLinear, types, (out,), {"bits": 4})
    assert found == (2 * 32 * 4 + 6 * 16 + 6 * 4 * 4 + 2 * 6 * 4, 2 * 2 * 32 * 6)


@pytest.mark.parametrize(("groups", "num_ranks", "is_listed"), [(4, 2, 1), (4, 3, 0), (1, 2, 1)])
def test_inputs_are_split_between_groups_only(groups: int, num_ranks: int, is_listed: int) -> None:
    types = _t((2, 32)), W, _t((6, groups))
    listed = [str(s) for s in QuantizedLinear.sbp_for(num_ranks, *types, bits=4)]
    split = f"S(1) S(1) {'S(1)' if groups > 1 else 'B'} -> P"
    assert listed.count(split) == is_listed, listed
    floats = [str(s) for s in Dequantize.sbp_for(num_ranks, *types[1:], bits=4)]
    assert floats.count(split.removeprefix("S(1) ").replace("P", "S(1)")) == is_listed, floats


def test_types_of_a_meta_call() -> None:
    x = flow.empty(3, 32, device="meta")
    weight = flow.empty(6, 16, dtype=flow.uint8, device="meta")
    scales = flow.empty(6, 4, device="meta")
    assert quantized_linear(x, weight, scales, bits=4).shape == (3, 6)
    assert type_of(np.zeros((6, 32), np.float32)) == dequantize(weight, scales, bits=4).meta
