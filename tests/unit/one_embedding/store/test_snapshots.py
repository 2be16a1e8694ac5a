from __future__ import annotations

import errno
import json
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from oneflow.core.errors import ArgumentError, RowDiskFullError, RowStoreError
from oneflow.one_embedding.store import row_log, row_memory
from oneflow.one_embedding.store.initial import Column, InitialRows
from oneflow.one_embedding.store.owners import owners_of
from oneflow.one_embedding.store.persistent_table import make_persistent_table_reader
from oneflow.one_embedding.store.row_store import open_store

from .stores import (
    CACHE_LINES,
    INITIAL,
    KINDS,
    LINE,
    Expected,
    keys_of,
    opened,
    options_of,
    rows_of,
    train,
)

BOTH = pytest.mark.parametrize("kind", KINDS)


@BOTH
def test_snapshots_hold_what_was_there_when_they_were_saved(
    kind: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    store, expected = opened(kind, tmp_path), Expected()
    kept = {}
    for name in ("a", "b", "c"):
        train(store, expected, rng, steps=8)
        store.save_snapshot(name)
        kept[name] = expected.copy()
    for name in ("b", "a", "c"):
        store.load_snapshot(name)
        kept[name].check(store)
    store.close()
    for other in KINDS:  # a new process, in memory or on a disk, reads them alike
        with opened(other, tmp_path) as again:
            again.load_snapshot("b")
            kept["b"].check(again)


@BOTH
def test_training_goes_on_from_an_older_snapshot(
    kind: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    store, expected = opened(kind, tmp_path), Expected()
    train(store, expected, rng, steps=8)
    store.save_snapshot("a")
    at_a = expected.copy()
    train(store, expected, rng, steps=8)
    store.save_snapshot("b")
    store.load_snapshot("a")
    branch = at_a.copy()
    train(store, branch, rng, steps=8)
    store.save_snapshot("c")
    for name, rows in (("a", at_a), ("b", expected), ("c", branch)):
        store.load_snapshot(name)
        rows.check(store)


@BOTH
def test_saving_under_one_name_keeps_the_last_and_little_else(
    kind: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    store, expected = opened(kind, tmp_path), Expected()
    for _ in range(12):
        train(store, expected, rng, steps=4)
        store.save_snapshot("last")
    store.close()
    with opened(kind, tmp_path) as again:
        again.load_snapshot("last")
        expected.check(again)
    assert len(list(tmp_path.glob("0-1/snapshots/*"))) == 1


def written_by(store_kind: str, folder: Path, num_rows: int, num_changed: int) -> tuple[int, int]:
    """Bytes that a full snapshot writes, and one after few rows changed."""
    store = opened(store_kind, folder)
    keys = np.arange(num_rows, dtype=np.uint64)
    rows_of(store, keys)
    store.save_snapshot("full")
    full = store.statistics.disk_nbytes_written
    tables = np.zeros(num_changed, np.int32)
    store.put(keys[:num_changed], tables, np.ones((num_changed, LINE), np.float32))
    store.save_snapshot("few")
    return full, store.statistics.disk_nbytes_written - full


@BOTH
def test_a_snapshot_writes_rows_that_changed_only(kind: str, tmp_path: Path) -> None:
    full, few = written_by(kind, tmp_path, num_rows=20_000, num_changed=200)
    assert full >= 20_000 * 4 * LINE
    assert few <= 0.05 * full


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 1), (2, 3)])
def test_a_snapshot_loads_on_another_number_of_ranks(
    before: int, after: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    keys, tables = np.arange(300, dtype=np.uint64), np.arange(300, dtype=np.int32) % 2
    rows = rng.standard_normal((300, LINE), np.float32)
    owners = owners_of(keys, tables, before)
    for rank in range(before):
        with opened("disk", tmp_path, rank=rank, num_ranks=before) as store:
            mine = owners == rank
            store.put(keys[mine], tables[mine], rows[mine])
            store.save_snapshot("a", moment_ns=1)
    owners = owners_of(keys, tables, after)
    for rank in range(after):
        with opened("memory", tmp_path, rank=rank, num_ranks=after) as store:
            store.load_snapshot("a")
            expected, mine = Expected(), owners == rank
            expected.put(keys[mine], tables[mine], rows[mine])
            expected.check(store)


def test_ranks_on_other_hosts_see_to_their_own_parts(tmp_path: Path) -> None:
    with opened("memory", tmp_path, rank=1, num_ranks=2) as store:
        rows = rows_of(store, keys_of(1, 2))
        store.save_snapshot("a", moment_ns=1)
    with opened("memory", tmp_path, rank=1, num_ranks=2) as store:
        store.load_snapshot("a")
        assert len(store) == 2
        np.testing.assert_array_equal(rows_of(store, keys_of(1, 2)), rows)


def test_parts_of_two_moments_are_never_mixed(tmp_path: Path) -> None:
    keys, tables = keys_of(1, 2), np.zeros(2, np.int32)
    stores = [opened("memory", tmp_path, rank=rank, num_ranks=2) for rank in range(2)]

    def save(moment_ns: int, ranks: int) -> None:
        for store in stores[:ranks]:
            store.put(keys, tables, np.full((2, LINE), moment_ns, np.float32))
            store.save_snapshot("a", moment_ns)

    save(1, ranks=2)
    save(2, ranks=1)  # and the other one was killed before it had saved
    for store in stores:
        store.load_snapshot("a")
        assert (rows_of(store, keys) == 1).all()
    save(3, ranks=2)
    for store in stores:
        store.load_snapshot("a")
        assert (rows_of(store, keys) == 3).all()
    with pytest.raises(ArgumentError, match="must agree on the moment"):
        stores[0].save_snapshot("b")


def test_missing_and_incomplete_snapshots_are_named(tmp_path: Path) -> None:
    first = opened("memory", tmp_path, rank=0, num_ranks=2)
    opened("memory", tmp_path, rank=1, num_ranks=2).close()
    with pytest.raises(RowStoreError, match=r"no snapshot 'a' in .*; there is none at all"):
        first.load_snapshot("a")
    first.save_snapshot("a", moment_ns=1)
    with pytest.raises(RowStoreError, match=r"of 2 ranks, \[1\] saved none; there are a"):
        first.load_snapshot("a")
    for name in ("", "../a", ".a"):
        with pytest.raises(ArgumentError, match="a name has neither / nor NUL"):
            first.save_snapshot(name)


@BOTH
def test_rows_of_another_kind_are_refused(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as store:
        rows_of(store, keys_of(1, 2))
        store.save_snapshot("a")
    options = options_of(kind, tmp_path)
    wide = InitialRows(5, [[Column(4, "constant")]], (0.25,))
    with (
        open_store(options, key_type="int64", line_size=5, initial=wide) as store,
        pytest.raises(RowStoreError, match="has rows of 4 numbers, this store of 5"),
    ):
        store.load_snapshot("a")
    with (
        open_store(options, key_type="int32", line_size=4, initial=INITIAL) as store,
        pytest.raises(RowStoreError, match="has ids of int64, this store of int32"),
    ):
        store.load_snapshot("a")


@BOTH
@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("*.rows", r"\.rows is torn: it has \d+ bytes, the snapshot \d+"),
        ("*.keys", r"\.keys is torn: its first \d+ ids are not those"),
        ("snapshots/a.json", r"a\.json is torn"),
    ],
)
def test_torn_files_are_named_and_the_rows_stay(
    kind: str, file: str, message: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    store, expected = opened(kind, tmp_path), Expected()
    train(store, expected, rng, steps=5)
    store.save_snapshot("a")
    train(store, expected, rng, steps=5)
    (path,) = tmp_path.glob(f"0-1/{file}")
    whole = path.read_bytes()
    other = tmp_path / "cut"  # the open file keeps its bytes, as what it was replaced by is torn
    other.write_bytes(whole[: len(whole) // 2])
    os.replace(other, path)
    with pytest.raises(RowStoreError, match=message):
        store.load_snapshot("a")
    train(store, expected, rng, steps=1)


def test_changed_ids_are_found_torn(tmp_path: Path) -> None:
    with opened("disk", tmp_path) as store:
        rows_of(store, keys_of(1, 2))
        store.save_snapshot("a")
        (path,) = tmp_path.glob("0-1/*.keys")
        path.write_bytes(bytes(path.stat().st_size))
        with pytest.raises(RowStoreError, match="is torn"):
            store.load_snapshot("a")


@BOTH
@pytest.mark.parametrize("place", [1, -2])
def test_changed_rows_are_found_where_they_are_read(
    kind: str, place: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    keys = np.arange(200, dtype=np.uint64)
    with opened(kind, tmp_path) as store:
        rows_of(store, keys)
        store.save_snapshot("a")
    (path,) = tmp_path.glob("0-1/*.rows")
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)
    with opened(kind, tmp_path) as store:

        def read() -> None:
            store.load_snapshot("a")
            rows_of(store, keys)

        with pytest.raises(RowStoreError, match=r"\.rows is torn: its bytes \d+ to \d+ changed"):
            read()
    reader = make_persistent_table_reader(str(tmp_path / "0-1"), "a", "int64", "float32", LINE)
    with reader, pytest.raises(RowStoreError, match=r"\.rows is torn: its bytes"):
        list(reader)


def as_version_1(folder: Path, name: str) -> None:
    """Rewrite a snapshot as it was before files of rows had checks."""
    path = folder / "snapshots" / f"{name}.json"
    said = json.loads(path.read_text())
    unit_rows = 512 // (4 * LINE)
    for extent in said["extents"]:
        del extent["has_checks"]
        keys = row_log.keys_path(folder, extent["number"])
        units = np.fromfile(keys, row_log.ID).reshape(-1, unit_rows + 1)
        data = units[:, :-1].tobytes()
        keys.write_bytes(data)
        extent["check"] = zlib.crc32(data[: extent["rows"] * row_log.ID.itemsize])
    path.write_text(json.dumps({**said, "version": 1}))


@BOTH
def test_snapshots_without_checks_are_read_and_gone_on_from(
    kind: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    expected = Expected()
    with opened(kind, tmp_path) as store:
        train(store, expected, rng, steps=5)
        store.save_snapshot("a")
    as_version_1(tmp_path / "0-1", "a")
    with opened(kind, tmp_path) as store:
        store.load_snapshot("a")
        expected.check(store)
        train(store, expected, rng, steps=1, num_ids=100)
        store.save_snapshot("b")
    said = json.loads((tmp_path / "0-1" / "snapshots" / "b.json").read_text())
    assert said["version"] == 2
    assert [extent["has_checks"] for extent in said["extents"]][:1] == [False]
    with opened(kind, tmp_path) as store:
        store.load_snapshot("b")
        expected.check(store)


@BOTH
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_more_rows_than_the_capacity_are_not_loaded(
    kind: str, num_ranks: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    rows = rng.standard_normal((300, LINE), np.float32)
    keys, tables = np.arange(300, dtype=np.uint64), np.zeros(300, np.int32)
    owners = owners_of(keys, tables, num_ranks)
    for rank in range(num_ranks):
        with opened(kind, tmp_path, rank=rank, num_ranks=num_ranks) as store:
            mine = owners == rank
            store.put(keys[mine], tables[mine], rows[mine])
            store.save_snapshot("a", moment_ns=1)
    options = options_of(kind, tmp_path, capacity=299)
    with open_store(options, key_type="int64", line_size=LINE, initial=INITIAL) as store:
        expected = Expected()
        expected.put(keys[:2], tables[:2], rows_of(store, keys[:2]))
        with pytest.raises(RowStoreError, match=r"'a' has 300 rows .* the capacity is 299 rows"):
            store.load_snapshot("a")
        expected.check(store)
    options = options_of(kind, tmp_path, capacity=300)
    with open_store(options, key_type="int64", line_size=LINE, initial=INITIAL) as store:
        store.load_snapshot("a")
        assert len(store) == 300


@BOTH
def test_a_full_disk_is_named_and_the_next_try_succeeds(
    kind: str, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, expected = opened(kind, tmp_path), Expected()
    train(store, expected, rng, steps=3)
    store.save_snapshot("a")
    before = expected.copy()
    train(store, expected, rng, steps=3)
    with monkeypatch.context() as patched:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, "pwrite", full)
        with pytest.raises(RowStoreError, match=r"the disk of .* is full"):
            store.save_snapshot("b")
    store.save_snapshot("b")
    train(store, expected.copy(), rng, steps=3)
    store.load_snapshot("b")
    expected.check(store)
    store.load_snapshot("a")
    before.check(store)


def test_a_disk_that_fills_up_in_training_loses_no_row(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_log, "WRITE_NBYTES", 1 << 10)  # rows go to the disk a few at a time
    store, expected = opened("disk", tmp_path), Expected()
    train(store, expected, rng, steps=5)
    with monkeypatch.context() as patched:

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        patched.setattr(os, "pwrite", full)
        first = np.zeros(CACHE_LINES // 2, np.int32)
        with pytest.raises(RowDiskFullError, match=r"the disk of .* is full.* make room"):
            for begin in range(10_000, 20_000, first.size):  # for which others must leave
                new = np.arange(begin, begin + first.size, dtype=np.uint64)
                rows_of(store, new)
                expected.get(new, first)
        for _ in range(2):
            with pytest.raises(RowDiskFullError, match="is full"):
                rows_of(store, new)
    expected.check(store)
    train(store, expected, rng, steps=5)
    store.save_snapshot("a")
    store.load_snapshot("a")
    expected.check(store)


def test_what_a_killed_process_left_is_removed(tmp_path: Path, rng: np.random.Generator) -> None:
    with opened("disk", tmp_path) as store:
        train(store, Expected(), rng, steps=8)
        store._log.sync()
    assert list(tmp_path.glob("0-1/*.rows"))
    opened("disk", tmp_path).close()
    assert not list(tmp_path.glob("0-1/*.rows"))


def test_many_changes_are_saved_as_few_are(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_memory, "_FEW_ROWS", 20)
    store, expected = opened("memory", tmp_path), Expected()
    for steps in (8, 1, 3):
        train(store, expected, rng, steps=steps)
        few = keys_of(1, 2, 3), np.zeros(3, np.int32), np.full((3, LINE), steps, np.float32)
        store.put(*few)
        expected.put(*few)
        store.save_snapshot("a")
        store.put(*few)
        store.save_snapshot("a")
    store.load_snapshot("a")
    expected.check(store)
