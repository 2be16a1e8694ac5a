"""The index of a store: from an id and its table to a place, a number.

Open addressing that never stops for long: ids are spread over PARTS tables by their hash, and each
grows by a sixteenth when it is full, so at most one part in PARTS is copied at a time, and nine
tenths of the memory are in use (loops.py has the layout). Sizes need not be powers of two: a
hash is scaled to them, which also keeps entries in the order of their hashes while they move.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from oneflow.kernels.native.program import cut, function_of, run
from oneflow.one_embedding.store.loops import (
    ENTRY_NBYTES,
    GROUP,
    HASH_FACTORS,
    HASH_TABLE,
    HEAD_WORDS,
    PART_BITS,
    PARTS,
    TABLE_BITS,
    write_assign,
    write_find,
    write_move,
    write_part_counts,
)
from oneflow.one_embedding.store.pages import zeros

Array: TypeAlias = "np.ndarray[Any, Any]"

MOST_PLACES = (1 << 64 - TABLE_BITS) - 1
_LEAST_ENTRIES = 64
_GROWTH = 1 / 16
_LOAD = 0.875
"""Share of a table's entries in use from which it grows: at 7/8 an id is found in the first line of
memory mostly; a missing one after ten, which are read in order."""
_WORK = 64
"""Numbers added in the time that it takes to find one id, by which threads are worth waking."""
_ADDRESS, _SIZE, _COUNT, _LIMIT = range(HEAD_WORDS)


def in_order(keys: Array, tables: Array, places: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Yield ids and their places as `Index.entries` does, those of one part at a time."""
    parts = _parts_of(keys, tables)
    order = np.lexsort((places, parts))
    for of_part in np.split(order, np.searchsorted(parts[order], np.arange(1, PARTS))):
        if of_part.size:
            yield keys[of_part], tables[of_part], places[of_part]


def _parts_of(keys: Array, tables: Array) -> Array:
    """The highest bits of the hash of each id (loops.py)."""
    hashed = keys ^ (tables.astype(np.uint64) + np.uint64(1)) * np.uint64(HASH_TABLE)
    for factor in HASH_FACTORS:
        hashed = (hashed ^ (hashed >> np.uint64(33))) * np.uint64(factor)
    hashed ^= hashed >> np.uint64(33)
    parts: Array = hashed >> np.uint64(64 - PART_BITS)
    return parts


class Index:
    """Places of ids. Ids are two arrays: keys, uint64[n], and tables, int32[n], contiguous."""

    def __init__(self) -> None:
        self._heads = np.zeros((PARTS, HEAD_WORDS), np.int64)
        self._entries = [self._made(part, _LEAST_ENTRIES) for part in range(PARTS)]

    def __len__(self) -> int:
        return int(self._heads[:, _COUNT].sum())

    @property
    def nbytes(self) -> int:
        """Memory of all entries."""
        return sum(entries.nbytes for entries in self._entries)

    def find(self, keys: Array, tables: Array) -> Array:
        """Return int64[n], the place of each id, -1 of those that are not there."""
        places = np.empty(keys.size, np.int64)
        fixed = [a.ctypes.data for a in (keys, tables, places, self._heads)]
        parts = cut(keys.size, keys.size * _WORK, keys.size)
        run(function_of(write_find), [[*part, *fixed] for part in parts])
        return places

    def assign(self, keys: Array, tables: Array, places: Array) -> None:
        """Give each id its place (int64[n]), in place of the one that it may have."""
        done = np.zeros(1, np.int64)
        begin = 0
        while begin < keys.size:
            rest = keys[begin:], tables[begin:], places[begin:]
            numbers = [a.ctypes.data for a in (*rest, self._heads, done)]
            run(function_of(write_assign), [[keys.size - begin, *numbers]])
            begin += int(done[0])
            if begin < keys.size:
                self._grow(keys[begin:], tables[begin:])

    def entries(self) -> Iterator[tuple[Array, Array, Array]]:
        """Keys, tables and places of all ids, in pieces: by part of their hash, then by place."""
        for entries in self._entries:
            used = entries[entries[:, 1] != 0]
            words = used[:, 1]
            places = (words & np.uint64(MOST_PLACES)).astype(np.int64) - 1
            order = np.argsort(places)
            tables = (words[order] >> np.uint64(64 - TABLE_BITS)).astype(np.int32)
            yield used[order, 0], tables, places[order]

    def _made(self, part: int, size: int) -> Array:
        size = -(-size // GROUP) * GROUP
        entries = zeros(size * ENTRY_NBYTES).view(np.uint64).reshape(size, 2)
        head = self._heads[part]
        head[_ADDRESS], head[_SIZE], head[_LIMIT] = entries.ctypes.data, size, int(size * _LOAD)
        return entries

    def _grow(self, keys: Array, tables: Array) -> None:
        """Make the tables that have no room for more ids larger: those of a batch at once."""
        coming = np.zeros(PARTS, np.int64)
        numbers = [a.ctypes.data for a in (keys, tables, coming)]
        run(function_of(write_part_counts), [[keys.size, *numbers]])
        wanted = self._heads[:, _COUNT] + coming
        for part in np.flatnonzero(wanted > self._heads[:, _LIMIT]).tolist():
            size = int(self._heads[part, _SIZE])
            before = self._entries[part]
            needed = int(wanted[part] / _LOAD) + 1
            self._entries[part] = self._made(part, max(needed, int(size * (1 + _GROWTH)) + 1))
            numbers = [before.ctypes.data, size, self._heads.ctypes.data]
            run(function_of(write_move), [numbers])
