"""The newest mark of a node is kept, and a job's folders of all its lives go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.launcher.daemon.marks import FILE, keep_mark, read_mark
from oneflow.protos import cluster_pb2 as pb
from oneflow.scheduler.jobs.limits import up_to


def mark(start: str, attempts: int) -> pb.JournalMark:
    return pb.JournalMark(journal="ours", start=start, attempts=attempts)


def test_the_newest_of_a_start_is_kept(tmp_path: Path) -> None:
    assert read_mark(tmp_path) is None
    for told, kept in ((2, 2), (1, 2), (3, 3)):
        keep_mark(tmp_path, mark("s1", told))
        assert read_mark(tmp_path) == mark("s1", kept)
    keep_mark(tmp_path, mark("s2", 1))
    keep_mark(tmp_path, pb.JournalMark())
    assert read_mark(tmp_path) == mark("s2", 1)


def test_a_damaged_mark_is_none_and_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_bytes(b"\xff\xff\xff")
    assert read_mark(tmp_path) is None
    assert str(tmp_path / FILE) in caplog.text
    keep_mark(tmp_path, mark("s1", 1))
    assert read_mark(tmp_path) == mark("s1", 1)


def test_earlier_lives_of_a_job_go_with_it() -> None:
    names = ["j1", "j1~3", "j1~9", "j10", "j2~1", "notes.txt"]
    assert up_to("j1~3", names) == ["j1", "j1~3"]
    assert up_to("j1", names) == ["j1"]
    assert up_to("..", names) == []
