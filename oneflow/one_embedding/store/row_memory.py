"""Rows in memory by place, in chunks, so that more rows move none of those that are there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from oneflow.kernels.expressions.program import Program, cut, function_of, run
from oneflow.one_embedding.store.loops import write_copy, write_mark
from oneflow.one_embedding.store.pages import zeros

Array: TypeAlias = "np.ndarray[Any, Any]"

_CHUNK_NBYTES = 1 << 26
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
        """Write the rows at places (int64[n]) into `out`, float32 (n, line_size), contiguous."""
        self._copy(_FETCH, places, out)

    def store(self, places: Array, rows: Array) -> None:
        """Replace the rows at places, each once."""
        self._copy(_STORE, places, rows)

    def _copy(self, write: Callable[[], Program], places: Array, outer: Array) -> None:
        if not places.size:
            return
        fixed = [places.ctypes.data, self._addresses.ctypes.data, self._shift]
        fixed += [self.line_size, self.line_size, outer.ctypes.data]
        parts = cut(places.size, outer.size, places.size)
        run(function_of(write), [[*part, *fixed] for part in parts])


class Changes:
    """Ids of the rows that changed since the last snapshot, each once."""

    def __init__(self) -> None:
        self._bits = np.zeros(0, np.uint64)
        self._ids: list[tuple[Array, Array]] = []

    def mark(self, places: Array, keys: Array, tables: Array, most: int) -> None:
        """Note rows by their places, all below `most`."""
        words = (most >> 6) + 1
        if words > self._bits.size:
            bits = np.zeros(words + words // 8, np.uint64)
            bits[: self._bits.size] = self._bits
            self._bits = bits
        fresh, count = np.empty(places.size + 1, np.int64), np.zeros(1, np.int64)
        numbers = [a.ctypes.data for a in (places, self._bits, fresh, count)]
        run(function_of(write_mark), [[places.size, *numbers]])
        if count[0]:
            which = fresh[: count[0]]
            self._ids.append((keys[which], tables[which]))

    def ids(self) -> tuple[Array, Array]:
        """Keys and tables of all of them."""
        if not self._ids:
            return np.empty(0, np.uint64), np.empty(0, np.int32)
        keys, tables = zip(*self._ids, strict=True)
        whole = np.concatenate(keys), np.concatenate(tables)
        self._ids = [whole]
        return whole

    def clear(self) -> None:
        self._bits[:] = 0
        self._ids = []
