"""Times at which lines were written, as far as a file beside each log can say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from oneflow.launcher.daemon import logs
from oneflow.launcher.daemon.logs import TimeIndex, offset_at, read_records


class Stream:
    """Writes lines at chosen times, as a LogWriter does."""

    def __init__(self, folder: Path) -> None:
        self.now = 1000.0
        self.folder = folder
        self.data = b""
        self.index = TimeIndex(folder, "stdout", lambda: self.now)

    def write(self, data: bytes, at: float) -> None:
        self.now = at
        self.index.note(len(self.data), data, self.data[-1:] in (b"", b"\n"))
        self.data += data

    def since(self, at: float) -> bytes | None:
        offset = offset_at(self.folder, "stdout", at)
        return None if offset is None else self.data[offset:]


def test_what_was_written_from_a_moment_on(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    for second in range(10):
        stream.write(b"line %d\n" % second, 1000.0 + 2 * second)
    assert stream.since(0.0) == stream.data
    assert stream.since(1007.0) == stream.data[stream.data.index(b"line 4") :]
    assert stream.since(1018.5) == b"line 9\n"  # to a second
    assert stream.since(1019.5) is None


def test_silence_ends_a_record(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    for at in (1000.0, 1000.2, 1000.9):
        stream.write(b"old\n", at)
    assert stream.since(1000.8) == stream.data  # to a second
    assert stream.since(1500.0) is None
    stream.write(b"new\n", 2000.0)
    assert stream.since(1500.0) == b"new\n"


def test_it_begins_with_a_whole_line(tmp_path: Path) -> None:
    stream = Stream(tmp_path)
    stream.write(b"a begin", 1000.0)
    stream.write(b"ning\nwhole\n", 1010.0)
    assert stream.since(1005.0) == b"whole\n"
    stream.write(b"without", 1020.0)
    stream.write(b" end", 1030.0)  # belongs to the line before it
    assert stream.since(1025.0) == b"without end"
    stream.write(b"\nshort\nprogress", 1040.0)
    for at in range(1041, 1100):  # of a bar that ends no line
        stream.write(b"\r#", float(at))
    assert stream.since(1090.0) == b"progress" + b"\r#" * 59


def test_a_second_daemon_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    first = Stream(tmp_path)
    first.write(b"one\n", 1000.0)
    first.index.close()
    second = Stream(tmp_path)
    second.data = first.data
    second.write(b"two\n", 1100.0)
    second.write(b"more\n", 1100.5)
    second.write(b"three\n", 1200.0)
    assert [offset for offset, _ in read_records(tmp_path, "stdout")] == [0, 4, 13]
    assert second.since(1150.0) == b"three\n"


def test_it_gets_coarser_as_it_grows_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "NUM_SPACINGS", 8)
    stream = Stream(tmp_path)
    for second in range(1000):
        stream.write(b"%3d\n" % second, 1000.0 + second)
    records = read_records(tmp_path, "stdout")
    assert len(records) < 8 * (2 + math.log(1000 / 8))
    found = stream.since(1500.0)
    assert found is not None and found.endswith(b"999\n") and b"500\n" in found
    assert len(found) < 4 * 600
    assert records == sorted(records)


def test_without_an_index_all_is_shown(tmp_path: Path) -> None:
    assert offset_at(tmp_path, "stdout", 5.0) == 0


def test_a_disk_that_is_full_is_no_error(tmp_path: Path) -> None:
    index = TimeIndex(tmp_path / "not there", "stdout")
    index.note(0, b"x\n", True)
    index.note(2, b"y\n", True)
    index.close()
