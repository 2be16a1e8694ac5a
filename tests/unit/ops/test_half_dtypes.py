"""float16 and bfloat16 give the values of float64, within their precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from oneflow.core.dtype import bfloat16, dtype_of, float16

from .numpy_mode import run_whole, type_of
from .sample import Sample, named
from .samples import ARITHMETIC

EPSILON = {float16: 2.0**-10, bfloat16: 2.0**-7}
JUMPY = {
    "floor_divide",
    "fmod",
    "scalar_fmod",
    "scalar_floor_divide",
    "cast",
    "cumprod",
    "sort",
    "topk",
}
"""A rounded input may fall on the other side of a jump, or errors grow."""


def _float_samples() -> list[Sample]:
    return [
        s
        for s in ARITHMETIC
        if s.reference and s.op not in JUMPY and any(x.dtype == np.float64 for x in s.inputs)
    ]


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("sample", named(_float_samples()))
def test_half_floats_agree_with_the_reference(sample: Sample, half: type) -> None:
    assert sample.reference is not None
    inputs = sample.inputs_as(half)
    exact = tuple(x.astype(np.float64) if type_of(x).dtype.is_floating_point else x for x in inputs)
    with np.errstate(all="ignore"):
        want = sample.reference(*exact, **sample.attrs)
    want = want if isinstance(want, tuple) else (want,)
    epsilon = EPSILON[dtype_of(np.dtype(half))]
    for got, expected in zip(run_whole(sample.op, inputs, sample.attrs), want, strict=True):
        if not type_of(got).dtype.is_floating_point:
            np.testing.assert_array_equal(got, expected)
            continue
        assert got.dtype == half
        np.testing.assert_allclose(
            got.astype(np.float64), expected, rtol=8 * epsilon, atol=8 * epsilon
        )


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_sums_of_half_floats_do_not_stop_growing(half: type) -> None:
    ones = np.ones((4096, 3), half)
    (total,) = run_whole("reduce_sum", (ones,), {"dims": (0,)})
    np.testing.assert_array_equal(total.astype(np.float64), [4096.0] * 3)


@pytest.mark.parametrize("half", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_gradient_of_an_embedding_is_summed_in_float32(half: type) -> None:
    d = np.ones((2048, 8), half)
    index = np.zeros(2048, np.int64)
    (total,) = run_whole("gather_grad", (d, index), {"dim": 0, "size": 2})
    np.testing.assert_array_equal(total.astype(np.float64), [[2048.0] * 8, [0.0] * 8])
