"""All rows in the memory of a GPU.

Kernels on that GPU look rows up and update them there (kernels/device_rows.py); the methods of
`Tier` are for all else: batches of the host, snapshots, counts of rows. Rows come from memory of
the host, where a store begins, and where a snapshot is read and judged before it replaces anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from oneflow.core.draws import mix_seed
from oneflow.kernels.array import ArrayModule
from oneflow.kernels.rows_gpu import (
    CREATED,
    DISTINCT,
    KINDS,
    ROWS,
    UPDATED,
    DeviceIds,
    RowTable,
    mark_rows,
)
from oneflow.one_embedding.store.device_side import DeviceSide, Guard, Update, Wanted
from oneflow.one_embedding.store.index import in_order
from oneflow.one_embedding.store.initial import InitialRows
from oneflow.one_embedding.store.tier import Array, Batch, MemoryTier, WholeTier, no_room

_MOVED_ROWS = 1 << 16
"""Rows that move between host and device at once."""


class DeviceTier(DeviceSide, WholeTier):
    """The rows of `tier`, in one block of the memory of the current GPU from now on.

    xp: CuPy.  capacity: most rows, for which there is memory from the beginning.  guard: of the
    store. Raises RowStoreError where the GPU has not that much.
    """

    table: RowTable

    def __init__(self, xp: ArrayModule, tier: MemoryTier, capacity: int, guard: Guard) -> None:
        WholeTier.__init__(self, tier.initial, tier.log, tier.statistics)
        DeviceSide.__init__(self, xp, guard)
        self.table = self._made(capacity)
        self._most, self._since = 0, 0
        self._take(tier)

    def _made(self, capacity: int) -> RowTable:
        size = self.initial.line_size
        what = f"{capacity} rows of {size} numbers", RowTable.nbytes_of(capacity, size)
        advice = "lower `capacity`, or use make_cached_host_mem_store_options"
        with self.memory_for(*what, advice):
            return RowTable(self.xp, capacity, size, *_first_values(self.initial))

    # ---- batches of a GPU ------------------------------------------------------------------------

    def take(self, out: Array, ids: DeviceIds, *, asked: int, makes_rows: bool) -> None:
        if makes_rows:
            places = self._placed(ids, None, counted=DISTINCT, asked=asked)
        else:
            places, _ = self.table.find(ids, counted=DISTINCT, asked=asked)
        self.table.take(out, ids, places)

    def change(self, ids: DeviceIds, update: Update, step: Array | None, wanted: Wanted) -> None:
        places = self._placed(ids, wanted, counted=UPDATED)
        update(self.table.lines, places)
        mark_rows(self.table.lines, places, self.table.changed, step, self.table.head)

    def _placed(self, ids: DeviceIds, is_wanted: Wanted, *, counted: int, asked: int = 0) -> Array:
        """Places of the rows of ids, made where they are not there."""
        table = self.table
        places, fresh = table.find(ids, is_wanted, counted=counted, asked=asked)
        self._make_room(ids.size, fresh)
        table.place(ids, places, fresh)
        table.create(ids, places)
        return places

    def _make_room(self, count: int, fresh: Array) -> None:
        """Raise RowStoreError where new rows have no room. Waits for the GPU only where that is
        uncertain: it tells late how many rows there are.

        count: ids of the batch.  fresh: new ids among them, of `RowTable.find`.
        """
        capacity = self.table.capacity
        if self._most + count > capacity:
            there, new = int(self.table.head[ROWS]), int(fresh.sum())
            if there + new > capacity:
                raise no_room(there, new, capacity)
            self._on_its_way, self._most, count = None, there, new
        self._most += count
        self._since += count

    def _asked_now(self) -> None:
        self._since = 0

    def _told_of(self, told: Array, grown: Array) -> None:
        self._most = int(told[ROWS]) + self._since
        self.statistics.created += int(grown[CREATED])

    # ---- batches of the host ---------------------------------------------------------------------

    def __len__(self) -> int:
        with self.here():
            table = self.table
            return int(table.head[ROWS])

    @property
    def nbytes(self) -> int:
        """Device memory of rows and index."""
        return self.table.nbytes

    def find(self, keys: Array, tables: Array) -> Array:
        with self.here():
            table = self.table
            places, _ = table.find(table.distinct(keys, tables))
            found: Array = np.maximum(self.xp.asnumpy(places), -1)
            return found

    def get(
        self, keys: Array, tables: Array, places: Array, out: Array, *, is_use: bool = True
    ) -> None:
        with self.here():
            table = self.table
            ids = table.distinct(keys, tables)
            found, fresh = table.find(ids)
            table.place(ids, found, fresh)
            table.create(ids, found)
            rows = self.xp.empty(out.shape, np.float32)
            table.take(rows, ids, found)
            out[...], places[...] = self.xp.asnumpy(rows), self.xp.asnumpy(found)
            self._most += keys.size
            self._since += keys.size
            self.statistics.device_hits += keys.size - int(fresh.sum())

    def put(self, keys: Array, tables: Array, places: Array, rows: Array) -> None:
        with self.here():
            table = self.table
            ids = table.distinct(keys, tables)
            found, fresh = table.find(ids)
            table.place(ids, found, fresh)
            table.put(rows, found)
            mark_rows(table.lines, found, table.changed, None, table.head)
            places[...] = self.xp.asnumpy(found)
            self._most += keys.size
            self._since += keys.size

    # ---- the whole -------------------------------------------------------------------------------

    def entries(self) -> Iterator[Batch]:
        with self.here():
            table = self.table
            listed = table.listed()
        return in_order(*listed)

    def changed(self) -> Iterator[Batch]:
        with self.here():
            table = self.table
            listed = table.listed(is_changed=True)
        return in_order(*listed)

    @property
    def num_changed(self) -> int:
        with self.here():
            table = self.table
            return table.num_changed

    def forget_changes(self) -> None:
        with self.here():
            table = self.table
            table.changed.fill(0)

    def rows_at(self, places: Array) -> Array:
        with self.here():
            table = self.table
            return table.get(places)

    def replace(self, tier: MemoryTier) -> None:
        """Have the rows and the log of another tier instead."""
        self.log.close()
        self.log = tier.log
        self._take(tier)

    def _take(self, tier: MemoryTier) -> None:
        table = self.table
        with self.here():
            self.heard(waits=True)
            table.clear()
            for keys, tables, places in tier.entries():
                table.insert(keys, tables, places)
            count = len(tier)
            for begin in range(0, count, _MOVED_ROWS):
                places = np.arange(begin, min(begin + _MOVED_ROWS, count))
                table.fill(begin, tier.rows_at(places), tier.are_changed(places))
            table.head[: ROWS + 2] = count
            self._seen[:] = 0
            self._on_its_way, self._most, self._since = None, count, 0

    def close(self) -> None:
        self.log.close()
        with self.here():
            self.table = self._made(0)


def _first_values(initial: InitialRows) -> tuple[Array, Array]:
    """The columns and seeds of `initial` as kernels/rows_gpu.py reads them: float64 (tables,
    columns, 6) and uint64 (tables, 2)."""
    most = max(len(columns) for columns in initial.tables) + len(initial.state)
    made = np.zeros((len(initial.tables), most, 6))
    made[:, :, 0] = math.inf
    seeds = np.empty((len(initial.tables), 2), np.uint64)
    for number, columns in enumerate(initial.tables):
        seeds[number] = mix_seed(initial.seed, number), mix_seed(initial.seed, number, 1)
        end = 0
        for k, column in enumerate(columns):
            end += column.width
            kind = KINDS[column.kind]
            made[number, k] = end, kind, column.first, column.second, column.low, column.high
        for k, value in enumerate(initial.state, len(columns)):
            end += 1
            made[number, k, :3] = end, KINDS["constant"], value
    return made, seeds
