from __future__ import annotations

import os
import socket
import warnings
from pathlib import Path

import numpy as np
import pytest

from oneflow.core.errors import ArgumentError, DTypeError, RowStoreError, ShapeError
from oneflow.core.metrics import Metrics
from oneflow.core.metrics_samples import Aggregator, Exporter
from oneflow.one_embedding.store import statistics
from oneflow.one_embedding.store.disk_tier import DiskTier
from oneflow.one_embedding.store.index import Index, in_order
from oneflow.one_embedding.store.options import make_device_mem_store_options
from oneflow.one_embedding.store.persistent_table import make_persistent_table_writer
from oneflow.one_embedding.store.row_log import RowLayout
from oneflow.one_embedding.store.row_store import open_store

from .stores import INITIAL, KINDS, LINE, Expected, keys_of, opened, options_of, rows_of, train

BOTH = pytest.mark.parametrize("kind", KINDS)


@BOTH
def test_rows_are_created_once_and_keep_what_is_put(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
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
    narrow = np.empty((3, 2), np.float32)
    store.get(keys, tables, narrow)
    np.testing.assert_array_equal(narrow, found[:, :2])


@BOTH
def test_an_update_makes_rows_and_one_that_fails_changes_none(kind: str, tmp_path: Path) -> None:
    store, keys, tables = opened(kind, tmp_path), keys_of(3, 8), np.zeros(2, np.int32)
    first = np.empty((2, 4), np.float32)
    INITIAL.fill(keys, tables, first)

    def refuse(rows: np.ndarray) -> None:
        np.testing.assert_array_equal(rows, first)
        rows[:] = 0
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        store.update(keys, tables, refuse)
    np.testing.assert_array_equal(rows_of(store, keys), first)


@BOTH
def test_one_id_in_two_tables_is_two_rows(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    store.put(keys_of(1), np.array([1], np.int32), np.full((1, 4), 7, np.float32))
    assert (rows_of(store, keys_of(1), 1) == 7).all()
    assert not (rows_of(store, keys_of(1), 0) == 7).any()
    assert len(store) == 2


@BOTH
def test_a_store_holds_what_a_dictionary_would(
    kind: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    store, expected = opened(kind, tmp_path), Expected()
    train(store, expected, rng, steps=30)
    expected.check(store)


def test_rows_leave_the_cache_and_come_back(tmp_path: Path, rng: np.random.Generator) -> None:
    store, expected = opened("disk", tmp_path), Expected()
    train(store, expected, rng, steps=40)
    counted = store.statistics
    assert isinstance(store._tier, DiskTier)
    assert counted.created == len(store) > 5 * store._tier.num_lines
    assert counted.lookups == counted.created + counted.memory_hits + counted.disk_hits
    assert min(counted.disk_hits, counted.memory_hits, counted.evicted) > 0


def test_stale_rows_give_their_room_back(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowLayout, "file_rows", 64)  # two units
    store, expected = opened("disk", tmp_path), Expected()
    train(store, expected, rng, steps=120)
    expected.check(store)
    assert store._log.num_slots <= 2 * len(store) + 5 * 64
    store.save_snapshot("last")
    assert len(list(tmp_path.glob("0-1/*.rows"))) <= 2 * len(store) // 64 + 6
    store.load_snapshot("last")
    expected.check(store)


def test_more_ids_than_the_capacity_are_refused_and_none_is_created(tmp_path: Path) -> None:
    options = options_of("memory", tmp_path, capacity=3)
    store = open_store(options, key_type="int64", line_size=4, initial=INITIAL)
    rows_of(store, keys_of(1, 2))
    with pytest.raises(RowStoreError, match=r"2 rows are there and 2 new ids .* capacity is 3"):
        rows_of(store, keys_of(1, 3, 4))
    assert len(store) == 2
    rows_of(store, keys_of(3))


def test_wrong_arrays_are_refused(tmp_path: Path) -> None:
    store = opened("memory", tmp_path)
    out, tables = np.empty((1, 4), np.float32), np.zeros(1, np.int32)
    with pytest.raises(DTypeError, match=r"uint64\[n\], not int64\[1\]"):
        store.get(np.zeros(1, np.int64), tables, out)
    with pytest.raises(DTypeError, match="tables of 1 keys"):
        store.get(keys_of(1), np.zeros(2, np.int32), out)
    with pytest.raises(ShapeError, match=r"float32\[1, 4\], not float32\[1, 3\]"):
        store.put(keys_of(1), tables, np.empty((1, 3), np.float32))
    with pytest.raises(ShapeError, match=r"float32\[1, 4\], not float32\[1, 5\]"):
        store.get(keys_of(1), tables, np.empty((1, 5), np.float32))
    with pytest.raises(ArgumentError, match="has 2 tables"):
        store.get(keys_of(1), tables + 2, out)


def test_wrong_openings_are_refused(tmp_path: Path) -> None:
    options = options_of("memory", tmp_path)
    with pytest.raises(DTypeError, match="ids of float32"):
        open_store(options, key_type="float32", line_size=4, initial=INITIAL)
    with pytest.raises(ArgumentError, match="rows of 5 numbers, but 4 first values"):
        open_store(options, key_type="int64", line_size=5, initial=INITIAL)


def test_a_folder_has_one_run_at_a_time_which_the_error_names(tmp_path: Path) -> None:
    first = opened("memory", tmp_path)
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(RowStoreError, match=f"in use by another run, {owner} since .*stop it"):
        opened("disk", tmp_path)
    with pytest.raises(RowStoreError, match=owner):
        make_persistent_table_writer(str(tmp_path / "0-1"), "a", "int64", "float32", LINE)
    first.close()
    opened("disk", tmp_path).close()


def test_a_lock_that_a_dead_process_left_is_taken_over(tmp_path: Path) -> None:
    opened("memory", tmp_path).close()
    (tmp_path / "0-1" / "lock").write_text("process 1 on another since long ago")
    with (
        opened("memory", tmp_path),
        pytest.raises(RowStoreError, match=f"process {os.getpid()} on"),
    ):
        opened("memory", tmp_path)


def test_a_fork_keeps_no_folder(tmp_path: Path) -> None:
    store = opened("memory", tmp_path)
    said, say = os.pipe()
    ends, end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the fork runs no other thread's code
        child = os.fork()
    if not child:
        os.close(end)
        os.write(say, b".")
        os.read(ends, 1)  # until the parent is done
        os._exit(0)
    try:
        assert os.read(said, 1) == b"."
        store.close()
        opened("memory", tmp_path).close()
    finally:
        for handle in (said, say, ends, end):
            os.close(handle)
        os.waitpid(child, 0)


@BOTH
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_read_only_store_reads_beside_the_run_that_trains(
    kind: str, num_ranks: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    store, expected = opened("disk", tmp_path, num_ranks=num_ranks), Expected()
    if num_ranks == 2:  # the rows of both ranks, which one rank reads
        with opened("disk", tmp_path, rank=1, num_ranks=2) as other:
            other.save_snapshot("a", 1)
    train(store, expected, rng, steps=5)
    store.save_snapshot("a", 1)
    options = options_of(kind, tmp_path, capacity=1)
    options["kv_store"]["persistent_table"]["read_only"] = True
    reader = open_store(options, key_type="int64", line_size=LINE, initial=INITIAL)
    reader.load_snapshot("a")
    then = expected.copy()
    train(store, expected, rng, steps=5)
    store.save_snapshot("a", 2)  # whose files replace those that the reader has open
    files = sorted(tmp_path.rglob("*"))
    ids = rng.permutation(1000)
    keys, tables = (ids // 2).astype(np.uint64), (ids % 2).astype(np.int32)
    out = np.empty((ids.size, 3), np.float32)
    for _ in range(2):  # of ids that have no row none is kept
        reader.get(keys, tables, out)
        np.testing.assert_array_equal(out, then.copy().get(keys, tables)[:, :3])
    assert len(reader) == len(then.rows) and sorted(tmp_path.rglob("*")) == files
    for act in (
        lambda: reader.save_snapshot("b"),
        lambda: reader.put(keys, tables, np.empty((ids.size, LINE), np.float32)),
        lambda: reader.update(keys, tables, lambda rows: None),
    ):
        with pytest.raises(RowStoreError, match="is opened read-only: its rows cannot be changed"):
            act()
    reader.close()


def test_a_store_without_a_path_leaves_no_files() -> None:
    options = make_device_mem_store_options("", capacity=10)
    store, other = (
        open_store(options, key_type="int64", line_size=4, initial=INITIAL) for _ in range(2)
    )
    folder = store.options.folder
    assert folder != other.options.folder and folder.exists()
    store.close()
    del store
    assert not folder.parent.exists()


def test_metrics_show_what_stores_did(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    monkeypatch.setattr(statistics, "METRICS", metrics)
    store = opened("disk", tmp_path)
    train(store, Expected(), rng, steps=10)
    counted = store.statistics
    assert metrics.lookups["disk", "hit"] == counted.disk_hits > 0
    assert metrics.lookups["host", "hit"] == counted.memory_hits > 0
    assert metrics.lookups["host", "miss"] == len(store)
    assert metrics.row_nbytes["host", "read"] == 4 * LINE * counted.lookups
    assert metrics.rows_queued[()] == counted.queued > 0
    store.save_snapshot("a")
    assert metrics.row_nbytes["disk", "write"] >= 4 * LINE * len(store)
    assert metrics.rows_queued[()] == 0
    assert metrics.row_stall_seconds[()] == counted.stall_s > 0
    shown = Metrics()
    Aggregator(shown, "job").take(Exporter(metrics).news())
    assert shown.row_nbytes == metrics.row_nbytes
    assert shown.row_stall_seconds == metrics.row_stall_seconds


def test_items_stand_in_the_order_of_their_hashes_then_of_their_making() -> None:
    index, rng = Index(), np.random.default_rng(0)
    keys, tables = rng.permutation(5000).astype(np.uint64), rng.integers(0, 9, 5000, np.int32)
    index.assign(keys, tables, np.arange(5000))
    listed = [np.concatenate(parts) for parts in zip(*index.entries(), strict=True)]
    mixed = rng.permutation(5000)
    found = in_order(keys[mixed], tables[mixed], mixed)
    for a, b in zip(listed, zip(*found, strict=True), strict=True):
        np.testing.assert_array_equal(np.concatenate(b), a)
    places = np.argsort(listed[2])
    np.testing.assert_array_equal(listed[0][places], keys)
