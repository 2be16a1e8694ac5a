"""Rows that are read ahead of the step that looks them up, on a thread beside the actors.

Ids of the next batch are numbered and their rows read while a step computes, but for rows that the
step has looked up itself and so is about to change. Rows that an update changes after they were
read are read again by the look-up, which therefore finds the same rows as it would alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from oneflow.core.side_work import side_work
from oneflow.kernels.array import Array
from oneflow.kernels.row_ids import Request, RowIds, are_same_ids

_MOST_BATCHES = 4
"""Batches that are read ahead at a time: the oldest is given up for one more."""
_ROWS_AT_ONCE = 4096
"""Rows that are read while an update of others has to wait."""

Get = Callable[[Array, Array, Array], None]
"""(keys, tables, rows to be written)."""


class _Batch:
    """One batch that is read ahead.

    lines: its rows, of which those in `is_read` were read.  changed: the ids that updates have
    changed since it began.
    """

    def __init__(self, ids: Array, table_ids: Array | None) -> None:
        self.ids = ids.copy()
        self.table_ids = None if table_ids is None else table_ids.copy()
        self.changed: list[Request] = []
        self.is_given_up = False
        self.is_read: Array = np.zeros(0, np.bool_)
        self.lines: Array = np.zeros((0, 0), np.float32)
        self.done: Future[Request]


class RowsAhead:
    """The batches of one table that are read ahead.

    lock: held by the thread that reads or changes rows.  size: numbers of a row that are read.
    """

    def __init__(self, ids: RowIds, lock: Any, size: int) -> None:
        self._ids, self._lock, self._size = ids, lock, size
        self._batches: deque[_Batch] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self.used = 0
        """Rows that look-ups found read."""

    def begin(
        self,
        ids: Array,
        table_ids: Array | None,
        number: Callable[[Array, Array | None], Request],
        get: Get,
        now: Request | None,
    ) -> None:
        """Begin with a batch. number: numbers its ids.  get: reads its rows.  now: the ids of the
        step that goes on.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"rows of {self._ids.name}")
        batch = _Batch(ids, table_ids)
        with self._lock:
            if len(self._batches) == _MOST_BATCHES:
                self._batches.popleft().is_given_up = True
            self._batches.append(batch)
        batch.done = self._thread.submit(self._read, batch, number, get, now)

    def numbered(self, ids: Array, table_ids: Array | None) -> Request | None:
        """The ids of a batch that was begun, numbered; None of any other, and of one that could not
        be read: the look-up says why."""
        for batch in list(self._batches):
            if are_same_ids((batch.ids, batch.table_ids), (ids, table_ids)):
                if batch.done.exception() is None:
                    return batch.done.result()
                self._batches.remove(batch)
        return None

    def take(self, request: Request) -> tuple[Array, Array] | None:
        """(rows of the distinct ids, numbers of those that are still to be read) of a batch that
        was begun; None of any other. The caller holds the lock."""
        for batch in self._batches:
            if batch.done.done() and batch.done.exception() is None:
                if batch.done.result() is not request:
                    continue
                self._batches.remove(batch)
                missing = ~batch.is_read
                for changed in batch.changed:
                    missing |= self._are_among(request, changed)
                self.used += int(missing.size - missing.sum())
                return batch.lines, np.flatnonzero(missing)
        return None

    def note_change(self, request: Request) -> None:
        """Rows of these ids are changed. The caller holds the lock."""
        for batch in self._batches:
            batch.changed.append(request)

    def give_up(self) -> None:
        """All rows may be others from here on."""
        with self._lock:
            while self._batches:
                self._batches.popleft().is_given_up = True

    def close(self) -> None:
        self.give_up()
        if self._thread is not None:
            self._thread.shutdown()

    # ---- on the thread ---------------------------------------------------------------------------

    def _read(
        self,
        batch: _Batch,
        number: Callable[[Array, Array | None], Request],
        get: Get,
        now: Request | None,
    ) -> Request:
        with side_work(f"rows ahead of {self._ids.name}"):
            request = number(batch.ids, batch.table_ids)
            count = request.keys.size
            lines, is_read = np.empty((count, self._size), np.float32), np.zeros(count, np.bool_)
            batch.lines, batch.is_read = lines, is_read
            wanted = np.arange(count)
            if now is not None:
                wanted = np.flatnonzero(~self._are_among(request, now))
            for first in range(0, wanted.size, _ROWS_AT_ONCE):
                some = wanted[first : first + _ROWS_AT_ONCE]
                rows = np.empty((some.size, self._size), np.float32)
                with self._lock:
                    if batch.is_given_up:
                        break
                    get(request.keys[some], request.tables[some], rows)
                lines[some], is_read[some] = rows, True
        return request

    def _are_among(self, request: Request, others: Request) -> Array:
        """bool[ids]: which distinct ids of a request another has too."""
        keys = np.concatenate([others.keys, request.keys]).view(np.int64)
        tables = np.concatenate([others.tables, request.tables])
        numbers = self._ids.number(keys, tables, None).inverse
        found: Array = numbers[others.keys.size :] < others.keys.size
        return found
