from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oneflow.core.dtype import float32, float64, int64
from oneflow.core.errors import DTypeError, RowStoreError, ShapeError
from oneflow.kernels.fused.rows import number
from oneflow.one_embedding.store.owners import owners_of
from oneflow.one_embedding.store.persistent_table import (
    PersistentTableWriter,
    make_persistent_table_reader,
    make_persistent_table_writer,
)
from oneflow.ops.one_embedding import BUCKETS

from .stores import LINE, opened, rows_of

IDS = np.array([-5, 0, 7, 2**62, 7], np.int64)
ROWS = np.arange(5 * LINE, dtype=np.float32).reshape(5, LINE)
LAST = {-5: ROWS[0], 0: ROWS[1], 2**62: ROWS[3], 7: ROWS[4]}  # the later row of an id counts


def folders_of(folder: Path, num_ranks: int) -> list[str]:
    return [str(folder / f"{rank}-{num_ranks}") for rank in range(num_ranks)]


def writer_of(folder: Path, num_ranks: int = 1, key_type: str = "int64") -> PersistentTableWriter:
    paths = folders_of(folder, num_ranks)
    return make_persistent_table_writer(paths, "a", key_type, float32, LINE, 512)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_what_was_written_is_read(num_ranks: int, tmp_path: Path) -> None:
    with writer_of(tmp_path, num_ranks) as writer:
        writer.write(IDS[:3], ROWS[:3])
        writer.write(IDS[3:], ROWS[3:])
    paths = folders_of(tmp_path, num_ranks)
    found = {}
    with make_persistent_table_reader(paths, "a", int64, "float32", LINE) as reader:
        for ids, rows in reader:
            assert ids.dtype == np.int64
            assert not reader.tables.any()
            found |= dict(zip(ids.tolist(), rows, strict=True))
    assert found.keys() == LAST.keys()
    for key, row in LAST.items():
        np.testing.assert_array_equal(found[key], row)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_store_loads_what_was_written(num_ranks: int, tmp_path: Path) -> None:
    tables = np.array([0, 0, 0, 0, 1])
    with writer_of(tmp_path, num_ranks) as writer:
        writer.write(IDS, ROWS, tables)
    found = []
    for rank in range(num_ranks):
        with opened("disk", tmp_path, rank=rank, num_ranks=num_ranks) as store:
            store.load_snapshot("a")
            for keys, of, rows in store.items():
                pairs = zip(keys.view(np.int64).tolist(), of.tolist(), rows.tolist(), strict=True)
                found += list(pairs)
    expected = zip(IDS.tolist(), tables.tolist(), ROWS.tolist(), strict=True)
    assert sorted(found) == sorted(expected)


def test_the_rows_of_a_store_are_read(tmp_path: Path) -> None:
    with opened("memory", tmp_path) as store:
        expected = rows_of(store, np.arange(4, dtype=np.uint64), 1)
        store.save_snapshot("a")
    reader = make_persistent_table_reader(str(tmp_path / "0-1"), "a", "int64", "float", LINE)
    ids, rows = map(np.concatenate, zip(*reader, strict=True))
    np.testing.assert_array_equal(rows[np.argsort(ids)], expected)


def test_a_writer_that_fails_leaves_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"float32\[5, 4\], not float32\[5, 3\]"):  # noqa: SIM117
        with writer_of(tmp_path) as writer:
            writer.write(IDS, ROWS)
            writer.write(IDS, ROWS[:, :3])
    assert not list(tmp_path.glob("0-1/*.rows"))
    with pytest.raises(RowStoreError, match=r"a\.json: there is no such snapshot"):
        make_persistent_table_reader(folders_of(tmp_path, 1), "a", int64, float32, LINE)


def test_other_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="ids of float32"):
        writer_of(tmp_path, key_type="float32")
    with pytest.raises(DTypeError, match="a persistent table holds float32"):
        make_persistent_table_writer(folders_of(tmp_path, 1), "a", int64, float64, LINE)
    with (
        writer_of(tmp_path) as writer,
        pytest.raises(DTypeError, match=r"are int64\[n\], not int32\[5\]"),
    ):
        writer.write(IDS.astype(np.int32), ROWS)
    with pytest.raises(RowStoreError, match="has rows of 4 numbers, this store of 5"):
        make_persistent_table_reader(folders_of(tmp_path, 1), "a", int64, float32, 5)


def test_ranks_own_equal_shares_of_the_ids() -> None:
    keys, tables = np.arange(60_000, dtype=np.uint64), np.zeros(60_000, np.int32)
    counts = np.bincount(owners_of(keys, tables, 6))
    assert np.abs(counts - 10_000).max() < 500
    assert (owners_of(keys, tables + 1, 6) != owners_of(keys, tables, 6)).mean() > 0.8


def test_owners_are_those_by_which_batches_are_parted() -> None:
    keys, tables = np.arange(-50, 50), np.arange(100, dtype=np.int32) % 3
    found, inverse = np.empty((2, 100), np.int64)
    found_tables, buckets = np.empty((2, 100), np.int32)
    slots = np.zeros(256, np.int32)
    number(
        keys, tables, False, 0, 0, BUCKETS, BUCKETS, slots, found, found_tables, buckets, inverse
    )
    np.testing.assert_array_equal(found, keys)
    owners = owners_of(keys.view(np.uint64), tables, 5)
    np.testing.assert_array_equal(owners, buckets * 5 // BUCKETS)
