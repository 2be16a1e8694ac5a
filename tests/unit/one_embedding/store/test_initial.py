from __future__ import annotations

import numpy as np
import pytest

from oneflow.core.draws import mix_seed
from oneflow.core.errors import ArgumentError
from oneflow.core.rng import philox
from oneflow.one_embedding.store.initial import Column, InitialRows


def first_values(initial: InitialRows, keys: list[int], table: int) -> np.ndarray:
    out = np.full((len(keys), initial.line_size), np.nan, np.float32)
    initial.fill(np.array(keys, np.uint64), np.full(len(keys), table, np.int32), out)
    return out


UNIFORM = InitialRows(7, [[Column(3, "uniform", -1.0, 2.0)], [Column(3, "constant", 4.0)]], (0.5,))


def test_a_row_depends_on_seed_table_and_id_alone() -> None:
    keys = [5, 2**64 - 1, 0, 77]
    whole = first_values(UNIFORM, keys, 0)
    for i, key in enumerate(keys):
        np.testing.assert_array_equal(first_values(UNIFORM, [key], 0)[0], whole[i])
    assert len(np.unique(whole[:, :3])) == 12
    other = InitialRows(8, UNIFORM.tables, UNIFORM.state)
    assert not np.isin(first_values(other, keys, 0)[:, :3], whole).any()


def test_uniform_numbers_are_philox_of_the_row_and_the_place_in_it() -> None:
    high, low = philox(mix_seed(7, 0), np.array([77], np.uint64))
    index = (int(high[0]) << 32 | int(low[0])) + np.arange(3, dtype=np.uint64)
    words = philox(mix_seed(7, 0, 1), index)
    unit = ((words[0].astype(np.uint64) << 21) ^ (words[1].astype(np.uint64) >> 11)) / 2.0**53
    found = first_values(UNIFORM, [77], 0)[0]
    np.testing.assert_array_equal(found[:3], (-1 + 3 * unit).astype(np.float32))


def test_tables_have_their_own_columns_and_states_follow() -> None:
    tables = np.array([1, 0, 1], np.int32)
    out = np.empty((3, 4), np.float32)
    UNIFORM.fill(np.array([1, 1, 2], np.uint64), tables, out)
    np.testing.assert_array_equal(out[[0, 2]], [[4, 4, 4, 0.5]] * 2)
    np.testing.assert_array_equal(out[1], first_values(UNIFORM, [1], 0)[0])


@pytest.mark.parametrize(
    ("column", "mean", "std"),
    [
        (Column(8, "normal", 1.0, 0.5), 1.0, 0.5),
        (Column(8, "uniform", -1.0, 1.0), 0.0, 1 / 3**0.5),
        # A standard normal number between -1 and 1 has variance 1 - 2 phi(1) / (Phi(1) - Phi(-1)).
        (Column(8, "trunc_normal", 2.0, 3.0, -1.0, 5.0), 2.0, 3 * 0.29112509**0.5),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_numbers_have_the_asked_distribution(column: Column, mean: float, std: float) -> None:
    rows = first_values(InitialRows(3, [[column]]), list(range(10_000)), 0)
    assert abs(rows.mean(dtype=np.float64) - mean) < 0.02 * std
    assert abs(rows.std(dtype=np.float64) / std - 1) < 0.01
    assert rows.min() >= column.low
    assert rows.max() <= column.high


def test_large_and_small_batches_draw_the_same_numbers() -> None:
    normal = InitialRows(1, [[Column(16, "normal", 0.0, 1.0)]])
    whole = first_values(normal, list(range(2000)), 0)
    np.testing.assert_array_equal(first_values(normal, [1999], 0)[0], whole[1999])


def test_unusable_initializers_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no initializer 'orthogonal'"):
        Column(2, "orthogonal")
    with pytest.raises(ArgumentError, match="widen the bounds"):
        Column(2, "trunc_normal", 0.0, 1.0, 8.0, 9.0)
    with pytest.raises(ArgumentError, match="one width"):
        InitialRows(0, [[Column(2, "constant")], [Column(3, "constant")]])
