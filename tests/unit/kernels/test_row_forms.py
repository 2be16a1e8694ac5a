"""Forms in which rows travel between ranks, against rounding in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oneflow.kernels.row_forms import Loss, decoded, encoded

ROWS = np.random.default_rng(0).normal(size=(50, 7)) * np.logspace(-12, 12, 50)[:, None]
ROWS = ROWS.astype(np.float32)


def test_bytes_with_a_scale_of_each_row() -> None:
    sent = encoded(ROWS, "int8")
    assert sent.dtype == np.int8 and sent.shape == (50, 9)
    scales = np.ascontiguousarray(sent[:, -2:]).view(ml_dtypes.bfloat16).astype(np.float64)
    largest = np.abs(ROWS.astype(np.float64)).max(1, keepdims=True)
    assert (scales >= largest / 127).all() and (scales <= largest / 127 * (1 + 2**-7)).all()
    np.testing.assert_allclose(sent[:, :-2], ROWS / scales, atol=0.5001)
    back = decoded(sent, "int8")
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, (sent[:, :-2] * scales).astype(np.float32))
    assert (np.abs(back - ROWS.astype(np.float64)) <= scales * 0.5001).all()


def test_halves_are_rounded_as_numpy_rounds() -> None:
    small = ROWS[20:30]
    np.testing.assert_array_equal(encoded(small, "float16"), small.astype(np.float16))
    np.testing.assert_array_equal(
        decoded(encoded(small, "float16"), "float16"), small.astype(np.float16).astype(np.float32)
    )


def test_rows_as_they_are_are_not_copied() -> None:
    assert encoded(ROWS, "float32") is ROWS and decoded(ROWS, "float32") is ROWS


@pytest.mark.parametrize("communication", ["float16", "int8"])
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_what_is_no_number_stays_none_and_harms_no_other_row(odd: Any, communication: str) -> None:
    rows = np.ones((3, 4), np.float32)
    rows[1, 2] = odd
    back = decoded(encoded(rows, communication), communication)
    assert not np.isfinite(back[1, 2])
    np.testing.assert_allclose(back[[0, 2]], 1.0, rtol=1e-2)


@pytest.mark.parametrize("communication", ["float16", "int8"])
def test_zeros_and_no_rows(communication: str) -> None:
    zeros = np.zeros((2, 5), np.float32)
    np.testing.assert_array_equal(decoded(encoded(zeros, communication), communication), zeros)
    assert decoded(encoded(zeros[:0], communication), communication).shape == (0, 5)


def test_the_loss_is_the_share_of_what_was_rounded_away() -> None:
    loss, rows = Loss(), np.array([[1.0, 0.3], [0.5, -0.2]], np.float32)
    sent = encoded(rows, "int8")
    loss.add(rows, "int8", sent)
    gone = rows.astype(np.float64) - decoded(sent, "int8")
    want = np.sqrt((gone**2).sum() / (rows.astype(np.float64) ** 2).sum())
    assert loss.relative == pytest.approx(want) and 0 < loss.relative < 0.01
    assert Loss().relative == 0.0
