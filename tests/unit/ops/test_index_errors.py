"""Indices outside a dim are errors, except on a shard, where they lie on another rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oneflow.core.op import Box, find_op

from .numpy_mode import bind_whole, run_bound, run_whole

X = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("bad", [-1, 4])
def test_gather_outside_the_dim_is_an_error(bad: int) -> None:
    with pytest.raises(IndexError, match="positions 0 to 3"):
        run_whole("gather", (X, np.array([0, bad])), {"dim": 0})


@pytest.mark.parametrize("bad", [-1, 4])
def test_dim_gather_outside_the_dim_is_an_error(bad: int) -> None:
    index = np.full((1, 3), bad)
    with pytest.raises(IndexError, match="positions 0 to 3"):
        run_whole("dim_gather", (X, index), {"dim": 0})


def test_rows_of_other_shards_are_zero() -> None:
    inputs = X, np.array([1, 5, 6, 9])
    whole = bind_whole("gather", inputs, {"dim": 0})
    (got,) = run_bound(replace(whole, keywords=whole.keywords | {"offset": 5}), inputs)
    np.testing.assert_array_equal(got, [[0, 0, 0], X[0], X[1], [0, 0, 0]])


def test_a_whole_table_is_checked_after_localizing_too() -> None:
    op = find_op("gather")
    assert op.localize is not None
    whole, shard = Box((0, 0), (4, 3)), Box((4, 0), (8, 3))
    assert op.localize({"dim": 0, "size": 4}, (whole,), (whole,)) == {"dim": 0, "size": 4}
    assert op.localize({"dim": 0, "size": 8}, (shard,), (whole,))["offset"] == 4
