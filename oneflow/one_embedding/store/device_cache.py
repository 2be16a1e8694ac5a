"""A cache in the memory of a GPU before the rows of a store in memory of the host or on a disk.

The store has every row; rows that the cache has changed since are written back in batches, when its
lines go to other rows, or when the host asks for rows. A batch waits for the GPU to know which ids
have missed, and once more where changed rows make way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import numpy as np

from oneflow.kernels.array import ArrayModule
from oneflow.kernels.row_cache_gpu import (
    KEY,
    LINE,
    NUMBER,
    OLD_KEY,
    OLD_TABLE,
    WAS_CHANGED,
    RowCache,
)
from oneflow.kernels.rows_gpu import DISTINCT, UPDATED, DeviceIds, mark_rows, take_rows
from oneflow.one_embedding.store.device_side import DeviceSide, Guard, Update, Wanted
from oneflow.one_embedding.store.statistics import StoreStatistics
from oneflow.one_embedding.store.tier import Array

Ids: TypeAlias = tuple[Array, Array]
"""Keys (uint64[n]) and tables (int32[n]), contiguous."""
Write: TypeAlias = Callable[[Array, Array, Array], None]
"""(keys, tables, rows)."""


class Read(Protocol):
    """Reads rows into `rows`, and makes those that are not there if there is room, or writes only
    their first values."""

    def __call__(self, keys: Array, tables: Array, rows: Array, *, makes_rows: bool) -> None: ...


_WRITTEN_ROWS = 1 << 16
"""Changed rows that are written back at once."""


class DeviceCache(DeviceSide):
    """Rows of a store that a GPU holds: `nbytes` of them.

    read: reads rows of the store.  write: replaces rows there.
    """

    table: RowCache

    def __init__(
        self,
        xp: ArrayModule,
        read: Read,
        write: Write,
        statistics: StoreStatistics,
        guard: Guard,
        line_size: int,
        nbytes: int,
    ) -> None:
        super().__init__(xp, guard)
        self._read, self._write, self.statistics = read, write, statistics
        with self.memory_for("the lines of a cache", nbytes, "lower `cache_budget_mb`"):
            self.table = RowCache(xp, nbytes, line_size)

    # ---- batches of a GPU ------------------------------------------------------------------------

    def take(self, out: Array, ids: DeviceIds, *, asked: int, makes_rows: bool) -> None:
        table, head = self.table, self.table.head
        places = table.find(ids, None, counted=DISTINCT, asked=asked)
        records = table.claim(ids, places, claims=makes_rows)
        beyond = self._fill(places, records, makes_rows=makes_rows)
        take_rows(out, ids, table.lines, self._within(places, beyond), head)
        if beyond is not None:
            others = self.xp.empty_like(out)
            take_rows(others, ids, beyond, self._behind(places), head)
            out += others  # each has zeros where the other has rows

    def change(self, ids: DeviceIds, update: Update, step: Array | None, wanted: Wanted) -> None:
        table = self.table
        places = table.find(ids, wanted, counted=UPDATED, asked=0)
        records = table.claim(ids, places, claims=True)
        beyond = self._fill(places, records, makes_rows=True)
        within = self._within(places, beyond)
        update(table.lines, within)
        mark_rows(table.lines, within, table.changed, step, table.head)
        if beyond is None:
            return
        behind = self._behind(places)
        update(beyond, behind)
        noted = self.xp.empty(len(beyond), np.uint8)
        mark_rows(beyond, behind, noted, step, table.head)
        of_beyond = records[records[:, LINE] < 0]
        self._write(*_ids(of_beyond, KEY), self.xp.asnumpy(beyond))

    def _fill(self, places: Array, records: Array, *, makes_rows: bool) -> Array | None:
        """Bring the rows that missed, and complete `places`. Returns the rows beyond the cache."""
        if not len(records):
            return None
        xp, table = self.xp, self.table
        old, lines = records[records[:, WAS_CHANGED] != 0], _column(records, LINE)
        rows = np.empty((len(records), table.line_size), np.float32)
        try:
            if len(old):
                self._write(*_ids(old, OLD_KEY), table.get(_column(old, LINE)))
            self._read(*_ids(records, KEY), rows, makes_rows=makes_rows)
        except BaseException:
            table.restore(records)
            raise
        self.statistics.evicted += int((records[:, OLD_TABLE] >= 0).sum())
        table.put(rows, lines)
        is_beyond = lines < 0
        lines[is_beyond] = table.num_lines + np.arange(int(is_beyond.sum()))
        places[xp.asarray(_column(records, NUMBER))] = xp.asarray(lines)
        return xp.asarray(rows[is_beyond]) if is_beyond.any() else None

    def _within(self, places: Array, beyond: Array | None) -> Array:
        """Places in the cache, -1 of others."""
        if beyond is None:
            return places
        found: Array = self.xp.where(places < self.table.num_lines, places, -1)
        return found

    def _behind(self, places: Array) -> Array:
        """Places among the rows beyond the cache, -1 of others."""
        found: Array = self.xp.maximum(places - self.table.num_lines, -1)
        return found

    # ---- what the host asks for ------------------------------------------------------------------

    def write_back(self) -> None:
        """Let the store have all changed rows."""
        with self.here():
            table = self.table
            changed = self.xp.asnumpy(self.xp.flatnonzero(table.changed))
            for begin in range(0, changed.size, _WRITTEN_ROWS):
                lines = changed[begin : begin + _WRITTEN_ROWS]
                keys, tags = (self.xp.asnumpy(a[lines]) for a in (table.keys, table.tags))
                self._write(keys, tags - 1, table.get(lines))
            table.changed.fill(0)

    def clear(self) -> None:
        """Hold no rows; changes that were not written back are lost."""
        with self.here():
            self.table.clear()

    @property
    def nbytes(self) -> int:
        """Device memory of the cache."""
        return self.table.nbytes


def _column(records: Array, number: int) -> Array:
    return np.ascontiguousarray(records[:, number])


def _ids(records: Array, first: int) -> Ids:
    """The ids whose keys are in column `first`, and their tables in the next one."""
    return _column(records, first).view(np.uint64), records[:, first + 1].astype(np.int32)
