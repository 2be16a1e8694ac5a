"""Rows of one open table in the memory of a GPU: looked up, their gradients kept, and updated,
without waiting for the GPU.

The GPU finds ids that no table takes, and the call that follows reports them; such ids have got
zeros until then. Batches are numbered anew for their gradients, because nobody could tell whether
an array still holds the ids that it held before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from oneflow.core.errors import OneFlowError
from oneflow.core.metrics import METRICS
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.expressions.cuda_rows import RowRule, update_rows
from oneflow.kernels.row_ids import RowIds
from oneflow.kernels.rows_gpu import (
    ASKED,
    BAD_ID,
    BAD_TABLE,
    CAME,
    DISTINCT,
    UPDATED,
    DeviceIds,
    DeviceTable,
    norms_of,
    scale_of,
    sums_of,
)
from oneflow.one_embedding.store.device_side import DeviceSide
from oneflow.one_embedding.store.device_tier import DeviceTier


@dataclass
class Counts:
    """Ids whose rows were looked up here, the distinct ones among them by batch, and the updates of
    rows.
    """

    ids: int = 0
    distinct: int = 0
    updated: int = 0


@dataclass(frozen=True)
class Waiting:
    """Gradients of rows that wait for an update, and the norms that were told of them."""

    ids: DeviceIds
    sums: Array
    norms: Array


class DeviceRows:
    """The rows of the buckets first .. last - 1 of tables.

    ids: the ids that they take.  counts: those of the open table.  tell: called when the tier has
    counted.
    """

    def __init__(
        self,
        tier: DeviceSide,
        ids: RowIds,
        buckets: tuple[int, int],
        counts: Counts,
        tell: Callable[[], None],
    ) -> None:
        self._tier, self._ids, self._buckets, self._counts = tier, ids, buckets, counts
        self._xp: ArrayModule = tier.xp
        self._tell = tell
        self.waiting: list[Waiting] = []

    @property
    def has_all(self) -> bool:
        """Whether all rows are on the GPU, so that none need be read ahead."""
        return isinstance(self._tier, DeviceTier)

    @contextmanager
    def _at_work(self) -> Iterator[DeviceTable]:
        if self._tier.xp.cuda.get_current_stream().is_capturing():
            raise OneFlowError(
                f"embedding {self._ids.name!r}: a step on its rows is not the same each time"
            )
        with self._tier.here() as table:
            self.hear()
            yield table
            self._tier.ask()

    def hear(self, *, waits: bool = False) -> None:
        """Add up the counts of the GPU, and raise PositionError for ids that it could not take.
        waits: all that it was asked for so far."""
        with self._tier.here():
            grown = self._tier.heard(waits=waits)
        if grown is None:
            return
        self._tell()
        self._counts.ids += int(grown[ASKED] + grown[CAME])
        self._counts.distinct += int(grown[DISTINCT])
        self._counts.updated += int(grown[UPDATED])
        METRICS.row_ids["asked"] += int(grown[ASKED])
        METRICS.row_ids["distinct"] += int(grown[DISTINCT])
        if grown[BAD_ID]:
            raise self._ids.negative(int(grown[BAD_ID]))
        if bad := int(grown[BAD_TABLE]):
            raise self._ids.no_table(bad if bad < 0 else bad - 1)

    def _numbered(
        self,
        table: DeviceTable,
        ids: Array,
        table_ids: Array | None,
        padding_idx: int | None,
        is_left: Array | None,
    ) -> DeviceIds:
        known = self._ids
        return table.number(
            ids,
            table_ids,
            num_tables=known.num_tables,
            padding_idx=padding_idx,
            is_signed=known.is_signed,
            buckets=self._buckets,
            is_left=is_left,
        )

    def look_up(
        self,
        out: Array,
        ids: Array,
        table_ids: Array | None,
        padding_idx: int | None,
        *,
        makes_rows: bool,
        is_left: Array | None = None,
    ) -> None:
        """Write the rows of ids into `out`, float32 (ids, size); zeros for those that have none
        here.

        makes_rows: are rows made that are not there? Else only their first values.  is_left:
        bool[ids], of ids that came from other ranks: those that are left out.
        """
        with self._at_work() as table:
            asked = self._numbered(table, ids, table_ids, padding_idx, is_left)
            word = ASKED if is_left is None else CAME
            flat = (asked.size, out.shape[-1])
            rows = out if out.flags.c_contiguous else self._xp.empty(flat, np.float32)
            self._tier.take(rows.reshape(flat), asked, asked=word, makes_rows=makes_rows)
            if rows is not out:
                out[...] = rows.reshape(out.shape)

    def keep(
        self,
        norms: Array,
        d: Array,
        ids: Array,
        table_ids: Array | None,
        padding_idx: int | None,
        is_left: Array | None = None,
    ) -> None:
        """Keep the sums of d, float (ids, size), over equal ids for the update, and write the norms
        per bucket. is_left: as of `look_up`."""
        with self._at_work() as table:
            asked = self._numbered(table, ids, table_ids, padding_idx, is_left)
            d = self._xp.ascontiguousarray(d, np.float32).reshape(asked.size, d.shape[-1])
            self._keep(asked, sums_of(self._xp, d, asked), norms)

    def _keep(self, ids: DeviceIds, sums: Array, norms: Array) -> None:
        told = self._xp.empty(norms.size, np.float32)
        norms_of(self._xp, sums, ids, told)
        norms[...] = told
        self.waiting.append(Waiting(ids, sums, told))

    def forget(self) -> None:
        """Forget the gradients that wait."""
        self.waiting = []

    def update(
        self, norms: Array, rule: RowRule, lr: Array, step: Array, is_wanted: Array | None
    ) -> None:
        """Update the rows whose gradients wait, of which there are some, scaled as their norms
        were, and forget these.

        is_wanted: bool[]; where it is false nothing changes.
        """
        xp = self._xp
        with self._at_work() as table:
            waiting, self.waiting = self.waiting, []
            told = sum((w.norms for w in waiting[1:]), start=waiting[0].norms)
            ids, sums = waiting[0].ids, waiting[0].sums
            if len(waiting) > 1:
                ids, sums = self._merged(table, waiting)
            scale = scale_of(xp, told, xp.ascontiguousarray(norms))
            lr, step = xp.asarray(lr), xp.asarray(step)

            def change(lines: Array, places: Array) -> None:
                update_rows(rule, lines, places, sums, scale, lr, step)

            self._tier.change(ids, change, step if rule.catches_up else None, is_wanted)

    def _merged(self, table: DeviceTable, waiting: list[Waiting]) -> tuple[DeviceIds, Array]:
        xp = self._xp
        each = [w.ids for w in waiting]
        keys = xp.concatenate([x.keys for x in each]).view(np.int64)
        ids = table.number(
            keys,
            xp.concatenate([x.tables for x in each]),
            num_tables=self._ids.num_tables,
            buckets=self._buckets,
            is_left=xp.concatenate([x.are_later(xp) for x in each]),
        )
        return ids, sums_of(xp, xp.concatenate([w.sums for w in waiting]), ids)
