"""Times at which the bytes of a stream were written: a small file beside it, for readers of logs by
time.

`.stdout.times` has a record for each second in which something was written: the offset of the first
line, and when its first and last bytes came. Beyond MAX_RECORDS two become one, so the file stays
small and only coarser. It is of use, not of need: what cannot be written is left out.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

RECORD = struct.Struct("<Qdd")  # offset, time of its first byte, time of the last before the next
MAX_RECORDS = 40_000  # 1 MB, half a day of seconds
NEW_S = 1.0
NOTE_S = 0.1  # times are as exact as that

Record = tuple[int, float, float]


class TimeIndex:
    """The index of one growing stream."""

    def __init__(self, folder: Path, name: str, wall: Callable[[], float] = time.time) -> None:
        self._path = _path(folder, name)
        self._wall = wall
        self._every_s = NEW_S
        self._fd: int | None = None
        self._is_broken = False
        self._count = 0
        self._last: Record | None = None

    def note(self, offset: int, data: bytes, begins_line: bool) -> None:
        """`data` is about to be written at `offset`."""
        now, last = self._wall(), self._last
        if last is not None and now < last[1] + self._every_s:
            if now - last[2] >= NOTE_S:
                self._replace((last[0], last[1], now))
            return
        start = 0 if begins_line else data.find(b"\n") + 1
        if (start == 0 and not begins_line) or start >= len(data) > 0:
            if last is not None:
                self._replace((last[0], last[1], now))
            return
        self._add((offset + start, now, now))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _replace(self, record: Record) -> None:
        self._last = record
        self._put(record, max(self._count - 1, 0))

    def _add(self, record: Record) -> None:
        if self._count >= MAX_RECORDS:
            self._thin()
        self._last = record
        self._put(record, self._count)
        self._count += 1

    def _put(self, record: Record, number: int) -> None:
        if self._is_broken:
            return
        try:
            if self._fd is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o600)
                self._count = os.fstat(self._fd).st_size // RECORD.size
                number += self._count  # of an earlier daemon
            os.pwrite(self._fd, RECORD.pack(*record), number * RECORD.size)
        except OSError:  # a full disk: the log itself says so
            self._is_broken = True

    def _thin(self) -> None:
        records = read_records(self._path)
        pairs = [records[i : i + 2] for i in range(0, len(records), 2)]
        merged = [(pair[0][0], pair[0][1], pair[-1][2]) for pair in pairs]
        partial = self._path.with_suffix(".tmp")
        self.close()
        try:
            partial.write_bytes(b"".join(RECORD.pack(*record) for record in merged))
            partial.replace(self._path)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            self._is_broken = True
        self._count, self._every_s = len(merged), 2 * self._every_s


def offset_at(folder: Path, name: str, since: float) -> int | None:
    """Return the offset of the first line that was written at `since` (seconds since the epoch) or
    up to a second before; None if nothing was written from then on.
    """
    records = read_records(_path(folder, name))
    if not records:
        return 0
    for number, (offset, _, last) in enumerate(records):
        if last + NOTE_S >= since:
            return offset if number else 0
    return None


def read_records(path: Path) -> list[Record]:
    """All that is whole of it."""
    try:
        data = path.read_bytes()
    except OSError:
        return []
    return list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))


def _path(folder: Path, name: str) -> Path:
    return folder / f".{name}.times"
