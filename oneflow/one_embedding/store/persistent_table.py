"""Rows of a snapshot as arrays: read out of the folders of all ranks, or written into them.

with make_persistent_table_reader(["/data/0-1"], "a", "int64", "float32", 32) as reader:
    for ids, rows in reader: ...
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.dtype import DTypeLike, dtype_of
from oneflow.core.errors import DTypeError, RowStoreError, ShapeError
from oneflow.one_embedding.store.folder_lock import FolderLock
from oneflow.one_embedding.store.options import BLOCK_SIZES
from oneflow.one_embedding.store.owners import owners_of
from oneflow.one_embedding.store.row_log import RowLayout, RowLog
from oneflow.one_embedding.store.snapshots import (
    Snapshot,
    batches_of,
    check_fits,
    path_of,
    read_snapshot,
    remove_unlisted,
    write_snapshot,
)

Array: TypeAlias = "np.ndarray[Any, Any]"

KEY_TYPES = ("int64", "uint64", "int32", "uint32")


def make_persistent_table_reader(
    paths: str | Sequence[str],
    snapshot_name: str,
    key_type: DTypeLike | str,
    value_type: DTypeLike | str,
    storage_dim: int,
    physical_block_size: int = BLOCK_SIZES[-1],
) -> PersistentTableReader:
    """Return a reader of the rows of a snapshot, which gives ids and rows in batches.

    paths: folders of ranks (`PATH/RANK-NUM_RANKS`).  key_type: of the ids.  value_type: float32.
    storage_dim: numbers of a row, optimizer states included.  physical_block_size: as it was
    written is in the snapshot, so this one counts for nothing.
    """
    del physical_block_size
    _check_value_type(value_type)
    return PersistentTableReader(_paths(paths), snapshot_name, _key_type(key_type), storage_dim)


def make_persistent_table_writer(
    paths: str | Sequence[str],
    snapshot_name: str,
    key_type: DTypeLike | str,
    value_type: DTypeLike | str,
    storage_dim: int,
    physical_block_size: int = BLOCK_SIZES[-1],
) -> PersistentTableWriter:
    """Return a writer of a snapshot, one folder a rank, which a store of as many ranks loads.

    Arguments: `make_persistent_table_reader`.  The snapshot is there when the writer is closed.
    """
    _check_value_type(value_type)
    layout = RowLayout(storage_dim, physical_block_size)
    return PersistentTableWriter(_paths(paths), snapshot_name, _key_type(key_type), layout)


def _paths(paths: str | Sequence[str]) -> list[Path]:
    return [Path(path) for path in ([paths] if isinstance(paths, str) else paths)]


def _key_type(key_type: DTypeLike | str) -> str:
    name = key_type if isinstance(key_type, str) else dtype_of(key_type).name
    if name not in KEY_TYPES:
        raise DTypeError(f"ids of {name}: OneEmbedding takes {', '.join(KEY_TYPES)}")
    return name


def _check_value_type(value_type: DTypeLike | str) -> None:
    name = value_type if isinstance(value_type, str) else dtype_of(value_type).name
    if name not in ("float32", "float"):
        raise DTypeError(f"rows of {name}: a persistent table holds float32")


class PersistentTableReader:
    """Ids and rows of a snapshot, each id of a table once.

    tables: int32[n], the tables of the ids of the batch that was read last.
    """

    def __init__(self, paths: list[Path], name: str, key_type: str, line_size: int) -> None:
        self._key_type = key_type
        self._parts: list[tuple[Path, Snapshot]] = []
        for path in paths:
            try:
                part = read_snapshot(path, name)
            except (FileNotFoundError, NotADirectoryError):
                raise RowStoreError(f"{path_of(path, name)}: there is no such snapshot") from None
            check_fits(name, part, key_type, line_size)
            self._parts.append((path, part))
        self.tables: Array = np.empty(0, np.int32)

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for folder, part in self._parts:
            for keys, tables, rows in batches_of(folder, part):
                self.tables = tables
                yield _of_type(keys, self._key_type), rows

    def close(self) -> None:
        """Read no more."""
        self._parts = []

    def __enter__(self) -> PersistentTableReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _of_type(keys: Array, key_type: str) -> Array:
    """Ids of 64 bits as numbers of a type: narrow ones were widened by their sign."""
    return keys.view(np.int64).astype(key_type)


class PersistentTableWriter:
    """Rows on their way into a snapshot. Of equal ids of one table the last one counts."""

    def __init__(self, paths: list[Path], name: str, key_type: str, layout: RowLayout) -> None:
        self._paths, self._name, self._key_type, self._layout = paths, name, key_type, layout
        self._open = contextlib.ExitStack()
        self._logs: list[RowLog] = []
        with contextlib.ExitStack() as undo:
            for path in paths:
                path_of(path, name)
                lock = FolderLock(path)
                undo.callback(lock.release)
                self._logs.append(RowLog(path, layout))
                undo.callback(self._logs[-1].close)
            self._open = undo.pop_all()

    def write(self, keys: Array, values: Array, tables: Array | None = None) -> None:
        """Add rows.

        keys: integers[n].  values: float32[n, storage_dim].  tables: integers[n]; None: table 0.
        Raises DTypeError, ShapeError, RowStoreError for a full disk.
        """
        keys, values = np.asarray(keys), np.asarray(values)
        if keys.dtype.name != self._key_type or keys.ndim != 1:
            raise DTypeError(
                f"ids of the table are {self._key_type}[n], not {keys.dtype}{list(keys.shape)}"
            )
        shape = (keys.size, self._layout.line_size)
        if values.dtype != np.float32 or values.shape != shape:
            raise ShapeError(
                f"rows of {keys.size} ids are float32{list(shape)}, not "
                f"{values.dtype}{list(values.shape)}"
            )
        words = keys.astype(np.int64).view(np.uint64)
        of = np.zeros(keys.size, np.int32) if tables is None else np.asarray(tables, np.int32)
        owners = owners_of(words, of, len(self._logs))
        for rank, log in enumerate(self._logs):
            mine = np.flatnonzero(owners == rank)
            log.append(words[mine], of[mine], values[mine])

    def close(self) -> None:
        """Make the snapshot: all ranks' parts get their names one after the other."""
        if not self._logs:
            return
        extents = [tuple(log.sync()) for log in self._logs]
        moment_ns = time.time_ns()
        for rank, path in enumerate(self._paths):
            made = Snapshot(
                key_type=self._key_type,
                line_size=self._layout.line_size,
                block_nbytes=self._layout.block_nbytes,
                file_nbytes=self._layout.file_nbytes,
                rank=rank,
                num_ranks=len(self._paths),
                extents=extents[rank],
                saved_ns=moment_ns,
            )
            write_snapshot(path, self._name, made)
        self._leave()

    def _leave(self) -> None:
        self._logs = []
        self._open.close()
        for path in self._paths:
            remove_unlisted(path)

    def __enter__(self) -> PersistentTableWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._leave()
