"""The rows of one rank by table and id: `open_store` and what it gives.

A row is a line of float32 numbers: the embedding, then the states that its optimizer keeps. Two
ids are the same row where table and 64 bits are the same, whatever the type of the keys.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.errors import ArgumentError, DTypeError, RowStoreError, ShapeError
from oneflow.one_embedding.store.initial import InitialRows
from oneflow.one_embedding.store.options import StoreOptions
from oneflow.one_embedding.store.statistics import StoreStatistics

Array: TypeAlias = "np.ndarray[Any, Any]"
Batch: TypeAlias = tuple[Array, Array, Array]
"""Keys (uint64[n]), tables (int32[n]) and rows (float32[n, line_size])."""

KEY_TYPES = ("int64", "uint64", "int32")
MOST_TABLES = 4095
_BATCH_ROWS = 1 << 16


def open_store(
    options: Mapping[str, Any],
    *,
    key_type: str,
    line_size: int,
    initial: InitialRows,
    rank: int = 0,
    num_ranks: int = 1,
) -> RowStore:
    """Open the store of one rank; it has no rows until they are looked up or loaded.

    options: of `make_*_store_options`.  key_type: one of KEY_TYPES, of the ids of scripts.
    line_size: numbers of a row, as many as `initial` gives.  Raises ArgumentError, DTypeError.
    """
    if key_type not in KEY_TYPES:
        raise DTypeError(f"ids of {key_type}: OneEmbedding takes {', '.join(KEY_TYPES)}")
    if line_size != initial.line_size:
        raise ArgumentError(f"rows of {line_size} numbers, but {initial.line_size} first values")
    if len(initial.tables) > MOST_TABLES:
        raise ArgumentError(f"{len(initial.tables)} tables in a store, {MOST_TABLES} are the most")
    return RowStore(StoreOptions.of(options, rank, num_ranks), key_type, initial)


class RowStore:
    """Rows of one rank. Calls of several threads wait for each other."""

    def __init__(self, options: StoreOptions, key_type: str, initial: InitialRows) -> None:
        self.options, self.key_type, self.initial = options, key_type, initial
        self.line_size = initial.line_size
        self.statistics = StoreStatistics()
        self._lock = threading.RLock()
        self._places: dict[tuple[int, int], int] = {}
        self._rows: Array = np.empty((0, self.line_size), np.float32)

    def get(self, keys: Array, tables: Array, out: Array) -> None:
        """Write the rows of unique ids into `out`; rows that are not there are created.

        keys: uint64[n], tables: integers[n], each pair once.  out: float32[n, line_size].  Raises
        RowStoreError where there is no room for more rows; then none is created.
        """
        self._check(keys, tables, out)
        with self._lock:
            pairs = list(zip(tables.tolist(), keys.tolist(), strict=True))
            missing = [i for i, pair in enumerate(pairs) if pair not in self._places]
            self._make_room(len(missing))
            for i in missing:
                self._places[pairs[i]] = len(self._places)
            made = np.empty((len(missing), self.line_size), np.float32)
            self.initial.fill(keys[missing], tables[missing], made)
            self._rows = np.concatenate((self._rows, made))
            out[:] = self._rows[[self._places[pair] for pair in pairs]]

    def put(self, keys: Array, tables: Array, rows: Array) -> None:
        """Replace rows by unique ids; those that are not there are added. Arguments: `get`."""
        self._check(keys, tables, rows)
        with self._lock:
            self.get(keys, tables, np.empty_like(rows))
            pairs = zip(tables.tolist(), keys.tolist(), strict=True)
            self._rows[[self._places[pair] for pair in pairs]] = rows

    def __len__(self) -> int:
        """Number of rows that are there."""
        return len(self._places)

    def items(self, batch_rows: int = _BATCH_ROWS) -> Iterator[Batch]:
        """All rows in batches, in no order that means anything; none may change meanwhile."""
        pairs = list(self._places)
        for begin in range(0, len(pairs), batch_rows):
            some = pairs[begin : begin + batch_rows]
            keys = np.array([key for _, key in some], np.uint64)
            tables = np.array([table for table, _ in some], np.int32)
            yield keys, tables, self._rows[begin : begin + len(some)]

    def save_snapshot(self, name: str) -> None:
        """Keep all rows as they are under a name, in place of an older snapshot of that name."""
        raise RowStoreError(f"snapshot {name!r}: rows in memory alone cannot be kept yet")

    def load_snapshot(self, name: str) -> None:
        """Replace all rows by those of a snapshot."""
        raise RowStoreError(f"snapshot {name!r}: rows in memory alone cannot be loaded yet")

    def close(self) -> None:
        """Give back memory and files. What no snapshot holds is lost."""
        self._places.clear()
        self._rows = np.empty((0, self.line_size), np.float32)

    def _make_room(self, count: int) -> None:
        capacity = self.options.capacity
        if capacity and len(self) + count > capacity:
            raise RowStoreError(
                f"{len(self)} rows are there and {count} new ids came, but the capacity is "
                f"{capacity} rows on this rank; raise `capacity` of the store options"
            )

    def _check(self, keys: Array, tables: Array, rows: Array) -> None:
        if keys.dtype != np.uint64 or keys.ndim != 1:
            raise DTypeError(f"keys of a store are uint64[n], not {keys.dtype}{list(keys.shape)}")
        if tables.dtype.kind not in "iu" or tables.shape != keys.shape:
            raise DTypeError(
                f"tables of {keys.size} keys are integers[{keys.size}], not "
                f"{tables.dtype}{list(tables.shape)}"
            )
        if rows.dtype != np.float32 or rows.shape != (keys.size, self.line_size):
            raise ShapeError(
                f"rows of {keys.size} keys are float32[{keys.size}, {self.line_size}], not "
                f"{rows.dtype}{list(rows.shape)}"
            )
        if keys.size and not 0 <= tables.min() <= tables.max() < len(self.initial.tables):
            raise ArgumentError(
                f"table ids from {tables.min()} to {tables.max()}, but the store has "
                f"{len(self.initial.tables)} tables, from 0"
            )
