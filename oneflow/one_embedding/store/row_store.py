"""The rows of one rank by table and id: `open_store` and the store that it gives.

A row is a line of float32 numbers: the embedding, then the states that its optimizer keeps. Two
ids are the same row where table and 64 bits are the same, in any type of keys.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.errors import ArgumentError, DTypeError, RowStoreError, ShapeError
from oneflow.kernels.array import ArrayModule
from oneflow.one_embedding.store.device_cache import DeviceCache
from oneflow.one_embedding.store.device_side import DeviceSide
from oneflow.one_embedding.store.device_tier import DeviceTier
from oneflow.one_embedding.store.disk_tier import DiskTier
from oneflow.one_embedding.store.folder_lock import FolderLock
from oneflow.one_embedding.store.initial import InitialRows
from oneflow.one_embedding.store.options import StoreOptions
from oneflow.one_embedding.store.owners import owners_of
from oneflow.one_embedding.store.persistent_table import KEY_TYPES
from oneflow.one_embedding.store.row_log import RowLayout, RowLog
from oneflow.one_embedding.store.snapshots import (
    Snapshot,
    batches_of,
    check_fits,
    find_snapshot,
    names_in,
    path_of,
    remove_snapshot,
    remove_unlisted,
    write_snapshot,
)
from oneflow.one_embedding.store.statistics import StoreStatistics
from oneflow.one_embedding.store.tier import Batch, MemoryTier, Tier, no_room

Array: TypeAlias = "np.ndarray[Any, Any]"

MOST_TABLES = 4095
_BATCH_ROWS = 1 << 16


def open_store(
    options: Mapping[str, Any],
    *,
    key_type: str,
    line_size: int,
    initial: InitialRows,
    rank: int = 0,
    num_ranks: int = 1,
) -> RowStore:
    """Open the store of one rank; it has no rows until they are looked up or loaded.

    options: of `make_*_store_options`.  key_type: one of KEY_TYPES, of the ids of scripts.
    line_size: numbers of a row, as many as `initial` gives.  Raises ArgumentError, DTypeError.
    """
    if key_type not in KEY_TYPES:
        raise DTypeError(f"ids of {key_type}: OneEmbedding takes {', '.join(KEY_TYPES)}")
    if line_size != initial.line_size:
        raise ArgumentError(f"rows of {line_size} numbers, but {initial.line_size} first values")
    if len(initial.tables) > MOST_TABLES:
        raise ArgumentError(f"{len(initial.tables)} tables in a store, {MOST_TABLES} are the most")
    return RowStore(StoreOptions.of(options, rank, num_ranks), key_type, initial)


class RowStore:
    """Rows of one rank. Calls of several threads wait for each other.

    A store that is opened read-only has the rows of a snapshot, beside the run that saved it or
    saves others; ids without a row get its first values, and no row is made.
    """

    def __init__(self, options: StoreOptions, key_type: str, initial: InitialRows) -> None:
        if not options.has_path:
            if options.is_read_only:
                raise ArgumentError("a store that is read-only needs the persistent_path of a run")
            options = options.within(self._scratch())
        self.options, self.key_type, self.initial = options, key_type, initial
        self.line_size = initial.line_size
        self._layout = RowLayout(self.line_size, options.block_nbytes)
        self.snapshot = ""
        """The name of the snapshot that was loaded last."""
        self._counted, self._told = StoreStatistics(), StoreStatistics()
        self._guard = threading.RLock()
        self._cache: DeviceCache | None = None
        self._lock: FolderLock | None = None
        if options.is_read_only:
            self._open_tier(options.folder)
            return
        self._lock = FolderLock(options.folder)
        with contextlib.ExitStack() as undo:
            undo.callback(self._lock.release)
            remove_unlisted(options.folder)
            self._open_tier(options.folder)
            undo.pop_all()

    def _scratch(self) -> Path:
        """A folder that goes with the store."""
        folder = mkdtemp(prefix="oneflow-rows-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def _open_tier(self, folder: Path) -> None:
        is_fixed = self.options.is_read_only and folder == self.options.folder
        self._log = RowLog(folder, self._layout, self._counted, is_fixed=is_fixed)
        made = self.initial, self._log, self._counted
        nbytes = self.options.cache_nbytes
        self._tier: Tier = DiskTier(*made, nbytes) if nbytes else MemoryTier(*made)

    def on_device(self, xp: ArrayModule) -> DeviceSide | None:
        """The side of the rows that a GPU sees: all, which move there if they are not, or a cache
        of them; None if the options ask for neither. xp: CuPy. Raises RowStoreError where the GPU
        has not enough memory for `capacity` rows, or for the cache.
        """
        with self._guard:
            tier, options = self._tier, self.options
            if isinstance(tier, DeviceTier) or options.is_read_only:
                return tier if isinstance(tier, DeviceTier) else None
            if options.is_on_device and options.capacity and isinstance(tier, MemoryTier):
                self._tier = made = DeviceTier(xp, tier, options.capacity, self._guard)
                return made
            if self._cache is None and options.device_nbytes:
                of_rows = self._read, self._write, self._counted, self._guard
                sizes = self.line_size, options.device_nbytes
                self._cache = DeviceCache(xp, *of_rows, *sizes)
            return self._cache

    def _read(self, keys: Array, tables: Array, rows: Array, *, makes_rows: bool) -> None:
        with self._guard:
            self._get(keys, tables, rows, makes_rows=makes_rows)
            self.tell()

    def _write(self, keys: Array, tables: Array, rows: Array) -> None:
        with self._guard:
            self._tier.put(keys, tables, self._tier.find(keys, tables), rows)

    def _write_back(self, *, clears: bool = False) -> None:
        """Take the rows that a cache on a GPU changed. clears: rows are changed here, so that it
        holds none any more.
        """
        if self._cache is not None:
            self._cache.write_back()
            if clears:
                self._cache.clear()

    @property
    def statistics(self) -> StoreStatistics:
        """Counters since the store was opened."""
        self._counted.queued = self._log.queued
        return self._counted

    def tell(self) -> None:
        """Add the counts since the last time to this process's metrics."""
        now = replace(self.statistics)
        now.tell(self._told)
        self._told = now

    def get(self, keys: Array, tables: Array, out: Array, *, makes_rows: bool = True) -> None:
        """Write the rows of unique ids into `out`; rows that are not there are created, unless
        only their first values are wanted (makes_rows=False).

        keys: uint64[n], tables: integers[n], each pair once.  out: float32[n, line_size], or fewer
        columns for the first numbers of each row.  Raises RowStoreError where there is no room for
        more rows; then none is created.
        """
        self._check(keys, tables, out, is_whole=False)
        keys, tables = _ready(keys, tables)
        with self._guard:
            self._write_back()
            rows = out if out.flags.c_contiguous else np.empty(out.shape, np.float32)
            self._counted.lookups += keys.size
            self._get(keys, tables, rows, makes_rows=makes_rows)
            if rows is not out:
                out[:] = rows
            self.tell()

    def get_early(self, keys: Array, tables: Array, out: Array, *, makes_rows: bool = True) -> None:
        """Do as `get`; behind a cache on a GPU, whose changes are left out, that only brings rows
        out of the disk."""
        if self._cache is None:
            self.get(keys, tables, out, makes_rows=makes_rows)
        else:
            self._read(keys, tables, out, makes_rows=makes_rows)

    def _get(
        self,
        keys: Array,
        tables: Array,
        out: Array,
        *,
        is_use: bool = True,
        makes_rows: bool = True,
    ) -> Array:
        """Returns the places of the rows."""
        makes_rows = makes_rows and not self.options.is_read_only
        places = self._found(keys, tables) if makes_rows else self._tier.find(keys, tables)
        if not makes_rows and (places < 0).any():
            self._get_there(keys, tables, places, out)
        else:
            self._tier.get(keys, tables, places, out, is_use=is_use)
        return places

    def _get_there(self, keys: Array, tables: Array, places: Array, out: Array) -> None:
        """Write the rows that are there, and first values of the others, which are not kept."""
        there, missing = np.flatnonzero(places >= 0), np.flatnonzero(places < 0)
        rows = np.empty((there.size, out.shape[1]), np.float32)
        self._tier.get(keys[there], tables[there], places[there], rows)
        made = np.empty((missing.size, self.line_size), np.float32)
        self.initial.fill(keys[missing], tables[missing], made)
        out[there], out[missing] = rows, made[:, : out.shape[1]]

    def update(self, keys: Array, tables: Array, change: Callable[[Array], None]) -> None:
        """Overwrite rows of unique ids by the results of `change`: it is called with float32
        [n, line_size] and writes there. Rows that are not there are created. Raises: as `get`.
        """
        self._check_writable()
        rows = np.empty((keys.size, self.line_size), np.float32)
        self._check(keys, tables, rows)
        keys, tables = _ready(keys, tables)
        with self._guard:
            self._write_back(clears=True)
            self._counted.lookups += keys.size
            places = self._get(keys, tables, rows, is_use=False)
            change(rows)
            self._tier.put(keys, tables, places, rows)
            self.tell()

    def put(self, keys: Array, tables: Array, rows: Array) -> None:
        """Replace rows by unique ids; those that are not there are added. Arguments: `get`."""
        self._check_writable()
        self._check(keys, tables, rows)
        keys, tables = _ready(keys, tables)
        with self._guard:
            self._write_back(clears=True)
            self._tier.put(keys, tables, self._found(keys, tables), np.ascontiguousarray(rows))
            self.tell()

    def __len__(self) -> int:
        """Number of rows that are there."""
        return len(self._tier)

    @property
    def nbytes(self) -> int:
        """Memory of the index and of all rows that are in memory."""
        return self._tier.nbytes

    def items(self, batch_rows: int = _BATCH_ROWS) -> Iterator[Batch]:
        """All rows in batches, in no order that means anything; none may change meanwhile."""
        with self._guard:
            self._write_back()
        return self._tier.items(batch_rows)

    def save_snapshot(self, name: str, moment_ns: int = 0) -> None:
        """Keep all rows as they are under a name, in place of an older snapshot of that name.

        moment_ns: the time, the same on all ranks, by which their parts are told to belong
        together; one rank needs none.  Only rows that changed since the last snapshot are written.
        Raises RowStoreError for a full disk; then the older snapshots are as before,
        and another try writes the same rows.
        """
        folder, options = self.options.folder, self.options
        self._check_writable()
        path_of(folder, name)
        if not moment_ns and len(options.folders) > 1:
            raise ArgumentError(f"snapshot {name!r}: ranks must agree on the moment of saving it")
        with self._guard:
            self._write_back()
            extents, stale = self._tier.save()
            made = Snapshot(
                key_type=self.key_type,
                line_size=self.line_size,
                block_nbytes=self._layout.block_nbytes,
                file_nbytes=self._layout.file_nbytes,
                rank=options.rank,
                num_ranks=len(options.folders),
                extents=tuple(extents),
                saved_ns=moment_ns or time.time_ns(),
            )
            write_snapshot(folder, name, made)
            self._tier.saved(stale)
            self.tell()
            remove_unlisted(folder, list(self._log.numbers()))

    def snapshot_names(self) -> list[str]:
        """Names of the snapshots that this rank has saved, in order."""
        return names_in(self.options.folder)

    def remove_snapshot(self, name: str) -> None:
        """Remove this rank's part of a snapshot, and files that no other one needs. Raises
        RowStoreError if there is none.
        """
        self._check_writable()
        if name not in self.snapshot_names():
            raise RowStoreError(
                f"no snapshot {name!r} in {self.options.folder}; there are "
                f"{', '.join(self.snapshot_names()) or 'none'}"
            )
        with self._guard:
            remove_snapshot(self.options.folder, name)
            remove_unlisted(self.options.folder, list(self._log.numbers()))

    def load_snapshot(self, name: str) -> None:
        """Replace all rows by those of a snapshot.

        Of a snapshot that a run on another number of ranks saved, this rank takes the ids that
        it owns (owners.py). Raises RowStoreError where there is none, or of other rows, a torn one,
        or one with more rows than the capacity; the rows are as before then.
        """
        folder, options = self.options.folder, self.options
        parts = find_snapshot(options.folders, name)
        for _, part in parts:
            check_fits(name, part, self.key_type, self.line_size)
        own = [part for place, part in parts if place == folder and part.layout == self._layout]
        is_own = len(parts) == len(options.folders) and len(own) == 1
        with self._guard:
            before, log = self._tier, self._log
            is_copy = options.is_read_only and not is_own
            self._open_tier(self._scratch() if is_copy else folder)
            try:
                if is_own:
                    self._tier.load(own[0])
                else:
                    self._load_parts(parts)
                self._check_room(name)
            except BaseException:
                self._tier.close()
                self._tier, self._log = before, log
                raise
            if isinstance(before, DeviceTier) and isinstance(self._tier, MemoryTier):
                before.replace(self._tier)
                self._tier = before
            else:
                before.close()
            if self._cache is not None:
                self._cache.clear()
            self.snapshot = name

    def _load_parts(self, parts: list[tuple[Path, Snapshot]]) -> None:
        for folder, part in parts:
            for keys, tables, rows in batches_of(folder, part):
                owners = owners_of(keys, tables, len(self.options.folders))
                mine = np.flatnonzero(owners == self.options.rank)
                ids = keys[mine], tables[mine]
                self._tier.put(*ids, self._tier.find(*ids), rows[mine])

    def _check_room(self, name: str) -> None:
        """Raise RowStoreError where a snapshot has brought more rows than may be there."""
        capacity = self.options.capacity
        if capacity and len(self) > capacity and not self.options.is_read_only:
            raise RowStoreError(
                f"snapshot {name!r} has {len(self)} rows for this rank, but the capacity is "
                f"{capacity} rows; raise `capacity` of the store options"
            )

    def close(self) -> None:
        """Give back memory and files. Rows in no snapshot are lost."""
        with self._guard:
            self._tier.close()
            self._cache = None
            self.tell()
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> RowStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _found(self, keys: Array, tables: Array) -> Array:
        """Places of ids. Raises RowStoreError where there is no room for those that are missing."""
        places = self._tier.find(keys, tables)
        capacity, there = self.options.capacity, len(self)
        if not capacity or there + keys.size <= capacity:
            return places
        count = int((places < 0).sum())
        if there + count > capacity:
            raise no_room(there, count, capacity)
        return places

    def _check_writable(self) -> None:
        if self.options.is_read_only:
            raise RowStoreError(
                f"{self.options.folder} is opened read-only: its rows cannot be changed or saved; "
                "open it without `read_only` of the store options to train"
            )

    def _check(self, keys: Array, tables: Array, rows: Array, *, is_whole: bool = True) -> None:
        if keys.dtype != np.uint64 or keys.ndim != 1:
            raise DTypeError(f"keys of a store are uint64[n], not {keys.dtype}{list(keys.shape)}")
        if tables.dtype.kind not in "iu" or tables.shape != keys.shape:
            raise DTypeError(
                f"tables of {keys.size} keys are integers[{keys.size}], not "
                f"{tables.dtype}{list(tables.shape)}"
            )
        width = self.line_size
        if not is_whole and rows.ndim == 2:
            width = min(max(1, rows.shape[1]), width)
        if rows.dtype != np.float32 or rows.shape != (keys.size, width):
            raise ShapeError(
                f"rows of {keys.size} keys are float32[{keys.size}, {self.line_size}], not "
                f"{rows.dtype}{list(rows.shape)}"
            )
        if keys.size and not 0 <= tables.min() <= tables.max() < len(self.initial.tables):
            raise ArgumentError(
                f"table ids from {tables.min()} to {tables.max()}, but the store has "
                f"{len(self.initial.tables)} tables, from 0"
            )


def _ready(keys: Array, tables: Array) -> tuple[Array, Array]:
    return np.ascontiguousarray(keys), np.ascontiguousarray(tables, np.int32)
