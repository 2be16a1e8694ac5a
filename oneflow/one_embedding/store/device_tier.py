"""All rows in the memory of a GPU.

Kernels on that GPU look rows up and update them there (kernels/device_rows.py); what `Tier` asks
for is for all else: batches of the host, snapshots, what counts rows. Rows come from memory of the
host, where a store begins, and where a snapshot is read and judged before it replaces anything.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from oneflow.core.errors import RowStoreError
from oneflow.core.rng import mix_seed
from oneflow.kernels.array import ArrayModule
from oneflow.kernels.rows_gpu import (
    ABSENT,
    BAD_ID,
    CREATED,
    DISTINCT,
    HEAD,
    KINDS,
    ROWS,
    UPDATED,
    RowTable,
)
from oneflow.one_embedding.store.index import in_order
from oneflow.one_embedding.store.initial import InitialRows
from oneflow.one_embedding.store.tier import Array, Batch, MemoryTier, WholeTier, no_room

_MOVED_ROWS = 1 << 16
"""Rows that move between host and device at once."""


class DeviceTier(WholeTier):
    """The rows of `tier`, in one block of the memory of the current GPU from now on.

    xp: CuPy.  capacity: most rows, for which there is memory from the beginning. Raises
    RowStoreError where the GPU has not that much.
    """

    def __init__(self, xp: ArrayModule, tier: MemoryTier, capacity: int) -> None:
        super().__init__(tier.initial, tier.log, tier.statistics)
        self.xp: Any = xp
        self._device = self.xp.cuda.Device()
        self._stream = self.xp.cuda.get_current_stream()
        self.table = self._made(capacity)
        self._told: Array = _pinned(HEAD)
        self._seen = np.zeros(HEAD, np.int64)
        """The head as it was when it was last counted."""
        self._on_its_way: Any = None
        self._most, self._since = 0, 0
        self._take(tier)

    def _made(self, capacity: int) -> RowTable:
        xp, initial = self.xp, self.initial
        try:
            return RowTable(xp, capacity, initial.line_size, *_first_values(initial))
        except xp.cuda.memory.OutOfMemoryError as error:
            nbytes = RowTable.nbytes_of(capacity, initial.line_size)
            free = xp.cuda.runtime.memGetInfo()[0]
            raise RowStoreError(
                f"{capacity} rows of {initial.line_size} numbers take {nbytes / 2**30:.1f} GiB of "
                f"the memory of the GPU, of which {free / 2**30:.1f} GiB are free; lower "
                "`capacity`, or use make_cached_host_mem_store_options"
            ) from error

    @contextlib.contextmanager
    def here(self) -> Iterator[RowTable]:
        """The table, with its GPU current, and behind all that was asked of it on other streams."""
        with self._device:
            stream = self.xp.cuda.get_current_stream()
            if stream != self._stream:
                stream.wait_event(self._stream.record())
                self._stream = stream
            yield self.table

    # ---- what the device knows -------------------------------------------------------------------

    def make_room(self, count: int, fresh: Array) -> None:
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

    def ask(self) -> None:
        """Let the head come from the GPU, unless one is on its way."""
        if self._on_its_way is None:
            self.table.head.get(out=self._told, blocking=False)
            self._on_its_way, self._since = self._stream.record(), 0

    def heard(self, *, waits: bool = False) -> Array | None:
        """Count what the head counts, and return by how much its words have grown since they were
        heard last, int64[HEAD]; None if no head came. waits: the head as it is now."""
        if waits:
            told = self.xp.asnumpy(self.table.head)
            self._on_its_way, self._since = None, 0
        elif self._on_its_way is not None and self._on_its_way.done:
            self._on_its_way, told = None, self._told
        else:
            return None
        self._most = int(told[ROWS]) + self._since
        grown: Array = told - self._seen
        self._seen = told.copy()
        if told[BAD_ID:].any():  # each is told of once
            grown[BAD_ID:] = told[BAD_ID:]
            self.table.head[BAD_ID:] = 0
            self._seen[BAD_ID:] = 0
        counted, asked = self.statistics, int(grown[DISTINCT] + grown[UPDATED])
        counted.lookups += asked
        counted.device_hits += asked - int(grown[ABSENT])
        counted.created += int(grown[CREATED])
        return grown

    # ---- batches of the host ---------------------------------------------------------------------

    def __len__(self) -> int:
        with self.here() as table:
            return int(table.head[ROWS])

    @property
    def nbytes(self) -> int:
        """Device memory of rows and index."""
        return self.table.nbytes

    def find(self, keys: Array, tables: Array) -> Array:
        with self.here() as table:
            places, _ = table.find(table.distinct(keys, tables))
            found: Array = np.maximum(self.xp.asnumpy(places), -1)
            return found

    def get(
        self, keys: Array, tables: Array, places: Array, out: Array, *, is_use: bool = True
    ) -> None:
        with self.here() as table:
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
        with self.here() as table:
            ids = table.distinct(keys, tables)
            found, fresh = table.find(ids)
            table.place(ids, found, fresh)
            table.put(rows, found)
            table.mark(found)
            places[...] = self.xp.asnumpy(found)
            self._most += keys.size
            self._since += keys.size

    # ---- the whole -------------------------------------------------------------------------------

    def entries(self) -> Iterator[Batch]:
        with self.here() as table:
            listed = table.listed()
        return in_order(*listed)

    def changed(self) -> Iterator[Batch]:
        with self.here() as table:
            listed = table.listed(is_changed=True)
        return in_order(*listed)

    @property
    def num_changed(self) -> int:
        with self.here() as table:
            return table.num_changed

    def forget_changes(self) -> None:
        with self.here() as table:
            table.changed.fill(0)

    def rows_at(self, places: Array) -> Array:
        with self.here() as table:
            return table.get(places)

    def replace(self, tier: MemoryTier) -> None:
        """Have the rows and the log of another tier instead."""
        self.log.close()
        self.log = tier.log
        self._take(tier)

    def _take(self, tier: MemoryTier) -> None:
        with self.here() as table:
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


def _pinned(count: int) -> Array:
    """int64[count] that a GPU writes while the host goes on."""
    import cupyx

    made: Array = cupyx.zeros_pinned(count, np.int64)
    return made


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
