"""Logs of ranks: offsets from the beginning, with any part gone, nothing lost unsaid, nobody
waits.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from oneflow.launcher.daemon import host, logs
from oneflow.launcher.daemon.logs import (
    RECORD,
    Limits,
    LogWriter,
    Pump,
    nbytes_of,
    read_piece,
    segments,
    size_of,
)
from oneflow.services.metrics_daemon import DAEMON
from tests.support.waiting import WAIT_S

SMALL = Limits(file_nbytes=100, num_files=4, job_nbytes=1 << 20)


def writer(tmp_path: Path, limits: Limits = SMALL, name: str = "stdout") -> LogWriter:
    return LogWriter(tmp_path / "1" / "rank0", name, tmp_path, limits)


def read_all(folder: Path, name: str = "stdout") -> tuple[int, bytes]:
    """(offset of the first byte that is there, all from it on)."""
    first = read_piece(folder, name, 0, 0)
    data = first.data
    while True:
        piece = read_piece(folder, name, first.offset + len(data), 0)
        if not piece.data:
            return first.offset, data
        assert piece.offset == first.offset + len(data)
        data += piece.data


def test_offsets_count_from_the_beginning_after_it_is_gone(tmp_path: Path) -> None:
    log = writer(tmp_path)
    text = random.Random(1).randbytes(1234)
    for start in range(0, len(text), 7):
        log.write(text[start : start + 7])
    log.close()
    folder = tmp_path / "1" / "rank0"
    assert log.size == size_of(folder, "stdout") == 1234
    kept = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    assert kept == ["stdout", "stdout.1000", "stdout.1100", "stdout.900"]
    assert read_all(folder) == (900, text[900:])
    piece = read_piece(folder, "stdout", 5, 20)
    assert (piece.offset, piece.data, piece.size) == (900, text[900:920], 1234)
    assert read_piece(folder, "stdout", 1095, 50).data == text[1095:1100]
    beyond = read_piece(folder, "stdout", 9999, 50)
    assert (beyond.offset, beyond.data) == (1234, b"")


def test_a_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    first = writer(tmp_path)
    first.write(b"a" * 250)
    first.close()
    second = writer(tmp_path)
    second.write(b"b" * 30)
    second.close()
    assert read_all(tmp_path / "1" / "rank0") == (0, b"a" * 250 + b"b" * 30)


def test_nothing_is_there_before_the_first_byte(tmp_path: Path) -> None:
    piece = read_piece(tmp_path / "none", "stdout", 5, 10)
    assert (piece.offset, piece.data, piece.size) == (0, b"", 0)


def test_a_line_without_end_and_bytes_of_any_kind_are_kept_as_they_are(tmp_path: Path) -> None:
    log = writer(tmp_path, Limits(file_nbytes=1 << 20))
    text = b"\x1b[2J\x1b]0;title\x07\xff\xfe\x00" + b"x" * 300_000
    log.write(text)
    log.close()
    assert read_all(tmp_path / "1" / "rank0") == (0, text)


def test_a_reader_beside_a_writer_misses_nothing(tmp_path: Path) -> None:
    log = writer(tmp_path, Limits(file_nbytes=1000, num_files=10_000))
    text = b"".join(b"line %d\n" % number for number in range(20_000))
    folder = tmp_path / "1" / "rank0"

    def write() -> None:
        for start in range(0, len(text), 777):
            log.write(text[start : start + 777])
        log.close()

    thread = threading.Thread(target=write)
    thread.start()
    data = b""
    while not log.is_closed or len(data) < log.size:
        piece = read_piece(folder, "stdout", len(data), 0)
        assert piece.offset == len(data)
        data += piece.data
    thread.join()
    assert data == text


class FullDisk:
    """Stands in for os.write: so many bytes fit."""

    def __init__(self, room: int) -> None:
        self.room = room
        self._write = os.write

    def __call__(self, descriptor: int, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = self._write(descriptor, bytes(data)[: self.room])
        self.room -= count
        return count


def test_a_full_disk_drops_lines_counts_them_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = DAEMON.log_lines_dropped["stdout"]
    disk = FullDisk(RECORD.size + 25)  # of when the first line was written, and of the log
    monkeypatch.setattr(os, "write", disk)
    monkeypatch.setattr(logs, "SPACING_S", 1e9)
    log = writer(tmp_path, Limits(file_nbytes=1 << 20))
    log.write(b"0123456789\n" * 2)
    log.write(b"abcdefghij\n" * 3)
    log.write(b"gone\n" * 2)
    assert DAEMON.log_lines_dropped["stdout"] - before == 5
    disk.room = 1 << 20
    log.write(b"on again\n")
    log.close()
    kept = b"0123456789\n" * 2 + b"abc"
    mark = b"\n[oneflow: 40 bytes (5 lines) were dropped here: No space left on device]\n"
    assert read_all(tmp_path / "1" / "rank0") == (0, kept + mark + b"on again\n")


def test_a_job_keeps_no_more_than_it_may(tmp_path: Path) -> None:
    limits = Limits(file_nbytes=1000, num_files=4, job_nbytes=8000)
    for number in range(1, 5):
        log = LogWriter(tmp_path / str(number) / "rank0", "stdout", tmp_path, limits)
        for _ in range(100):
            log.write(b"x" * 99 + b"\n")
        log.close()
    assert nbytes_of(tmp_path) <= 8000 + 2 * 1000
    assert segments(tmp_path / "4" / "rank0", "stdout")[0].start > 0


def test_what_a_job_may_not_keep_is_marked(tmp_path: Path) -> None:
    limits = Limits(file_nbytes=1 << 20, job_nbytes=8000)
    log = LogWriter(tmp_path / "1" / "rank0", "stdout", tmp_path, limits)
    for _ in range(200):
        log.write(b"x" * 99 + b"\n")
    log.close()
    _, data = read_all(tmp_path / "1" / "rank0")
    assert len(data) < 11_000
    assert data.endswith(b"the job's logs are as large as they may be]\n")


def test_a_pump_copies_until_the_pipe_is_closed(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    pump = Pump({reading: writer(tmp_path, Limits())})
    pump.start()
    text = b"y" * 3_000_000
    for start in range(0, len(text), 50_000):
        os.write(writing, text[start : start + 50_000])
    os.close(writing)
    assert pump.finish(WAIT_S)
    assert read_all(tmp_path / "1" / "rank0") == (0, text)


def test_a_pump_lets_go_of_a_pipe_that_somebody_keeps_open(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    log = writer(tmp_path)
    pump = Pump({reading: log})
    pump.start()
    os.write(writing, b"last words")
    assert not pump.finish(0.1)
    assert log.is_closed
    assert read_all(tmp_path / "1" / "rank0") == (0, b"last words")
    os.close(writing)


def test_jobs_of_which_there_are_files_are_told_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    assert host.kept_jobs(tmp_path / "jobs") == []
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        os.utime(tmp_path / "jobs" / name, (1000 - age, 1000 - age))
    (tmp_path / "jobs" / "a file").touch()
    monkeypatch.setattr(host, "MAX_KEPT", 2)
    assert host.kept_jobs(tmp_path / "jobs") == ["oldest", "older"]
