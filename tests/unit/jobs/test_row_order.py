"""The order of rows: permutations, equal for all ranks, able to go on anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from oneflow.jobs.order import BLOCK, Batches, Cursor, Order


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 16, 17, 1797, BLOCK + 7])
def test_each_epoch_has_every_row_once(num_rows: int) -> None:
    order = Order(num_rows, seed=7)
    for epoch in range(3):
        np.testing.assert_array_equal(np.sort(order.rows(epoch, 0, num_rows)), np.arange(num_rows))


def test_epochs_and_seeds_differ() -> None:
    rows = [Order(100, s).rows(e, 0, 100).tolist() for s in (1, 2) for e in (0, 1)]
    assert len({tuple(r) for r in rows}) == 4
    assert Order(100, None).rows(3, 10, 13).tolist() == [10, 11, 12]


def test_rows_land_everywhere_alike() -> None:
    """Chi-square over 1,000 seeds: 10 rows, 10 places, 81 degrees of freedom."""
    count = np.zeros((10, 10))
    for seed in range(1000):
        count[np.arange(10), Order(10, seed).rows(0, 0, 10)] += 1
    assert ((count - 100) ** 2 / 100).sum() < 81 + 4 * np.sqrt(2 * 81)


def test_parts_of_ranks_make_the_batch() -> None:
    batches = Batches(50, 8, seed=1, drop_last=False, epochs=0)
    cursor = Cursor()
    for _ in range(20):
        whole = batches.rows(cursor, 0, 8)
        parts = [batches.rows(cursor, 2 * r, 2 * r + 2) for r in range(4)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
        cursor = batches.after(cursor)


def test_without_dropping_nothing_is_lost() -> None:
    batches = Batches(50, 8, seed=1, drop_last=False, epochs=4)
    assert batches.count == 25
    rows = np.concatenate([batches.rows(batches.after(Cursor(), i), 0, 8) for i in range(25)])
    for epoch in range(4):
        np.testing.assert_array_equal(np.sort(rows[50 * epoch : 50 * epoch + 50]), np.arange(50))


@pytest.mark.parametrize(("epochs", "count"), [(1, 4), (3, 10)])
def test_the_last_batch_is_whole_and_no_row_is_left(epochs: int, count: int) -> None:
    batches = Batches(50, 16, seed=3, drop_last=False, epochs=epochs)
    assert batches.count == count
    found = [batches.rows(batches.after(Cursor(), i), 0, 16) for i in range(count)]
    assert {len(f) for f in found} == {16}
    seen = np.bincount(np.concatenate(found), minlength=50)
    assert seen.min() == epochs and seen.max() == epochs + 1  # of the epoch that would be next


def test_dropping_skips_what_is_no_whole_batch() -> None:
    batches = Batches(50, 8, seed=1, drop_last=True, epochs=2)
    assert batches.count == 12
    assert batches.after(Cursor(), 6) == Cursor(1, 0)
    rows = np.concatenate([batches.rows(batches.after(Cursor(), i), 0, 8) for i in range(6)])
    assert len(set(rows.tolist())) == 48


def test_a_cursor_goes_on_where_steps_would_be() -> None:
    batches = Batches(50, 8, seed=1, drop_last=False, epochs=0)
    cursor = Cursor()
    for i in range(30):
        assert cursor == batches.after(Cursor(), i)
        cursor = batches.after(cursor)
