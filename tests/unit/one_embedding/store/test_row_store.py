from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oneflow.core.errors import ArgumentError, DTypeError, RowStoreError, ShapeError
from oneflow.one_embedding.store.initial import Column, InitialRows
from oneflow.one_embedding.store.options import make_device_mem_store_options
from oneflow.one_embedding.store.row_store import RowStore, open_store

INITIAL = InitialRows(5, [[Column(3, "uniform", -1.0, 1.0)]] * 2, (0.25,))


def opened(folder: Path, capacity: int = 100) -> RowStore:
    options = make_device_mem_store_options(str(folder), capacity)
    return open_store(options, key_type="int64", line_size=4, initial=INITIAL)


def keys_of(*ids: int) -> np.ndarray:
    return np.array(ids, np.uint64)


def rows_of(store: RowStore, keys: np.ndarray, table: int = 0) -> np.ndarray:
    out = np.empty((keys.size, store.line_size), np.float32)
    store.get(keys, np.full(keys.size, table, np.int32), out)
    return out


def test_rows_are_created_once_and_keep_what_is_put(tmp_path: Path) -> None:
    store = opened(tmp_path)
    keys, tables = keys_of(9, 2**63 + 1, 4), np.array([0, 0, 1], np.int32)
    first = np.empty((3, 4), np.float32)
    INITIAL.fill(keys, tables, first)
    found = np.empty_like(first)
    store.get(keys, tables, found)
    np.testing.assert_array_equal(found, first)
    store.put(keys[:2], tables[:2], first[:2] + 1)
    store.get(keys, tables, found)
    np.testing.assert_array_equal(found, first + np.array([[1], [1], [0]], np.float32))
    assert len(store) == 3


def test_one_id_in_two_tables_is_two_rows(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put(keys_of(1), np.array([1], np.int32), np.full((1, 4), 7, np.float32))
    assert (rows_of(store, keys_of(1), 1) == 7).all()
    assert not (rows_of(store, keys_of(1), 0) == 7).any()
    assert len(store) == 2


def test_items_are_all_rows(tmp_path: Path) -> None:
    store = opened(tmp_path)
    keys = np.arange(50, dtype=np.uint64)
    rows = rows_of(store, keys, 1)
    batches = list(store.items(batch_rows=7))
    order = np.argsort(np.concatenate([batch[0] for batch in batches]))
    assert {t for batch in batches for t in batch[1].tolist()} == {1}
    np.testing.assert_array_equal(np.concatenate([batch[2] for batch in batches])[order], rows)


def test_more_ids_than_the_capacity_are_refused_and_none_is_created(tmp_path: Path) -> None:
    store = opened(tmp_path, capacity=3)
    rows_of(store, keys_of(1, 2))
    with pytest.raises(RowStoreError, match=r"2 rows are there and 2 new ids .* capacity is 3"):
        rows_of(store, keys_of(1, 3, 4))
    assert len(store) == 2
    rows_of(store, keys_of(3))


def test_wrong_arrays_are_refused(tmp_path: Path) -> None:
    store = opened(tmp_path)
    out, tables = np.empty((1, 4), np.float32), np.zeros(1, np.int32)
    with pytest.raises(DTypeError, match=r"uint64\[n\], not int64\[1\]"):
        store.get(np.zeros(1, np.int64), tables, out)
    with pytest.raises(DTypeError, match="tables of 1 keys"):
        store.get(keys_of(1), np.zeros(2, np.int32), out)
    with pytest.raises(ShapeError, match=r"float32\[1, 4\], not float32\[1, 3\]"):
        store.get(keys_of(1), tables, np.empty((1, 3), np.float32))
    with pytest.raises(ArgumentError, match="has 2 tables"):
        store.get(keys_of(1), tables + 2, out)


def test_wrong_openings_are_refused(tmp_path: Path) -> None:
    options = make_device_mem_store_options(str(tmp_path), 10)
    with pytest.raises(DTypeError, match="ids of float32"):
        open_store(options, key_type="float32", line_size=4, initial=INITIAL)
    with pytest.raises(ArgumentError, match="rows of 5 numbers, but 4 first values"):
        open_store(options, key_type="int64", line_size=5, initial=INITIAL)
