"""Rows in memory by place, in chunks, so that more rows move none of those that are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from oneflow.kernels.native.program import Program, cut, function_of, run
from oneflow.one_embedding.store.index import Index, in_order
from oneflow.one_embedding.store.loops import write_copy, write_mark
from oneflow.one_embedding.store.pages import zeros

Array: TypeAlias = "np.ndarray[Any, Any]"

_CHUNK_NBYTES = 1 << 26
_FEW_ROWS, _FEW_SHARE = 1 << 16, 16
"""Changed rows whose ids are kept: that many, and one in _FEW_SHARE of all rows."""
_FETCH: Callable[[], Program] = partial(write_copy, True)
_STORE: Callable[[], Program] = partial(write_copy, False)


class RowMemory:
    """Rows of `line_size` float32 numbers at places from 0."""

    def __init__(self, line_size: int) -> None:
        self.line_size = line_size
        self._shift = max(0, (_CHUNK_NBYTES // (4 * line_size)).bit_length() - 1)
        self._chunks: list[Array] = []
        self._count = 0
        self._addresses = np.zeros(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory of the places that were reserved; the rest of a chunk is never touched."""
        return self._count * 4 * self.line_size

    def reserve(self, count: int) -> None:
        """Have memory for places below `count`."""
        self._count = max(self._count, count)
        missing = -(-count >> self._shift) - len(self._chunks)
        if missing <= 0:
            return
        nbytes = 4 * self.line_size << self._shift
        for _ in range(missing):
            self._chunks.append(zeros(nbytes))
        addresses = [chunk.ctypes.data for chunk in self._chunks]
        self._addresses = np.array(addresses, np.int64)

    def fetch(self, places: Array, out: Array) -> None:
        """Write the first numbers of the rows at places (int64[n]) into `out`, float32 (n, k),
        contiguous: all for k = line_size."""
        self._copy(_FETCH, places, out)

    def store(self, places: Array, rows: Array) -> None:
        """Replace the rows at places, each once."""
        self._copy(_STORE, places, rows)

    def _copy(self, write: Callable[[], Program], places: Array, outer: Array) -> None:
        if not places.size:
            return
        fixed = [places.ctypes.data, self._addresses.ctypes.data, self._shift]
        fixed += [outer.shape[1], self.line_size, outer.ctypes.data]
        parts = cut(places.size, outer.size, places.size)
        run(function_of(write), [[*part, *fixed] for part in parts])


class Changes:
    """Rows that changed since the last snapshot: a bit each, and the ids of a few.

    The ids make a snapshot of few changes quick; of many they would take as much memory as the
    index, which knows them as well.
    """

    def __init__(self) -> None:
        self.count = 0
        self._bits = np.zeros(0, np.uint64)
        self._ids: list[tuple[Array, Array]] = []

    def mark(self, places: Array, keys: Array, tables: Array, most: int) -> None:
        """Note rows by their places, all below `most`, the number of all rows."""
        words = (most >> 6) + 1
        if words > self._bits.size:
            bits = np.zeros(words + words // 8, np.uint64)
            bits[: self._bits.size] = self._bits
            self._bits = bits
        fresh, count = np.empty(places.size + 1, np.int64), np.zeros(1, np.int64)
        numbers = [a.ctypes.data for a in (places, self._bits, fresh, count)]
        run(function_of(write_mark), [[places.size, *numbers]])
        before, self.count = self.count, self.count + int(count[0])
        if self.count > _FEW_ROWS + most // _FEW_SHARE:
            self._ids = []
        elif count[0] and (self._ids or not before):
            which = fresh[: count[0]]
            self._ids.append((keys[which], tables[which]))

    def ids(self, index: Index) -> Iterator[tuple[Array, Array, Array]]:
        """Keys, tables and places of all of them, ordered as `Index.entries`."""
        if self._ids:
            keys, tables = map(np.concatenate, zip(*self._ids, strict=True))
            yield from in_order(keys, tables, index.find(keys, tables))
            return
        for entries in index.entries():
            yield self._changed_of(*entries)

    def are_at(self, places: Array) -> Array:
        """bool[n]: whether the rows at places changed."""
        found = np.zeros(places.size, np.bool_)
        known = np.flatnonzero(places >> 6 < self._bits.size)
        at = places[known]
        found[known] = self._bits[at >> 6] >> (at & 63).astype(np.uint64) & np.uint64(1)
        return found

    def _changed_of(self, keys: Array, tables: Array, places: Array) -> tuple[Array, Array, Array]:
        changed = np.flatnonzero(self.are_at(places))
        return keys[changed], tables[changed], places[changed]

    def clear(self) -> None:
        """Go on from a snapshot."""
        self._bits[:] = 0
        self._ids, self.count = [], 0
