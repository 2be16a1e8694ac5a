"""Tables that kernels of this process have open: their rows, and the gradients that wait for an
update.

A table is opened by its description alone, so that a graph needs no more than its attribute: a
worker that was sent a job opens the same rows. The maker of the description may close it again.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from oneflow.core.dtype import DType, float32, float64, int64
from oneflow.core.errors import ArgumentError, OneFlowError, RowStoreError, ShapeError
from oneflow.core.metrics import METRICS
from oneflow.core.op import find_op
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.device_rows import Counts, DeviceRows
from oneflow.kernels.expressions.cuda_rows import RowRule
from oneflow.kernels.ids_ahead import IdsAhead, forget_sent
from oneflow.kernels.registry import select
from oneflow.kernels.row_forms import forget_losses
from oneflow.kernels.row_ids import Request, described, loops
from oneflow.kernels.rows_ahead import RowsAhead
from oneflow.one_embedding.store.initial import Column, InitialRows
from oneflow.one_embedding.store.row_store import RowStore, open_store
from oneflow.ops.one_embedding import BUCKETS

_KEPT_REQUESTS = 8
"""Batches of ids whose numbering is kept: the gradient of a look-up asks for them again."""
_MOST_WAITING = 4096
"""Gradients that may wait for one update: more than any number of micro-batches."""


@dataclass(frozen=True)
class Waiting:
    """Gradients of rows that wait for an update, and the norms that were told of them."""

    request: Request
    sums: Array
    norms: Array


def count_asked(request: Request) -> None:
    """Count the ids of a batch for the metrics of this process."""
    METRICS.row_ids["asked"] += request.num_ids


class OpenTable:
    """The rows that one rank holds of the tables of one description."""

    def __init__(self, text: str, first: int, last: int) -> None:
        told = json.loads(text)
        self.text = text
        self.ids = described(text)
        self.name = self.ids.name
        self.size: int = sum(width for _, width in _widths(told["columns"]))
        self.line_size: int = told["line_size"]
        self.first, self.last = first, last
        num_ranks = round(BUCKETS / (last - first))
        if num_ranks * (last - first) != BUCKETS:
            raise ArgumentError(
                f"embedding {self.name!r}: rows cannot be shared evenly by {num_ranks} ranks; use "
                f"a number of ranks that divides {BUCKETS}: 1 to 10, 12, 14, 15, 16, 18, 20 ..."
            )
        initial = InitialRows(
            told["seed"],
            [[Column(**column) for column in columns] for columns in told["columns"]],
            (0.0,) * (self.line_size - self.size),
        )
        try:
            self.store: RowStore = open_store(
                told["store"],
                key_type=told["key_type"],
                line_size=self.line_size,
                initial=initial,
                rank=round(first * num_ranks / BUCKETS),
                num_ranks=num_ranks,
            )
        except RowStoreError as error:
            raise type(error)(f"embedding {self.name!r}: {error}") from error
        if told.get("snapshot"):
            self.store.load_snapshot(told["snapshot"])
        self.counts = Counts()
        self._lock = threading.RLock()
        self._requests: deque[Request] = deque(maxlen=_KEPT_REQUESTS)
        self._waiting: list[Waiting] = []
        self._now: Request | None = None
        self._on_device: DeviceRows | None = None
        self.ahead = RowsAhead(self.ids, self._lock, self.size)
        self.ids_ahead = IdsAhead(self.name)

    def on_device(self, xp: ArrayModule) -> DeviceRows | None:
        """The rows in the memory of a GPU, where they are from the first such call on; None for
        NumPy, and of tables that lie elsewhere."""
        if xp is np:
            return None
        if self._on_device is None:
            try:
                tier = self.store.on_device(xp)
            except RowStoreError as error:
                raise type(error)(f"embedding {self.name!r}: {error}") from error
            if tier is not None:
                self.ahead.give_up()
                buckets = self.first, self.last
                self._on_device = DeviceRows(tier, self.ids, buckets, self.counts, self.store.tell)
        return self._on_device

    def settle(self) -> None:
        """Wait for the counts that a GPU still makes."""
        if self._on_device is not None:
            self._on_device.hear(waits=True)

    # ---- looking up ------------------------------------------------------------------------------

    def request(self, ids: Array, table_ids: Array | None, padding_idx: int | None) -> Request:
        """The distinct ids of a batch. Raises PositionError for ids that no table has."""
        made = self.ahead.numbered(ids, table_ids)
        if made is None:
            for known in self._requests:
                if known.is_for(ids, table_ids):
                    return known
            made = self._numbered(ids, table_ids, padding_idx)
        self._requests.append(made)
        return made

    def _numbered(self, ids: Array, table_ids: Array | None, padding_idx: int | None) -> Request:
        self.ids.check(ids, table_ids, padding_idx)
        return self.ids.number(ids, table_ids, padding_idx, self.first, self.last)

    def read_ahead(
        self,
        ids: Array,
        table_ids: Array | None,
        padding_idx: int | None,
        *,
        makes_rows: bool = True,
    ) -> None:
        """Begin to read the rows of a batch that will be looked up, on a thread of its own."""
        if self._on_device is not None and self._on_device.has_all:
            return
        number = partial(self._numbered, padding_idx=padding_idx)
        get = partial(self.store.get_early, makes_rows=makes_rows)
        self.ahead.begin(ids, table_ids, number, get, self._now)

    def look_up(
        self, request: Request, *, makes_rows: bool = True, counts_ids: bool = True
    ) -> Array:
        """float32[n, size]: the rows of the distinct ids, without their states.

        makes_rows: are rows made that are not there?  counts_ids: the metrics are to count the ids
        as asked for; else that was done before.
        """
        with self._lock:
            lines = self._lines(request, makes_rows)
        self._now = request
        self.counts.ids += request.num_ids
        self.counts.distinct += request.keys.size
        METRICS.row_ids["distinct"] += request.keys.size
        if counts_ids:
            count_asked(request)
        return lines

    def _lines(self, request: Request, makes_rows: bool) -> Array:
        found = self.ahead.take(request)
        if found is None:
            lines = np.empty((request.keys.size, self.size), np.float32)
            self.store.get(request.keys, request.tables, lines, makes_rows=makes_rows)
            return lines
        lines, missing = found
        rows = np.empty((missing.size, self.size), np.float32)
        ids = request.keys[missing], request.tables[missing]
        self.store.get(*ids, rows, makes_rows=makes_rows)
        lines[missing] = rows
        return lines

    def load_snapshot(self, name: str) -> None:
        """Replace the rows by those of a snapshot."""
        self.ahead.give_up()
        self.store.load_snapshot(name)

    def close(self) -> None:
        """Close the store: rows that no snapshot holds are lost."""
        self.ahead.close()
        self.store.close()

    # ---- gradients -------------------------------------------------------------------------------

    def keep(self, request: Request, d: Array) -> Array:
        """Keep the sums of d, float32[ids, size], over equal ids for the update; returns the norms
        per bucket."""
        sums = np.zeros((request.keys.size, self.size), np.float32)
        loops().sum_rows(d, request.inverse, sums)
        return self.keep_sums(request, sums)

    def keep_sums(self, request: Request, sums: Array) -> Array:
        """Keep gradients, float32[n, size], of the distinct ids: see `keep`."""
        self.check_width(sums.shape[-1])
        squares = np.zeros(self.last - self.first)
        loops().add_squares(sums, request.buckets, self.first, squares)
        norms = np.sqrt(squares).astype(np.float32)
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                raise OneFlowError(
                    f"embedding {self.name!r}: {_MOST_WAITING} backward passes, and no update: "
                    "give its parameters to an optimizer and call step(), or freeze them by "
                    "requires_grad_(False)"
                )
            self._waiting.append(Waiting(request, sums, norms))
        return norms

    def check_width(self, size: int) -> None:
        """Raise ShapeError unless rows have `size` elements: loops do not look."""
        if size != self.size:
            raise ShapeError(f"embedding {self.name!r}: rows have {self.size} elements, not {size}")

    def forget(self) -> None:
        """Forget the gradients that wait."""
        with self._lock:
            self._waiting.clear()
        if self._on_device is not None:
            self._on_device.forget()

    def take(self, norms: Array) -> tuple[Request, Array] | None:
        """The distinct ids of all gradients that wait, and their sums, scaled as their norms were;
        None if there are none."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        if not waiting:
            return None
        told: Array = sum((w.norms for w in waiting[1:]), start=waiting[0].norms)
        scale = _scale(told, norms)
        if len(waiting) == 1:
            request, sums = waiting[0].request, waiting[0].sums
        else:
            request, sums = self._merged(waiting)
        if scale != 1.0:
            sums *= scale
        return request, sums

    def _merged(self, waiting: list[Waiting]) -> tuple[Request, Array]:
        keys = np.concatenate([w.request.keys for w in waiting])
        tables = np.concatenate([w.request.tables for w in waiting])
        request = self.ids.number(keys.view(np.int64), tables, None, self.first, self.last)
        sums = np.zeros((request.keys.size, self.size), np.float32)
        loops().sum_rows(np.concatenate([w.sums for w in waiting]), request.inverse, sums)
        return request, sums

    # ---- updates ---------------------------------------------------------------------------------

    def update(self, request: Request, sums: Array, rule: Rule, lr: Array, step: Array) -> None:
        """Update rows by the gradients `sums`."""

        def change(lines: Array) -> None:
            rule.apply(self, lines, sums, lr, step)

        with self._lock:
            self.ahead.note_change(request)
            self.store.update(request.keys, request.tables, change)
            self.counts.updated += request.keys.size


def _scale(told: Array, norms: Array) -> float:
    """The factor between norms that were told and those that came back, from the largest."""
    if not told.size:
        return 1.0
    at = int(np.argmax(told))
    before, after = float(told[at]), float(norms[at])
    if before == after or before == 0.0 or not np.isfinite(before):
        return 1.0
    return after / before


def _widths(columns: list[list[dict[str, Any]]]) -> Iterator[tuple[str, int]]:
    """Kind and width of each column of the first table: all tables are as wide."""
    for column in columns[0]:
        yield column["kind"], column["width"]


# ---- rules ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """An update of dense parameters, for rows.

    name: of its op.  attrs: of the op.  first_states: of a new row's states.  catches_up: decay the
    running means of Adam for the steps in which a row got no gradient, and make the moves that its
    momentum would have made.
    """

    name: str
    attrs: Attrs = field(default_factory=dict)
    first_states: tuple[float, ...] = ()
    catches_up: bool = False

    def check_fits(self, table: OpenTable) -> None:
        """Raise ArgumentError where a row has no room for the states."""
        size, states = table.size, len(self.first_states)
        needed = size * (1 + states) + self.catches_up
        if needed > table.line_size:
            raise ArgumentError(
                f"embedding {table.name!r}: {self.name} keeps {states} states of {size} numbers "
                f"beside each row, {needed} numbers in all, but a row has {table.line_size}: give "
                f"the store options size_factor={1 + states}"
            )

    def on_device(self) -> RowRule:
        """The same on a GPU."""
        options = tuple(sorted(self.attrs.items()))
        return RowRule(self.name, options, self.first_states, self.catches_up)

    def apply(self, table: OpenTable, lines: Array, sums: Array, lr: Array, step: Array) -> None:
        """Overwrite rows and their states."""
        self.check_fits(table)
        size, states = table.size, len(self.first_states)
        if not lines.shape[0]:
            return
        parts = [lines[:, k * size : (k + 1) * size] for k in range(1 + states)]
        for part, first in zip(parts[1:], self.first_states, strict=True):
            if first:  # states of new rows are zeros: what they begin with is kept apart
                part += np.float32(first)
        if self.catches_up:
            self._catch_up(lines[:, -1], parts, lr, step)
            lines[:, -1] = step
        self._run(parts, sums, lr, step)
        for part, first in zip(parts[1:], self.first_states, strict=True):
            if first:
                part -= np.float32(first)

    def _run(self, parts: list[Array], sums: Array, lr: Array, step: Array) -> None:
        op = find_op(self.name)
        row = TensorType(parts[0].shape, float32)
        numbers = [x for name, x in (("lr", lr), ("step", step)) if name in op.operands]
        types = (
            *(row,) * (1 + len(parts)),
            *(TensorType((), t) for t in _number_types(op.operands)),
        )
        attrs = op.defaults | self.attrs
        kernel = select(self.name, "cpu", types, row.numel)
        work = kernel.workspace(types, attrs) if kernel.workspace else ()
        scratch = [np.empty(t.shape, t.dtype.np) for t in work]
        kernel.bound(types, attrs)(np, *parts, parts[0], sums, *parts[1:], *numbers, *scratch)

    def _catch_up(self, seen: Array, parts: list[Array], lr: Array, step: Array) -> None:
        """Bring rows to the step before this one, as zero gradients would have: their means
        exactly, the row itself with the root as it was last."""
        missed = np.where(seen > 0, float(step) - 1 - seen, 0.0)[:, None]
        beta1, beta2 = self.attrs["beta1"], self.attrs["beta2"]
        row, m, v = parts
        moves = beta1 * (1 - beta1**missed) / (1 - beta1) if beta1 < 1 else missed
        top, root = m * moves, np.sqrt(v)
        if self.attrs["do_bias_correction"]:
            last = np.maximum(seen, 1.0)[:, None]
            top /= 1 - beta1**last
            root = root / np.sqrt(1 - beta2**last)
        row -= (float(lr) * top / (root + self.attrs["eps"])).astype(np.float32)
        m *= (beta1**missed).astype(np.float32)
        v *= (beta2**missed).astype(np.float32)


def _number_types(operands: tuple[str, ...]) -> list[DType]:
    return [t for name, t in (("lr", float64), ("step", int64)) if name in operands]


# ---- which are open ------------------------------------------------------------------------------

_OPEN: dict[tuple[str, int, int], OpenTable] = {}
_LOCK = threading.RLock()  # garbage that is collected while a table is opened may close others


def open_table(text: str, first: int | None = None, last: int | None = None) -> OpenTable:
    """The rows in buckets first .. last - 1 of the tables that `text` describes, opened if they are
    not; None: of all buckets."""
    key = (text, 0 if first is None else first, BUCKETS if last is None else last)
    with _LOCK:
        found = _OPEN.get(key)
        if found is None:
            found = _OPEN[key] = OpenTable(*key)
    return found


def opened(text: str) -> list[OpenTable]:
    """Those parts of the tables of a description that are open in this process."""
    with _LOCK:
        return [table for (of, *_), table in _OPEN.items() if of == text]


def close_tables(text: str) -> None:
    """Close the tables of a description: rows that no snapshot holds are lost."""
    with _LOCK:
        closing = [_OPEN.pop(key) for key in list(_OPEN) if key[0] == text]
    forget_losses(text)
    forget_sent(text)
    for table in closing:
        table.close()
