"""The side of a tier that a GPU sees: batches of ids that are there, and the counters.

A GPU tells late: the head of its table is copied to the host behind each batch, and read when it
has come.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.errors import RowStoreError
from oneflow.kernels.array import ArrayModule
from oneflow.kernels.rows_gpu import (
    ABSENT,
    BAD_ID,
    DISTINCT,
    HEAD,
    UPDATED,
    DeviceIds,
    DeviceTable,
)
from oneflow.one_embedding.store.statistics import StoreStatistics
from oneflow.one_embedding.store.tier import Array

Update: TypeAlias = Callable[[Array, Array], None]
"""(lines, places of a batch): overwrites the rows there."""
Guard: TypeAlias = "AbstractContextManager[bool]"
"""A lock that its holder may take again."""
Wanted: TypeAlias = "Array | None"
"""bool[]; where it is false a batch changes nothing."""


class DeviceSide(ABC):
    """A tier with a table in the memory of the GPU that is current when it is made.

    xp: CuPy.  guard: of the store, held while anything is asked of the table.
    """

    table: DeviceTable
    statistics: StoreStatistics

    def __init__(self, xp: ArrayModule, guard: Guard) -> None:
        self.xp: Any = xp
        self._guard = guard
        self._device = self.xp.cuda.Device()
        self._stream = self.xp.cuda.get_current_stream()
        self._told: Array = _pinned(HEAD)
        self._seen = np.zeros(HEAD, np.int64)
        """The head as it was when it was last counted."""
        self._on_its_way: Any = None

    @contextlib.contextmanager
    def here(self) -> Iterator[DeviceTable]:
        """The table, with its GPU current, and behind all that was asked of it on other streams."""
        with self._guard, self._device:
            stream = self.xp.cuda.get_current_stream()
            if stream != self._stream:
                stream.wait_event(self._stream.record())
                self._stream = stream
            yield self.table

    @contextlib.contextmanager
    def memory_for(self, what: str, nbytes: int, advice: str) -> Iterator[None]:
        """Raise RowStoreError where the GPU has not the memory that is asked for inside."""
        try:
            yield
        except self.xp.cuda.memory.OutOfMemoryError as error:
            free = self.xp.cuda.runtime.memGetInfo()[0]
            raise RowStoreError(
                f"{what} take {nbytes / 2**30:.1f} GiB of the memory of the GPU, of which "
                f"{free / 2**30:.1f} GiB are free; {advice}"
            ) from error

    # ---- batches ---------------------------------------------------------------------------------

    @abstractmethod
    def take(self, out: Array, ids: DeviceIds, *, asked: int, makes_rows: bool) -> None:
        """Write the rows of ids into `out`, float32[n, size]; zeros for those that are left out.

        asked: the word of the head that counts the ids.  makes_rows: are rows made that are not
        there? Else only their first values.
        """

    @abstractmethod
    def change(self, ids: DeviceIds, update: Update, step: Array | None, wanted: Wanted) -> None:
        """Overwrite the rows of ids, made where they are not there, by `update`. step: int64[], to
        be written as their last number."""

    # ---- what the device knows -------------------------------------------------------------------

    def ask(self) -> None:
        """Let the head come from the GPU, unless one is on its way."""
        if self._on_its_way is None:
            self.table.head.get(out=self._told, blocking=False)
            self._on_its_way = self._stream.record()
            self._asked_now()

    def heard(self, *, waits: bool = False) -> Array | None:
        """Take the counts of the head, and return by how much its words have grown since they were
        heard last, int64[HEAD]; None if no head came. waits: the head as it is now."""
        if waits:
            told = self.xp.asnumpy(self.table.head)
            self._on_its_way = None
            self._asked_now()
        elif self._on_its_way is not None and self._on_its_way.done:
            self._on_its_way, told = None, self._told
        else:
            return None
        grown: Array = told - self._seen
        self._seen = told.copy()
        if told[BAD_ID:].any():  # each is told of once
            grown[BAD_ID:] = told[BAD_ID:]
            self.table.head[BAD_ID:] = 0
            self._seen[BAD_ID:] = 0
        asked = int(grown[DISTINCT] + grown[UPDATED])
        self.statistics.lookups += asked
        self.statistics.device_hits += asked - int(grown[ABSENT])
        self._told_of(told, grown)
        return grown

    def _asked_now(self) -> None:  # noqa: B027
        """The head that is on its way knows of all batches so far."""

    def _told_of(self, told: Array, grown: Array) -> None:  # noqa: B027
        """A head has come, and by how much it has grown."""


def _pinned(count: int) -> Array:
    """int64[count] that a GPU writes while the host goes on."""
    import cupyx

    made: Array = cupyx.zeros_pinned(count, np.int64)
    return made
