"""Rows on a disk: files to which rows are only ever appended.

A file of rows has a number; beside `00000007.rows` lies `00000007.keys` with the ids of its rows. A
row's slot is the number of its file times the rows that a file can have, plus its number there. A
row that changes gets a new slot. So slots that a snapshot refers to are never written again, a
process that is killed tears nothing that was promised, and changed rows go to the disk in one piece
however scattered their ids are. Rows lie in units, of whole blocks of the disk, that none crosses;
behind the ids of a unit stands the CRC-32 of its bytes, by which changed bytes are found when it is
read.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from oneflow.core.errors import RowStoreError
from oneflow.one_embedding.store.direct_file import (
    BatchReader,
    DirectFile,
    aligned_bytes,
    as_disk_error,
)
from oneflow.one_embedding.store.statistics import StoreStatistics
from oneflow.services.failpoints import failpoint

Array: TypeAlias = "np.ndarray[Any, Any]"

FILE_NBYTES = 1 << 26
WRITE_NBYTES = 1 << 20
_READ_UNITS = 2048
ID = np.dtype([("key", "<u8"), ("table", "<i4")])
NO_ROW = -1
"""Table of a slot that was left out, so that what follows begins a unit."""
_UNIT_CHECK = -2
"""Table beside the check of a unit."""


@dataclass(frozen=True)
class RowLayout:
    """Places of rows in files.

    line_size: numbers of a row.  block_nbytes: of the disk.
    """

    line_size: int
    block_nbytes: int
    file_nbytes: int = FILE_NBYTES

    @property
    def unit_rows(self) -> int:
        """Rows of a unit, which is read at once."""
        return max(1, self.block_nbytes // (4 * self.line_size))

    @property
    def unit_nbytes(self) -> int:
        blocks = -(-4 * self.line_size * self.unit_rows // self.block_nbytes)
        return blocks * self.block_nbytes

    @property
    def file_rows(self) -> int:
        """Rows of a full file."""
        return max(1, self.file_nbytes // self.unit_nbytes) * self.unit_rows

    def rows_of(self, units: Array) -> Array:
        """Rows of units in memory: uint8 (n, unit_nbytes) as float32 (n, unit_rows, line_size)."""
        numbers = units.view(np.float32)
        strides = (units.strides[0], 4 * self.line_size, 4)
        shape = (len(units), self.unit_rows, self.line_size)
        return np.lib.stride_tricks.as_strided(numbers, shape, strides)


@dataclass(frozen=True)
class Extent:
    """The first `rows` slots of a file, which are whole units.

    check: CRC-32 of their part of the file of ids.  has_checks: whether that has checks of the
    units; snapshots of version 1 have none.
    """

    number: int
    rows: int
    check: int
    has_checks: bool = False


def rows_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.rows"


def keys_path(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.keys"


def numbers_in(folder: Path) -> list[int]:
    """Numbers of the files of a folder, none if there is no folder."""
    if not folder.exists():
        return []
    found = {path.stem for path in folder.iterdir() if path.suffix in (".rows", ".keys")}
    return sorted(int(stem) for stem in found if stem.isdigit())


def read_ids(folder: Path, extent: Extent, unit_rows: int) -> tuple[Array, Array | None]:
    """Ids (of ID) of an extent, and the checks of its units, uint32[n], if it has them.

    unit_rows: see `RowLayout`.  Raises RowStoreError for a torn file.
    """
    path = keys_path(folder, extent.number)
    units = extent.rows // unit_rows
    nbytes = (extent.rows + units * extent.has_checks) * ID.itemsize
    try:
        with path.open("rb") as file:
            data = file.read(nbytes)
    except FileNotFoundError:
        raise RowStoreError(f"{path} is missing; load another snapshot") from None
    if len(data) < nbytes or zlib.crc32(data) != extent.check:
        raise RowStoreError(
            f"{path} is torn: its first {extent.rows} ids are not those that the snapshot has; "
            "load another one"
        )
    ids = np.frombuffer(data, ID)
    if not extent.has_checks:
        return ids, None
    by_unit = ids.reshape(units, unit_rows + 1)
    return by_unit[:, :-1].reshape(-1), by_unit["key"][:, -1].astype(np.uint32)


def _checks_of(units: Array) -> Array:
    """CRC-32 of each unit: uint8 (n, unit_nbytes) -> uint32[n]."""
    return np.fromiter(map(zlib.crc32, units), np.uint32, len(units))


class _OpenFile:
    """A file of rows, open for reading; the last one also for writing."""

    def __init__(self, folder: Path, number: int, layout: RowLayout, *, create: bool) -> None:
        self.number, self.rows, self.check, self.is_synced = number, 0, 0, True
        self.has_checks, self._unit_rows = create, layout.unit_rows
        self.checks: Array | None = None
        """Checks of the units, uint32, once they are known."""
        if create:
            self.checks = np.zeros(layout.file_rows // layout.unit_rows, np.uint32)
        self.ids = -1
        path = rows_path(folder, number)
        try:
            self.file = DirectFile(path, layout.block_nbytes, create=create)
            if create:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                self.ids = os.open(keys_path(folder, number), flags, 0o666)
        except OSError as error:
            raise as_disk_error(error, path) from error

    @property
    def extent(self) -> Extent:
        """The part of the file that is written."""
        return Extent(self.number, self.rows, self.check, self.has_checks)

    def append_ids(self, ids: Array, checks: Array) -> int:
        """Write the ids (of ID) and checks of whole units behind those that are there; return the
        number of bytes."""
        data = np.empty((checks.size, (self._unit_rows + 1) * ID.itemsize), np.uint8)
        # As bytes: numbers of a structured type are copied field by field.
        data[:, : -ID.itemsize] = ids.view(np.uint8).reshape(checks.size, -1)
        of_units = data.view(ID)[:, -1]
        of_units["key"], of_units["table"] = checks, _UNIT_CHECK
        first = self.rows // self._unit_rows
        try:
            # Behind those that belong there: a write that failed may have left some.
            count = os.pwrite(self.ids, data.data, first * data.shape[1])
            if count < data.nbytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise as_disk_error(error, self.file.path) from error
        self.rows += ids.size
        self.check = zlib.crc32(data.data, self.check)
        if self.checks is not None:
            self.checks[first : first + checks.size] = checks
        return data.nbytes

    def sync(self) -> None:
        if self.is_synced:
            return
        try:
            self.file.sync()
            os.fsync(self.ids)
        except OSError as error:
            raise as_disk_error(error, self.file.path) from error
        self.is_synced = True

    def close(self) -> None:
        """Give back both handles; also done where the object goes."""
        self.file.close()
        if self.ids >= 0:
            os.close(self.ids)
            self.ids = -1

    def __del__(self) -> None:
        if self.ids >= 0:
            os.close(self.ids)


class RowLog:
    """The files of rows of a folder: the extents in use, and the end that is written.

    is_fixed: the files are another run's, and nothing is written.
    """

    def __init__(
        self,
        folder: Path,
        layout: RowLayout,
        counted: StoreStatistics | None = None,
        *,
        is_fixed: bool = False,
    ) -> None:
        self.folder, self.layout, self.is_fixed = folder, layout, is_fixed
        self._counted = counted or StoreStatistics()
        self.live: dict[int, int] = {}
        """Rows in use of each file by its number."""
        self._files: dict[int, _OpenFile] = {}
        self._last: _OpenFile | None = None
        self._next = max(numbers_in(folder), default=-1) + 1
        units = max(1, WRITE_NBYTES // layout.unit_nbytes)
        self._tail = aligned_bytes(units * layout.unit_nbytes).reshape(units, layout.unit_nbytes)
        self._tail_rows = layout.rows_of(self._tail)
        self._tail_ids = np.zeros(units * layout.unit_rows, ID)
        self._queued = 0
        self._reader = BatchReader()
        self._read = aligned_bytes(_READ_UNITS * layout.unit_nbytes)
        self._read = self._read.reshape(_READ_UNITS, layout.unit_nbytes)

    @property
    def queued(self) -> int:
        """Rows that wait to be written."""
        return self._queued

    @property
    def num_slots(self) -> int:
        """Slots of all files in use."""
        return sum(file.rows for file in self._files.values()) + self._queued

    # ---- writing -----------------------------------------------------------------------------

    def append(self, keys: Array, tables: Array, rows: Array) -> Array:
        """Take rows (float32 (n, line_size)) and return their slots, int64[n].

        Raises RowStoreError where the disk is full.
        """
        slots = np.empty(keys.size, np.int64)
        done = 0
        while done < keys.size:
            if self._queued == self._tail_ids.size:
                self.flush()
            last = self._file_with_room()
            room = self.layout.file_rows - last.rows - self._queued
            count = min(keys.size - done, self._tail_ids.size - self._queued, room)
            places = np.arange(self._queued, self._queued + count)
            some = slice(done, done + count)
            self._tail_ids["key"][places] = keys[some]
            self._tail_ids["table"][places] = tables[some]
            units, inside = np.divmod(places, self.layout.unit_rows)
            self._tail_rows[units, inside] = rows[some]
            slots[some] = last.number * self.layout.file_rows + last.rows + places
            self._queued += count
            done += count
        self.count_in(slots)
        return slots

    def count_in(self, slots: Array) -> None:
        """Take slots into use."""
        self._count(slots, 1)

    def release(self, slots: Array) -> None:
        """Take slots out of use: their rows have new ones."""
        self._count(slots, -1)

    def flush(self) -> None:
        """Write the queued rows, in whole units."""
        last = self._last
        if not self._queued or last is None:
            return
        units = -(-self._queued // self.layout.unit_rows)
        count = units * self.layout.unit_rows
        self._tail_ids[self._queued : count] = (0, NO_ROW)
        offset = last.rows // self.layout.unit_rows * self.layout.unit_nbytes
        last.is_synced = False
        written = self._tail[:units]
        last.file.write(offset, written.reshape(-1))
        failpoint("rows.write")
        nbytes = last.append_ids(self._tail_ids[:count], _checks_of(written))
        self._counted.disk_nbytes_written += written.nbytes + nbytes
        self._queued = 0

    def sync(self) -> list[Extent]:
        """Write the queued rows, wait for the disk, and return the extents in use."""
        self.flush()
        for file in self._files.values():
            file.sync()
        return [
            file.extent for number, file in sorted(self._files.items()) if self.live.get(number)
        ]

    def begin_file(self) -> int:
        """Let the next row begin a file, and return the number of that file."""
        self.flush()
        self._last = None
        return self._next

    def _file_with_room(self) -> _OpenFile:
        last = self._last
        if last is not None and last.rows + self._queued < self.layout.file_rows:
            return last
        self.flush()
        self._last = _OpenFile(self.folder, self._next, self.layout, create=True)
        self._files[self._next] = self._last
        self._next += 1
        return self._last

    def _count(self, slots: Array, change: int) -> None:
        numbers, counts = np.unique(slots // self.layout.file_rows, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self.live[number] = self.live.get(number, 0) + change * count

    # ---- reading -----------------------------------------------------------------------------

    def use(self, extents: Iterable[Extent]) -> None:
        """Open files of a snapshot for reading. Raises RowStoreError for one that is torn."""
        for extent in extents:
            try:
                file = _OpenFile(self.folder, extent.number, self.layout, create=False)
            except FileNotFoundError:
                path = rows_path(self.folder, extent.number)
                raise RowStoreError(f"{path} is missing; load another snapshot") from None
            self._files[extent.number] = file
            file.rows, file.check, file.has_checks = extent.rows, extent.check, extent.has_checks
            nbytes = extent.rows // self.layout.unit_rows * self.layout.unit_nbytes
            found = os.fstat(file.file.handle).st_size
            if found < nbytes:
                raise RowStoreError(
                    f"{file.file.path} is torn: it has {found} bytes, the snapshot {nbytes}; "
                    "load another one"
                )

    def read(self, slots: Array) -> Array:
        """Return the rows at slots, float32 (n, line_size), from the disk or the queue."""
        rows = np.empty((slots.size, self.layout.line_size), np.float32)
        last = self._last
        begin = 0 if last is None else last.number * self.layout.file_rows + last.rows
        is_queued = (slots >= begin) if self._queued else np.zeros(slots.size, bool)
        if is_queued.any():
            units, inside = np.divmod(slots[is_queued] - begin, self.layout.unit_rows)
            rows[is_queued] = self._tail_rows[units, inside]
        elsewhere = np.flatnonzero(~is_queued)
        if elsewhere.size:
            self._read_units(slots[elsewhere], elsewhere, rows)
        return rows

    def _read_units(self, slots: Array, places: Array, rows: Array) -> None:
        layout = self.layout
        units, which = np.unique(slots // layout.unit_rows, return_inverse=True)
        order = np.argsort(which, kind="stable")
        numbers, inside = np.divmod(units, layout.file_rows // layout.unit_rows)
        files = [self._files[number] for number in numbers.tolist()]
        handles = np.array([file.file.handle for file in files], np.int64)
        bounds = np.searchsorted(which[order], np.arange(0, units.size + _READ_UNITS, _READ_UNITS))
        for first, begin, end in zip(
            range(0, units.size, _READ_UNITS), bounds[:-1], bounds[1:], strict=False
        ):
            part = slice(first, first + _READ_UNITS)
            target = self._read[: units[part].size]
            self._reader.read(handles[part], inside[part] * layout.unit_nbytes, target)
            self._counted.disk_nbytes_read += target.nbytes
            self._check(files[part], inside[part], target)
            some = order[begin:end]
            found = layout.rows_of(target)
            rows[places[some]] = found[which[some] - first, slots[some] % layout.unit_rows]

    def _check(self, files: list[_OpenFile], units: Array, found: Array) -> None:
        """Raise RowStoreError for a unit whose bytes are not those that were written.

        files: of each unit.  units: their places there.  found: uint8 (n, unit_nbytes).
        """
        for file, place, check in zip(files, units.tolist(), _checks_of(found), strict=True):
            if file.has_checks and file.checks is None:
                self.ids(file.number)
            if file.checks is not None and file.checks[place] != check:
                begin = place * self.layout.unit_nbytes
                raise RowStoreError(
                    f"{file.file.path} is torn: its bytes {begin} to "
                    f"{begin + self.layout.unit_nbytes} changed since they were written (CRC-32); "
                    "load another snapshot"
                )

    def ids(self, number: int) -> tuple[Array, Array]:
        """Ids (of ID) of a file that is written, and their slots; left out slots are not in."""
        file = self._files[number]
        ids, checks = read_ids(self.folder, file.extent, self.layout.unit_rows)
        if file.checks is None:
            file.checks = checks
        there = np.flatnonzero(ids["table"] != NO_ROW)
        return ids[there], there + number * self.layout.file_rows

    def numbers(self) -> Iterator[int]:
        """Numbers of the files in use, oldest first."""
        return iter(sorted(self._files))

    @property
    def last_number(self) -> int:
        """Number of the file that is written; -1 before the first."""
        return -1 if self._last is None else self._last.number

    def forget(self, numbers: Iterable[int]) -> None:
        """Close files; they are not removed."""
        for number in list(numbers):
            file = self._files.pop(number)
            self.live.pop(number, None)
            if file is self._last:
                self._last, self._queued = None, 0
            file.close()

    def close(self) -> None:
        """Close all files. Queued rows are lost."""
        self.forget(self._files)
        self._reader.close()
