"""The order in which the rows of the data come: a function of (seed, epoch, position) alone.

So every rank finds its own rows without asking, any number of ranks sees the same order, and a run
goes on anywhere in it. The order of an epoch is a Feistel network over the row numbers with Philox
as its round function (a permutation of 4**h numbers), walked on where it leads beyond the last row:
nothing as long as the data is ever made. Black and Rogaway, "Ciphers with arbitrary finite
domains", CT-RSA 2002.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from oneflow.core.draws import mix_seed
from oneflow.core.rng import philox
from oneflow.jobs.description import DataSpec
from oneflow.kernels.array import Array

ROUNDS = 6
BLOCK = 8192
"""Positions that are worked out together: NumPy needs long arrays to be quick."""
MAX_BLOCKS = 64


class Order:
    """The rows of each epoch in order. seed: None is the order of the data."""

    def __init__(self, num_rows: int, seed: int | None) -> None:
        self._num_rows, self._seed = num_rows, seed
        self._half = max(1, ((num_rows - 1).bit_length() + 1) // 2)
        self._blocks: dict[tuple[int, int], Array] = {}

    def rows(self, epoch: int, start: int, stop: int) -> Array:
        """int64 numbers of the rows at positions [start, stop) of an epoch."""
        if self._seed is None:
            return np.arange(start, stop, dtype=np.int64)
        parts = []
        while start < stop:
            number, at = divmod(start, BLOCK)
            block = self._block(epoch, number)
            parts.append(block[at : at + stop - start])
            start += len(parts[-1])
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _block(self, epoch: int, number: int) -> Array:
        found = self._blocks.get((epoch, number))
        if found is None:
            if len(self._blocks) >= MAX_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            first = number * BLOCK
            positions = np.arange(first, min(first + BLOCK, self._num_rows), dtype=np.uint64)
            found = self._blocks[epoch, number] = self._permuted(epoch, positions)
        return found

    def _permuted(self, epoch: int, positions: Array) -> Array:
        keys = [mix_seed(self._seed or 0, epoch, i) for i in range(ROUNDS)]
        result = self._network(keys, positions)
        while True:
            beyond = np.flatnonzero(result >= self._num_rows)
            if not beyond.size:
                rows: Array = np.asarray(result, np.int64)
                return rows
            result[beyond] = self._network(keys, result[beyond])

    def _network(self, keys: list[int], numbers: Array) -> Array:
        half, mask = np.uint64(self._half), np.uint64((1 << self._half) - 1)
        left, right = numbers >> half, numbers & mask
        for key in keys:
            word = philox(key, right)[0].astype(np.uint64)
            left, right = right, left ^ (word & mask)
        joined: Array = (left << half) | right
        return joined


@dataclass(frozen=True)
class Cursor:
    """The place where the next batch begins. position: in rows of the epoch."""

    epoch: int = 0
    position: int = 0


class Batches:
    """The rows of each batch.

    epochs: 0 is without end.  drop_last: rows left of an epoch that make no whole batch are
    skipped; otherwise a batch goes on with the first rows of the next epoch, the very last one too:
    every row is seen, and all batches have one size.
    """

    def __init__(
        self, num_rows: int, batch: int, *, seed: int | None, drop_last: bool, epochs: int
    ) -> None:
        self.num_rows, self.batch = num_rows, batch
        self._order = Order(num_rows, seed)
        self._epoch_rows = num_rows - num_rows % batch if drop_last else num_rows
        self._epochs = epochs

    @classmethod
    def of(cls, data: DataSpec) -> Batches:
        return cls(
            data.rows, data.batch, seed=data.seed, drop_last=data.drop_last, epochs=data.epochs
        )

    @property
    def count(self) -> int | None:
        """Number of batches; None: without end."""
        return -(-self._epoch_rows * self._epochs // self.batch) if self._epochs else None

    def rows(self, cursor: Cursor, start: int, stop: int) -> Array:
        """int64 numbers of rows [start, stop) of the batch at a cursor."""
        parts = [
            self._order.rows(epoch, first, last)
            for epoch, first, last in self._spans(cursor, start, stop)
        ]
        return np.concatenate(parts) if len(parts) != 1 else parts[0]

    def _spans(self, cursor: Cursor, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        epoch, at = divmod(cursor.position + start, self._epoch_rows)
        epoch += cursor.epoch
        left = stop - start
        while left:
            count = min(left, self._epoch_rows - at)
            yield epoch, at, at + count
            left, epoch, at = left - count, epoch + 1, 0

    def after(self, cursor: Cursor, count: int = 1) -> Cursor:
        """The cursor so many batches later."""
        epochs, position = divmod(cursor.position + count * self.batch, self._epoch_rows)
        return Cursor(cursor.epoch + epochs, position)
