"""Large selections take a fused kernel: for every dtype and every way in which a mask repeats."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .numpy_mode import run_whole

SHAPE = (4, 8, 32, 32)
CONDITION = np.random.default_rng(0).random(SHAPE) < 0.5
DTYPES = [
    "float32",
    "float64",
    "float16",
    ml_dtypes.bfloat16,
    "int64",
    "int8",
    "bool",
    "complex128",
]


def _values(dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(seed).normal(size=SHAPE) * 3).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_where_equals_numpy(dtype: Any) -> None:
    x, y = _values(dtype, 1), _values(dtype, 2)
    np.testing.assert_array_equal(
        run_whole("where", (CONDITION, x, y), {})[0], np.where(CONDITION, x, y)
    )


@pytest.mark.parametrize("dtype", DTYPES[:-1], ids=str)
@pytest.mark.parametrize(
    "part",
    [(), (0, 0), (0, slice(1)), (slice(None), slice(1)), (0, 0, 0), (..., slice(1))],
    ids=str,
)
def test_masked_fill_equals_numpy(dtype: Any, part: Any) -> None:
    x, mask = _values(dtype, 1), CONDITION[part]
    want = np.where(mask, np.asarray(1, x.dtype), x)
    np.testing.assert_array_equal(run_whole("masked_fill", (x, mask), {"value": 1})[0], want)


def test_masked_fill_by_one_bool() -> None:
    x = _values("float32", 1)
    for chosen in (False, True):
        (got,) = run_whole("masked_fill", (x, np.array(chosen)), {"value": -1.0})
        np.testing.assert_array_equal(got, np.full_like(x, -1.0) if chosen else x)


def test_threads_may_run_one_kernel_at_once() -> None:
    x, y = _values("float32", 1), _values("float32", 2)
    want = np.where(CONDITION, x, y)

    def run() -> bool:
        results = [run_whole("where", (CONDITION, x, y), {})[0] for _ in range(20)]
        return all((r == want).all() for r in results)

    with ThreadPoolExecutor(4) as pool:
        assert all(f.result() for f in [pool.submit(run) for _ in range(4)])
