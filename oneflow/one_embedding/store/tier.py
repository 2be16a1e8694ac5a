"""Tiers: where the rows of a store lie between look-ups. One class keeps all in memory of the host;
others are in device_tier.py and disk_tier.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np

from oneflow.core.errors import RowStoreError
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


def no_room(there: int, count: int, capacity: int) -> RowStoreError:
    """The error of new rows that have no room."""
    return RowStoreError(
        f"{there} rows are there and {count} new ids came, but the capacity is "
        f"{capacity} rows on this rank; raise `capacity` of the store options"
    )


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
        """Bring all rows to the disk. Returns the extents that the snapshot lists, and the numbers
        of the files that nothing needs once it is there; `saved` follows then.
        """

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


class WholeTier(ABC):
    """All rows in one memory; changed rows are appended to a log by snapshots, which have the same
    bytes in every memory: rows stand by part of their ids' hash, then in the order in which they
    were made.
    """

    def __init__(self, initial: InitialRows, log: RowLog, statistics: StoreStatistics) -> None:
        self.initial, self.log, self.statistics = initial, log, statistics

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def find(self, keys: Array, tables: Array) -> Array:
        """See `Tier`."""

    @abstractmethod
    def put(self, keys: Array, tables: Array, places: Array, rows: Array) -> None:
        """See `Tier`."""

    @abstractmethod
    def entries(self) -> Iterator[Batch]:
        """Keys, tables and places of all rows, ordered as `Index.entries`."""

    @abstractmethod
    def changed(self) -> Iterator[Batch]:
        """The same of those that changed since the last snapshot."""

    @property
    @abstractmethod
    def num_changed(self) -> int:
        """Rows that changed since the last snapshot."""

    @abstractmethod
    def forget_changes(self) -> None:
        """Go on from a snapshot."""

    @abstractmethod
    def rows_at(self, places: Array) -> Array:
        """float32[n, line_size]: the rows at places."""

    def items(self, batch_rows: int) -> Iterator[Batch]:
        return self._with_rows(self.entries(), batch_rows)

    def _with_rows(self, entries: Iterator[Batch], batch_rows: int) -> Iterator[Batch]:
        for keys, tables, places in entries:
            for begin in range(0, keys.size, batch_rows):
                some = slice(begin, begin + batch_rows)
                yield keys[some], tables[some], self.rows_at(places[some])

    def save(self) -> tuple[list[Extent], list[int]]:
        log = self.log
        if log.num_slots + self.num_changed > _MOST_STALE * len(self):
            stale, first = list(log.numbers()), log.begin_file()
            for batch in self.items(_SAVED_ROWS):
                log.append(*batch)
            return [extent for extent in log.sync() if extent.number >= first], stale
        for batch in self._with_rows(self.changed(), _SAVED_ROWS):
            log.append(*batch)
        return log.sync(), []

    def saved(self, stale: list[int]) -> None:
        self.log.forget(stale)
        self.forget_changes()

    def load(self, snapshot: Snapshot) -> None:
        for keys, tables, rows in batches_of(self.log.folder, snapshot):
            self.put(keys, tables, self.find(keys, tables), rows)
        self.log.use(snapshot.extents)
        for extent in snapshot.extents:
            self.log.live[extent.number] = extent.rows
        self.forget_changes()


class MemoryTier(WholeTier):
    """All rows in the memory of the host."""

    def __init__(self, initial: InitialRows, log: RowLog, statistics: StoreStatistics) -> None:
        super().__init__(initial, log, statistics)
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
            made = np.empty((missing.size, self.initial.line_size), np.float32)
            self.initial.fill(keys[missing], tables[missing], made)
            places[missing] = self._add(keys[missing], tables[missing])
            self._rows.store(places[missing], made)
        self._rows.fetch(places, out)
        self.statistics.created += missing.size
        self.statistics.memory_hits += keys.size - missing.size
        self.statistics.memory_nbytes_read += out.nbytes

    def put(self, keys: Array, tables: Array, places: Array, rows: Array) -> None:
        missing = np.flatnonzero(places < 0)
        if missing.size:
            places[missing] = self._add(keys[missing], tables[missing])
        self._rows.store(places, rows)
        self._changes.mark(places, keys, tables, len(self))
        self.statistics.memory_nbytes_written += rows.nbytes

    def _add(self, keys: Array, tables: Array) -> Array:
        count = len(self)
        self._rows.reserve(count + keys.size)
        places = np.arange(count, count + keys.size)
        self._index.assign(keys, tables, places)
        self._changes.mark(places, keys, tables, len(self))
        return places

    def entries(self) -> Iterator[Batch]:
        return self._index.entries()

    def changed(self) -> Iterator[Batch]:
        return self._changes.ids(self._index)

    def are_changed(self, places: Array) -> Array:
        """bool[n]: whether the rows at places changed since the last snapshot."""
        return self._changes.are_at(places)

    @property
    def num_changed(self) -> int:
        return self._changes.count

    def forget_changes(self) -> None:
        self._changes.clear()

    def rows_at(self, places: Array) -> Array:
        rows = np.empty((places.size, self.initial.line_size), np.float32)
        self._rows.fetch(np.ascontiguousarray(places), rows)
        return rows

    def close(self) -> None:
        self.log.close()
        self._index, self._rows = Index(), RowMemory(self.initial.line_size)
        self._changes = Changes()
