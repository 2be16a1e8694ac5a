"""Ids of a batch, each once: a rank's request to tables, or to the ranks that hold their rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType

import numpy as np

from oneflow.core.errors import PositionError
from oneflow.kernels.array import Array
from oneflow.ops.one_embedding import BUCKETS

UNSIGNED = ("uint64", "uint32")


def loops() -> ModuleType:
    """Compiled loops; numba takes a moment to import."""
    return import_module("oneflow.kernels.fused.rows")


@dataclass(frozen=True)
class Request:
    """The ids of a batch that this rank holds the rows of, each once.

    keys: uint64[n].  tables, buckets: of each.  inverse: int64, for each id of the batch its place
    among them, or -1.
    """

    ids: Array
    table_ids: Array | None
    keys: Array
    tables: Array
    buckets: Array
    inverse: Array

    @property
    def num_ids(self) -> int:
        """Ids of the batch that this rank holds the rows of, padding aside."""
        return int(np.count_nonzero(self.inverse >= 0))

    def is_for(self, ids: Array, table_ids: Array | None) -> bool:
        return are_same_ids((self.ids, self.table_ids), (ids, table_ids))


def are_same_ids(a: tuple[Array, Array | None], b: tuple[Array, Array | None]) -> bool:
    """Whether two batches (ids, table_ids) are equal."""
    (ids, tables), (other_ids, other_tables) = a, b
    if tables is None or other_tables is None:
        return tables is other_tables and np.array_equal(ids, other_ids)
    return np.array_equal(ids, other_ids) and np.array_equal(tables, other_tables)


@dataclass(frozen=True)
class RowIds:
    """The ids that tables take. is_signed: negative ones are refused."""

    name: str
    num_tables: int
    is_signed: bool

    def number(
        self,
        ids: Array,
        table_ids: Array | None,
        padding_idx: int | None,
        first: int = 0,
        last: int = BUCKETS,
    ) -> Request:
        """The distinct ids whose buckets are first .. last - 1."""
        keys = np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)
        if table_ids is None:
            tables = np.arange(self.num_tables, dtype=np.int32)
        else:
            tables = np.ascontiguousarray(table_ids).reshape(-1)
        tables = tables.astype(np.int32, copy=False)
        n = keys.size
        slots = np.zeros(1 << max(4, (2 * n - 1).bit_length()), np.int32)
        found, inverse = np.empty(n, np.int64), np.empty(n, np.int64)
        found_tables, buckets = np.empty(n, np.int32), np.empty(n, np.int32)
        count = loops().number(
            keys, tables, padding_idx is not None, padding_idx or 0, first, last, BUCKETS,
            slots, found, found_tables, buckets, inverse,
        )  # fmt: skip
        return Request(
            ids.copy(),
            None if table_ids is None else table_ids.copy(),
            found[:count].view(np.uint64),
            found_tables[:count],
            buckets[:count],
            inverse,
        )

    def check(self, ids: Array, table_ids: Array | None, padding_idx: int | None) -> None:
        """Raises PositionError for ids that no table has."""
        if self.is_signed and ids.size and ids.min() < 0:
            negative = ids[(ids < 0) & (ids != padding_idx)]
            if negative.size:
                raise self.negative(int(negative[0]))
        if table_ids is None or not table_ids.size:
            return
        if table_ids.min() < 0 or table_ids.max() >= self.num_tables:
            raise PositionError(
                f"embedding {self.name!r}: table ids are {int(table_ids.min())} to "
                f"{int(table_ids.max())}, but there are {self.num_tables} tables, from 0"
            )

    def negative(self, key: int) -> PositionError:
        """The error of a negative id."""
        return PositionError(
            f"embedding {self.name!r}: the id {key} is negative; hashed ids "
            "of 64 bits need key_type 'uint64'"
        )

    def no_table(self, number: int) -> PositionError:
        """The error of a table id that there is not."""
        return PositionError(
            f"embedding {self.name!r}: a table id is {number}, but there are {self.num_tables} "
            "tables, from 0"
        )


@lru_cache(maxsize=256)
def described(text: str) -> RowIds:
    """The ids of the tables of a description."""
    told = json.loads(text)
    return RowIds(told["name"], len(told["columns"]), told["key_type"] not in UNSIGNED)
