"""One index for whole rows, as `x[rows] = y` has it, gives the values of an index for each
element.
"""

from __future__ import annotations

import numpy as np
import pytest

from .run_kernel import run


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", ["dim_gather", "dim_scatter", "dim_scatter_add"])
def test_rows_with_one_index(name: str, dim: int, rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 5, 6))
    shape = tuple(3 if i == dim else n for i, n in enumerate(x.shape))
    rows = np.array([3, 0, 3]).reshape([3 if i == dim else 1 for i in range(3)])
    index = np.broadcast_to(rows, shape)
    given = [rng.normal(size=shape)] * (name != "dim_gather")
    (each,) = run(name, x, index.copy(), *given, dim=dim)
    (whole,) = run(name, x, index, *given, dim=dim)
    np.testing.assert_array_equal(whole, each)
    want = np.take_along_axis(x, index, dim)
    if name == "dim_gather":
        np.testing.assert_array_equal(whole, want)
