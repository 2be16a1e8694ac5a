"""Tiers: where the rows of a store lie between look-ups. One class keeps all in memory; the other
is in disk_tier.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np

from oneflow.one_embedding.store.index import Index
from oneflow.one_embedding.store.initial import InitialRows
from oneflow.one_embedding.store.row_log import Extent, RowLog
from oneflow.one_embedding.store.row_memory import Changes, RowMemory
from oneflow.one_embedding.store.snapshots import Snapshot, batches_of
from oneflow.one_embedding.store.statistics import StoreStatistics

Array: TypeAlias = "np.ndarray[Any, Any]"
Batch: TypeAlias = tuple[Array, Array, Array]
"""Keys (uint64[n]), tables (int32[n]) and rows (float32[n, line_size])."""

_SAVED_ROWS = 1 << 14
_MOST_STALE = 2.0
"""Slots over rows from which a snapshot writes all rows anew."""


class Tier(Protocol):
    """Rows by id, without limits and locks. Arrays: those of Batch, contiguous, each id once.

    places: of `find`, of the same ids; `get` and `put` bring them up to date, so that one search
    serves both, but nothing else may come between.
    """

    def find(self, keys: Array, tables: Array) -> Array:
        """Return int64[n], the place of each id, -1 of those that are not there."""

    def get(
        self, keys: Array, tables: Array, places: Array, out: Array, *, is_use: bool = True
    ) -> None:
        """Write rows into `out`; those that are not there are created. `out` may have fewer
        columns than rows have numbers. is_use: counts it to keep rows that are used often? The
        update of rows that were looked up before does not."""

    def put(self, keys: Array, tables: Array, places: Array, rows: Array) -> None:
        """Replace or add rows."""

    def items(self, batch_rows: int) -> Iterator[Batch]:
        """All rows."""

    def save(self) -> tuple[list[Extent], list[int]]:
        """Bring all rows to the disk. Returns what the snapshot lists, and the numbers of the files
        that nothing needs once it is there; `saved` follows then."""

    def saved(self, stale: list[int]) -> None:
        """Go on from the snapshot that was written."""

    def load(self, snapshot: Snapshot) -> None:
        """Take the rows of a snapshot of the log's folder and layout, where none are yet."""

    def close(self) -> None:
        """Give back memory and files."""

    @property
    def nbytes(self) -> int:
        """Memory of index and rows."""

    def __len__(self) -> int:
        """Number of rows."""


class MemoryTier:
    """All rows in memory; what changed is appended to a log by snapshots."""

    def __init__(self, initial: InitialRows, log: RowLog, statistics: StoreStatistics) -> None:
        self._initial, self._log, self._statistics = initial, log, statistics
        self._index = Index()
        self._rows = RowMemory(initial.line_size)
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Memory of rows and index."""
        return self._rows.nbytes + self._index.nbytes

    def find(self, keys: Array, tables: Array) -> Array:
        return self._index.find(keys, tables)

    def get(
        self, keys: Array, tables: Array, places: Array, out: Array, *, is_use: bool = True
    ) -> None:
        missing = np.flatnonzero(places < 0)
        if missing.size:
            made = np.empty((missing.size, self._initial.line_size), np.float32)
            self._initial.fill(keys[missing], tables[missing], made)
            places[missing] = self._add(keys[missing], tables[missing])
            self._rows.store(places[missing], made)
        self._rows.fetch(places, out)
        self._statistics.created += missing.size
        self._statistics.memory_hits += keys.size - missing.size
        self._statistics.memory_nbytes_read += out.nbytes

    def put(self, keys: Array, tables: Array, places: Array, rows: Array) -> None:
        missing = np.flatnonzero(places < 0)
        if missing.size:
            places[missing] = self._add(keys[missing], tables[missing])
        self._rows.store(places, rows)
        self._changes.mark(places, keys, tables, len(self))
        self._statistics.memory_nbytes_written += rows.nbytes

    def _add(self, keys: Array, tables: Array) -> Array:
        count = len(self)
        self._rows.reserve(count + keys.size)
        places = np.arange(count, count + keys.size)
        self._index.assign(keys, tables, places)
        self._changes.mark(places, keys, tables, len(self))
        return places

    def items(self, batch_rows: int) -> Iterator[Batch]:
        for keys, tables, places in self._index.entries():
            for begin in range(0, keys.size, batch_rows):
                some = slice(begin, begin + batch_rows)
                rows = np.empty((keys[some].size, self._initial.line_size), np.float32)
                self._rows.fetch(places[some], rows)
                yield keys[some], tables[some], rows

    def save(self) -> tuple[list[Extent], list[int]]:
        log = self._log
        if log.num_slots + self._changes.count > _MOST_STALE * len(self):
            stale, first = list(log.numbers()), log.begin_file()
            for batch in self.items(_SAVED_ROWS):
                log.append(*batch)
            return [extent for extent in log.sync() if extent.number >= first], stale
        for keys, tables, places in self._changes.ids(self._index, _SAVED_ROWS):
            rows = np.empty((keys.size, self._initial.line_size), np.float32)
            self._rows.fetch(places, rows)
            log.append(keys, tables, rows)
        return log.sync(), []

    def saved(self, stale: list[int]) -> None:
        self._log.forget(stale)
        self._changes.clear()

    def load(self, snapshot: Snapshot) -> None:
        for keys, tables, rows in batches_of(self._log.folder, snapshot):
            self.put(keys, tables, self.find(keys, tables), rows)
        self._log.use(snapshot.extents)
        for extent in snapshot.extents:
            self._log.live[extent.number] = extent.rows
        self._changes.clear()

    def close(self) -> None:
        self._log.close()
        self._index, self._rows = Index(), RowMemory(self._initial.line_size)
        self._changes = Changes()
