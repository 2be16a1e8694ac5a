"""Rows on a disk behind a cache in memory.

The index knows all ids: its places are lines of the cache, or slots of the log with _ON_DISK added.
So a look-up is one search in every tier, any row may lie in any line (a cache in sets would
search twice and evict rows that are used), and a clock chooses the lines that go. A changed row
that leaves the cache is appended to the log, which writes it with many others.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from oneflow.kernels.native.program import function_of, run
from oneflow.one_embedding.store.index import Index
from oneflow.one_embedding.store.initial import InitialRows
from oneflow.one_embedding.store.loops import write_sweep
from oneflow.one_embedding.store.row_log import Extent, RowLog
from oneflow.one_embedding.store.row_memory import RowMemory
from oneflow.one_embedding.store.snapshots import Snapshot, index_of
from oneflow.one_embedding.store.statistics import StoreStatistics
from oneflow.one_embedding.store.tier import Batch

Array: TypeAlias = "np.ndarray[Any, Any]"

_ON_DISK = 1 << 50
_NO_SLOT, _EMPTY = -1, -2
"""Instead of a slot: of a line that changed since it was read, and of one that holds no row."""
_LEAST_LINES = 64
_LINE_NBYTES = 21
"""Memory of a line besides its row: id, table, slot, state."""
_PINNED, _MOST_USES = 64, 7
"""Bits of a line's state: needed by the look-up under way; and how often it was looked up since it
was read, less the times that the clock's hand has passed. So rows that come once leave at the first
turn, and frequent ones outlive many of those."""
_MOST_STALE = 2.0
"""Slots over rows from which files with the fewest rows in use are emptied."""
_KEPT_FILES = 4
"""Files of stale rows that are not worth emptying."""


class DiskTier:
    """Rows in a log, of which a cache holds those that were used last."""

    def __init__(
        self, initial: InitialRows, log: RowLog, statistics: StoreStatistics, cache_nbytes: int
    ) -> None:
        self._initial, self._log, self._statistics = initial, log, statistics
        self._index = Index()
        line_nbytes = 4 * initial.line_size + _LINE_NBYTES
        self.num_lines = max(_LEAST_LINES, cache_nbytes // line_nbytes)
        self._rows = RowMemory(initial.line_size)
        self._keys = np.zeros(self.num_lines, np.uint64)
        self._tables = np.zeros(self.num_lines, np.int32)
        self._slots = np.full(self.num_lines, _EMPTY, np.int64)
        """Slots of the log that hold what the lines hold."""
        self._states = np.zeros(self.num_lines, np.int8)
        self._hand = np.zeros(1, np.int64)
        self._num_used = 0

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Memory of cache and index."""
        lines = (self._keys, self._tables, self._slots, self._states)
        return self._rows.nbytes + self._index.nbytes + sum(a.nbytes for a in lines)

    def find(self, keys: Array, tables: Array) -> Array:
        return self._index.find(keys, tables)

    def get(
        self, keys: Array, tables: Array, places: Array, out: Array, *, is_use: bool = True
    ) -> None:
        for some in self._pieces(keys, tables, places):
            ids = keys[some], tables[some], places[some]
            lines = self._in_lines(*ids, is_read=True, is_use=is_use)
            self._rows.fetch(lines, out[some])
            self._empty_files()
        self._statistics.memory_nbytes_read += out.nbytes

    def put(self, keys: Array, tables: Array, places: Array, rows: Array) -> None:
        for some in self._pieces(keys, tables, places):
            ids = keys[some], tables[some], places[some]
            lines = self._in_lines(*ids, is_read=False, is_use=False)
            self._rows.store(lines, rows[some])
            self._change(lines)
            self._empty_files()
        self._statistics.memory_nbytes_written += rows.nbytes

    def _pieces(self, keys: Array, tables: Array, places: Array) -> Iterator[slice]:
        """Parts of a batch that fit into half of the cache, so that the other half may go. Ids of
        several are searched for anew: rows of one make way for those of another."""
        most, count = self.num_lines // 2, keys.size
        for begin in range(0, count, most):
            some = slice(begin, begin + most)
            if count > most:
                places[some] = self._index.find(keys[some], tables[some])
            yield some

    def _change(self, lines: Array) -> None:
        slots = self._slots[lines]
        self._log.release(slots[slots != _NO_SLOT])
        self._slots[lines] = _NO_SLOT

    def _in_lines(
        self, keys: Array, tables: Array, lines: Array, *, is_read: bool, is_use: bool
    ) -> Array:
        """Bring ids to lines of the cache: `lines`, their places, are all lines then. is_read: are
        their rows read or made? Else the caller writes them."""
        away = np.flatnonzero((lines < 0) | (lines >= _ON_DISK))
        if not away.size:
            self._count_uses(lines, is_use)
            self._statistics.memory_hits += keys.size if is_read else 0
            return lines
        is_there = np.ones(keys.size, bool)
        is_there[away] = False
        there = lines[is_there]
        self._states[there] |= _PINNED
        places = lines[away]
        slots = np.where(places >= 0, places - _ON_DISK, _NO_SLOT)
        try:
            lines[away] = taken = self._take_lines(away.size)
            if is_read:
                self._fill(taken, slots, keys[away], tables[away])
            self._index.assign(keys[away], tables[away], taken)
        except BaseException:
            self._states &= _MOST_USES
            raise
        self._keys[taken], self._tables[taken], self._slots[taken] = keys[away], tables[away], slots
        self._states[taken] = 0
        self._states[there] &= _MOST_USES
        self._count_uses(there, is_use)
        self._statistics.memory_hits += keys.size - away.size if is_read else 0
        return lines

    def _count_uses(self, lines: Array, is_use: bool) -> None:
        if is_use:
            self._states[lines] = np.minimum(self._states[lines] + 1, _MOST_USES)

    def _fill(self, lines: Array, slots: Array, keys: Array, tables: Array) -> None:
        on_disk = np.flatnonzero(slots != _NO_SLOT)
        if on_disk.size:
            begin = time.perf_counter()
            self._rows.store(lines[on_disk], self._log.read(slots[on_disk]))
            self._statistics.stall_s += time.perf_counter() - begin
        new = np.flatnonzero(slots == _NO_SLOT)
        if new.size:
            made = np.empty((new.size, self._initial.line_size), np.float32)
            self._initial.fill(keys[new], tables[new], made)
            self._rows.store(lines[new], made)
        self._statistics.disk_hits += on_disk.size
        self._statistics.created += new.size

    def _take_lines(self, count: int) -> Array:
        """Empty lines: those that were never used, then those that the clock finds."""
        fresh = min(count, self.num_lines - self._num_used)
        self._rows.reserve(self._num_used + fresh)
        lines = np.empty(count + 1, np.int64)
        lines[:fresh] = np.arange(self._num_used, self._num_used + fresh)
        self._states[lines[:fresh]] = _PINNED
        old = lines[fresh:]
        wanted = count - fresh
        if wanted:
            numbers = [wanted, self._states.ctypes.data, self.num_lines]
            numbers += [self._hand.ctypes.data, old.ctypes.data, _PINNED]
            run(function_of(write_sweep), [numbers])
            self._evict(old[:wanted])
        self._num_used += fresh
        return lines[:count]

    def _evict(self, lines: Array) -> None:
        lines = lines[self._slots[lines] != _EMPTY]
        self._write_back(lines[self._slots[lines] == _NO_SLOT])
        self._index.assign(self._keys[lines], self._tables[lines], self._slots[lines] + _ON_DISK)
        self._slots[lines] = _EMPTY
        self._statistics.evicted += lines.size

    def _write_back(self, lines: Array) -> None:
        if not lines.size:
            return
        rows = np.empty((lines.size, self._initial.line_size), np.float32)
        self._rows.fetch(lines, rows)
        self._slots[lines] = self._log.append(self._keys[lines], self._tables[lines], rows)

    # ---- emptying files ----------------------------------------------------------------------

    def _empty_files(self) -> None:
        """Move the rows in use out of files that have few, where stale ones take too much room."""
        log = self._log
        if log.is_fixed:
            return
        spare = _KEPT_FILES * log.layout.file_rows
        while log.num_slots > _MOST_STALE * len(self) + spare:
            candidates = [number for number in log.numbers() if number != log.last_number]
            if not candidates:
                return
            self._empty_file(min(candidates, key=lambda number: log.live.get(number, 0)))

    def _empty_file(self, number: int) -> None:
        log = self._log
        if log.live.get(number):
            ids, slots = log.ids(number)
            keys, tables = np.ascontiguousarray(ids["key"]), np.ascontiguousarray(ids["table"])
            places = self._index.find(keys, tables)
            cached = np.flatnonzero((places >= 0) & (places < _ON_DISK))
            cached = cached[self._slots[places[cached]] == slots[cached]]
            self._change(places[cached])
            moved = np.flatnonzero(places == slots + _ON_DISK)
            rows = log.read(slots[moved])
            to = log.append(keys[moved], tables[moved], rows)
            self._index.assign(keys[moved], tables[moved], to + _ON_DISK)
        log.forget([number])

    # ---- the whole ---------------------------------------------------------------------------

    def items(self, batch_rows: int) -> Iterator[Batch]:
        for keys, tables, places in self._index.entries():
            for begin in range(0, keys.size, batch_rows):
                some = slice(begin, begin + batch_rows)
                yield keys[some], tables[some], self._peek(places[some])

    def _peek(self, places: Array) -> Array:
        rows = np.empty((places.size, self._initial.line_size), np.float32)
        on_disk = places >= _ON_DISK
        rows[on_disk] = self._log.read(places[on_disk] - _ON_DISK)
        cached = np.empty((int((~on_disk).sum()), self._initial.line_size), np.float32)
        self._rows.fetch(places[~on_disk], cached)
        rows[~on_disk] = cached
        return rows

    def save(self) -> tuple[list[Extent], list[int]]:
        used = self._slots[: self._num_used]
        self._write_back(np.flatnonzero(used == _NO_SLOT))
        return self._log.sync(), []

    def saved(self, stale: list[int]) -> None:
        self._log.forget(stale)

    def load(self, snapshot: Snapshot) -> None:
        self._log.use(snapshot.extents)
        index_of(self._log, self._index, _ON_DISK)

    def close(self) -> None:
        self._log.close()
        self._index, self._rows = Index(), RowMemory(self._initial.line_size)
