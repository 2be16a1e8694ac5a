"""Files for the output of ranks, by attempt: `<state>/jobs/<id>/<attempt>/rank<N>/stdout`.

An offset counts bytes from the beginning of a stream, also after the beginning is gone: a full file
`stdout` becomes `stdout.<offset of its first byte>`, and the oldest of these go. Bytes are kept as
they came; their effect on a terminal is the business of those that show them. Bytes that cannot be
written (disk full, more than a job may keep) are dropped and counted, and a line in the stream says
so; the job never waits for it.

Beside each stream lies a small file for readers by time: `.stdout.lines` has a record for each
second in which something was written, the offset of a line and when it was written. The older the
stream, the wider apart its records, so that they stay few. They are of use, not of need:
those that cannot be written are left out.
"""

from __future__ import annotations

import os
import selectors
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oneflow.services.metrics_daemon import DAEMON

STREAMS = ("stdout", "stderr")
FILE_NBYTES = 64 << 20
NUM_FILES = 4
JOB_NBYTES = 10 << 30
LOOK_NBYTES = 16 << 20  # so often the size of the whole job is looked at
MAX_READ_NBYTES = 512 << 10
RECORD = struct.Struct("<Qd")  # offset of a line; when it, or more of it, was written
SPACING_S = 1.0
NUM_SPACINGS = 40_000  # of a stream's age, at least: half a day of seconds, then they grow
RATE_NBYTES = 256 << 20  # a second; whoever writes more waits, or the disk would be his alone


@dataclass(frozen=True)
class Limits:
    """file_nbytes: of one file; num_files: of one stream, the one that grows included."""

    file_nbytes: int = FILE_NBYTES
    num_files: int = NUM_FILES
    job_nbytes: int = JOB_NBYTES


@dataclass(frozen=True)
class Segment:
    """One file of a stream. start: offset of its first byte."""

    start: int
    path: Path


@dataclass(frozen=True)
class Piece:
    """A piece of a stream.

    offset: of the first byte; larger than asked for if so much is gone. size: of the stream.
    """

    offset: int
    data: bytes
    size: int


class LogWriter:
    """One growing stream. One thread writes, others read through `read_piece`."""

    def __init__(self, folder: Path, name: str, job_folder: Path, limits: Limits) -> None:
        self._folder, self._name, self._job_folder = folder, name, job_folder
        self._limits = limits
        self._file: int | None = None
        self._file_nbytes = 0
        self._until_look = 0
        self._is_job_full = False
        self._dropped_nbytes = self._dropped_lines = 0
        self._why = ""
        self._ends_line = True
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # a full disk is told when there is something to write
            (folder / name).touch(0o600)  # who is told where the log is finds one
        self._size = size_of(folder, name)
        self._times = TimeIndex(folder, name)
        self.is_closed = False

    @property
    def size(self) -> int:
        """Bytes of the stream so far, those that are gone included."""
        return self._size

    def write(self, data: bytes) -> None:
        """Appends; never raises for a full disk."""
        problem = self._refusal(len(data))
        if not problem and self._dropped_nbytes:
            problem = self._put(self._mark())
            if not problem:
                self._dropped_nbytes = self._dropped_lines = 0
        if not problem:
            before = self._size
            self._times.note(before, data, self._ends_line)
            problem = self._put(data)
            written = self._size - before
            DAEMON.log_nbytes[self._name] += written
            data = data[written:]
        if data and problem:
            self._drop(data, problem)

    def close(self) -> None:
        """Say how much was dropped at the end, if there is room for it."""
        if self._dropped_nbytes:
            self._put(self._mark())
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._times.close()
        self.is_closed = True

    def _refusal(self, nbytes: int) -> str:
        """Say why nothing may be written now, or ""."""
        self._until_look -= nbytes
        if self._until_look <= 0:
            self._until_look = min(LOOK_NBYTES, self._limits.job_nbytes // 8)
            self._is_job_full = self._make_room() > self._limits.job_nbytes
        return "the job's logs are as large as they may be" if self._is_job_full else ""

    def _make_room(self) -> int:
        """Bytes of the job's logs, after removing old files of full streams if there are too
        many.
        """
        total = nbytes_of(self._job_folder)
        if total <= self._limits.job_nbytes:
            return total
        for path in _oldest_rotated(self._job_folder):
            size = _size(path)
            path.unlink(missing_ok=True)
            total -= size
            if total <= self._limits.job_nbytes:
                break
        return total

    def _put(self, data: bytes) -> str:
        """Writes as much as there is room for; why not all, or ""."""
        view = memoryview(data)
        try:
            while view:
                file = self._open()
                room = max(self._limits.file_nbytes - self._file_nbytes, 1)
                count = os.write(file, view[:room])
                self._ends_line = view[count - 1] == 10
                self._file_nbytes += count
                self._size += count
                view = view[count:]
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _open(self) -> int:
        path = self._folder / self._name
        if self._file is not None and self._file_nbytes >= self._limits.file_nbytes:
            os.close(self._file)
            self._file = None
            path.rename(path.with_name(f"{self._name}.{self._size - self._file_nbytes}"))
            for old in segments(self._folder, self._name)[: 1 - self._limits.num_files]:
                old.path.unlink(missing_ok=True)
        if self._file is None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._file_nbytes = os.fstat(self._file).st_size
        return self._file

    def _drop(self, data: bytes, why: str) -> None:
        lines = max(data.count(b"\n"), 1)
        self._dropped_nbytes += len(data)
        self._dropped_lines += lines
        self._why = why
        DAEMON.log_lines_dropped[self._name] += lines

    def _mark(self) -> bytes:
        start = "" if self._ends_line else "\n"
        text = f"{self._dropped_nbytes} bytes ({self._dropped_lines} lines) were dropped here"
        return f"{start}[oneflow: {text}: {self._why}]\n".encode()


def segments(folder: Path, name: str) -> list[Segment]:
    """The files of a stream that are there, oldest first."""
    found = []
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    for entry in names:
        base, dot, start = entry.rpartition(".")
        if dot and base == name and start.isdecimal():
            found.append(Segment(int(start), folder / entry))
    found.sort(key=lambda segment: segment.start)
    last = found[-1].start + _size(found[-1].path) if found else 0
    if name in names:
        found.append(Segment(last, folder / name))
    return found


def size_of(folder: Path, name: str) -> int:
    """Bytes of a stream so far, those that are gone included."""
    found = segments(folder, name)
    return found[-1].start + _size(found[-1].path) if found else 0


def read_piece(folder: Path, name: str, offset: int, limit: int) -> Piece:
    """Up to `limit` bytes from `offset` on, or from the first byte after it that is still there.

    Safe beside a writer: a file that is renamed or removed meanwhile is looked for again.
    """
    limit = max(0, min(limit or MAX_READ_NBYTES, MAX_READ_NBYTES))
    while True:
        found = segments(folder, name)
        if not found:
            return Piece(0, b"", 0)
        piece = _read_from(found, max(offset, found[0].start), limit)
        is_same = segments(folder, name)[-1:] == found[-1:]  # or the file we read is another one
        if piece is not None and is_same:
            return piece


def _read_from(found: list[Segment], offset: int, limit: int) -> Piece | None:
    """None if a file was renamed or removed meanwhile."""
    size = found[-1].start + _size(found[-1].path)
    if offset >= size:
        return Piece(size, b"", size)
    segment = next(s for s in reversed(found) if s.start <= offset)
    try:
        with open(segment.path, "rb", buffering=0) as file:
            return Piece(offset, os.pread(file.fileno(), limit, offset - segment.start), size)
    except FileNotFoundError:
        return None


def nbytes_of(folder: Path) -> int:
    """Bytes of all log files below a job's folder."""
    return sum(_size(path) for path in _log_files(folder))


def _log_files(job_folder: Path) -> Iterator[Path]:
    for path in job_folder.glob("*/rank*/std*"):
        if path.name.split(".")[0] in STREAMS:
            yield path


def _oldest_rotated(job_folder: Path) -> list[Path]:
    found = [path for path in _log_files(job_folder) if "." in path.name]
    return sorted(found, key=_modified_at)


def _modified_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class TimeIndex:
    """The times of one growing stream."""

    def __init__(self, folder: Path, name: str, wall: Callable[[], float] = time.time) -> None:
        self._path, self._wall = _times_path(folder, name), wall
        self._fd: int | None = None
        self._is_broken = False
        self._began_at = self._next_at = 0.0
        self._line = 0  # offset of the last line that has begun

    def note(self, offset: int, data: bytes, begins_line: bool) -> None:
        """`data` is about to be written at `offset`."""
        first, last = data.find(b"\n", 0, -1), data.rfind(b"\n", 0, -1)
        begun = offset if begins_line else self._line  # which goes on
        if not begins_line and first >= 0:
            begun = offset + first + 1
        now = self._wall()
        if now >= self._next_at and not self._is_broken:
            self._add(begun, now)
        self._line = offset + last + 1 if last >= 0 else begun

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _add(self, offset: int, now: float) -> None:
        self._began_at = self._began_at or now
        self._next_at = now + _spacing_s(now - self._began_at)
        try:
            if self._fd is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._fd = os.open(self._path, flags, 0o600)
            whole = os.write(self._fd, RECORD.pack(offset, now)) == RECORD.size
        except OSError:  # a full disk: the log itself says so
            whole = False
        self._is_broken = not whole


def offset_at(folder: Path, name: str, since: float) -> int | None:
    """Return the offset of the first line that was written at `since` (seconds since the epoch) or
    up to a spacing before; None if nothing was written from then on.
    """
    records = read_records(folder, name)
    for number, (offset, at) in enumerate(records):
        if at + _spacing_s(at - records[0][1]) > since:
            return offset if number else 0
    return None if records else 0


def read_records(folder: Path, name: str) -> list[tuple[int, float]]:
    """All that is whole of a stream's times."""
    try:
        data = _times_path(folder, name).read_bytes()
    except OSError:
        return []
    return list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))


def _spacing_s(age_s: float) -> float:
    return max(SPACING_S, age_s / NUM_SPACINGS)


def _times_path(folder: Path, name: str) -> Path:
    return folder / f".{name}.lines"


class Pump(threading.Thread):
    """Copies a rank's pipes into its logs until all have closed. In a thread of its own, so that a
    slow disk holds up the rank and nothing else.
    """

    def __init__(self, pipes: dict[int, LogWriter]) -> None:
        super().__init__(name="oneflow-logs", daemon=True)
        self._pipes = pipes
        self._copied, self._began = 0, time.monotonic()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for descriptor in self._pipes:
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            is_told_to_end = False
            while len(selector.get_map()) > 1 and not is_told_to_end:
                for key, _ in selector.select():
                    if key.fd == self._wake_read:
                        is_told_to_end = True
                    elif not self._copy(key.fd):
                        selector.unregister(key.fd)
        for descriptor, writer in self._pipes.items():
            while self._copy(descriptor, is_last=True):
                pass
            os.close(descriptor)
            writer.close()

    def finish(self, timeout_s: float) -> bool:
        """Wait for bytes on their way; a pipe that somebody still holds is closed after
        `timeout_s`. True if all ended in order.
        """
        self.join(timeout_s)
        is_done = not self.is_alive()
        if not is_done:
            os.write(self._wake_write, b"x")
            self.join(timeout_s)
        if not self.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)
        return is_done

    def _copy(self, descriptor: int, is_last: bool = False) -> bool:
        """One read. False at the end of the pipe (is_last: or if there is nothing now)."""
        try:
            data = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return not is_last
        except OSError:
            return False
        if data:
            self._pipes[descriptor].write(data)
            self._pace(len(data))
        return bool(data)

    def _pace(self, nbytes: int) -> None:
        """Sleep off bytes beyond RATE_NBYTES a second."""
        self._copied += nbytes
        if self._copied < RATE_NBYTES // 8:
            return
        early_s = self._began + self._copied / RATE_NBYTES - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)
        self._copied, self._began = 0, time.monotonic()
