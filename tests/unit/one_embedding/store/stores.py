"""Small stores, and plain dictionaries beside which they are checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from oneflow.one_embedding.store.initial import Column, InitialRows
from oneflow.one_embedding.store.options import (
    Options,
    make_cached_ssd_store_options,
    make_device_mem_store_options,
)
from oneflow.one_embedding.store.row_store import RowStore, open_store

INITIAL = InitialRows(5, [[Column(3, "uniform", -1.0, 1.0)]] * 2, (0.25,))
LINE = INITIAL.line_size
KINDS = ("memory", "disk")
CACHE_LINES = 64  # the fewest that a cache has


def options_of(kind: str, folder: Path, capacity: int = 100_000) -> Options:
    """Options of a store in memory, or on a disk behind the smallest cache."""
    if kind == "memory":
        return make_device_mem_store_options(str(folder), capacity, physical_block_size=512)
    made = make_cached_ssd_store_options(1, str(folder), capacity, physical_block_size=512)
    made["kv_store"]["caches"][0]["cache_memory_budget_mb"] = 1e-3
    return made


def opened(kind: str, folder: Path, *, rank: int = 0, num_ranks: int = 1) -> RowStore:
    options = options_of(kind, folder)
    return open_store(
        options, key_type="int64", line_size=LINE, initial=INITIAL, rank=rank, num_ranks=num_ranks
    )


def keys_of(*ids: int) -> np.ndarray:
    return np.array(ids, np.uint64)


def rows_of(store: RowStore, keys: np.ndarray, table: int = 0) -> np.ndarray:
    out = np.empty((keys.size, store.line_size), np.float32)
    store.get(keys, np.full(keys.size, table, np.int32), out)
    return out


class Expected:
    """The rows that a store must hold."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], np.ndarray] = {}

    def get(self, keys: np.ndarray, tables: np.ndarray) -> np.ndarray:
        made = np.empty((keys.size, LINE), np.float32)
        INITIAL.fill(keys, tables, made)
        pairs = zip(tables.tolist(), keys.tolist(), strict=True)
        return np.stack([self.rows.setdefault(p, made[i]) for i, p in enumerate(pairs)])

    def put(self, keys: np.ndarray, tables: np.ndarray, rows: np.ndarray) -> None:
        for i, pair in enumerate(zip(tables.tolist(), keys.tolist(), strict=True)):
            self.rows[pair] = rows[i].copy()

    def copy(self) -> Expected:
        made = Expected()
        made.rows = dict(self.rows)
        return made

    def check(self, store: RowStore) -> None:
        """The store has these rows and no others."""
        found = {}
        for keys, tables, rows in store.items(batch_rows=100):
            for key, table, row in zip(keys.tolist(), tables.tolist(), rows, strict=True):
                assert (table, key) not in found
                found[table, key] = row
        assert found.keys() == self.rows.keys()
        for pair, row in self.rows.items():
            np.testing.assert_array_equal(found[pair], row, str(pair))
        assert len(store) == len(found)


def train(
    store: RowStore, expected: Expected, rng: np.random.Generator, *, steps: int, num_ids: int = 400
) -> None:
    """Look rows up and change half of them, `steps` times, as training does."""
    for _ in range(steps):
        ids = rng.choice(2 * num_ids, rng.integers(1, 3 * CACHE_LINES), replace=False)
        keys, tables = (ids // 2).astype(np.uint64), (ids % 2).astype(np.int32)
        out = np.empty((keys.size, LINE), np.float32)
        store.get(keys, tables, out)
        np.testing.assert_array_equal(out, expected.get(keys, tables))
        half = slice(keys.size // 2)
        changed = out[half] + rng.standard_normal((keys[half].size, LINE), np.float32)
        store.put(keys[half], tables[half], changed)
        store.update(keys[half], tables[half], _double)
        expected.put(keys[half], tables[half], 2 * changed)


def _double(rows: np.ndarray) -> None:
    rows *= 2
