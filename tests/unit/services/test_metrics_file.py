"""The way of a script's counts to its daemon, and the numbers that scripts may put there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oneflow.core.errors import ProtocolError
from oneflow.core.metrics import Metrics
from oneflow.core.metrics_samples import MAX_TOLD, Aggregator, Exporter
from oneflow.services.metrics_file import MAX_NBYTES, VARIABLE, CountsReader, CountsWriter
from tests.unit.core.test_metrics import samples
from tests.unit.core.test_metrics_samples import worked

PID = os.getpid()


def test_what_is_written_is_what_a_worker_would_tell(tmp_path: Path) -> None:
    path, rank = tmp_path / "counts.json", worked()
    writer, reader = CountsWriter(path, rank), CountsReader(path, PID)
    assert reader.news() == ([], [])
    writer.write()
    told, _ = reader.news()
    assert {t.name for t in told} == {t.name for t in Exporter(worked()).news()}
    assert reader.news() == ([], [])
    here, there = Metrics(), Metrics()
    listener = Aggregator(here, "j")
    assert listener.take(told) == 0
    rank.acts["segment"] += 5
    writer.write()
    assert listener.take(reader.news()[0]) == 0
    again = worked()
    again.acts["segment"] += 5
    Aggregator(there, "j").take(Exporter(again).news())
    moving = ("memory_bytes", "timestamp_seconds")
    assert {k: v for k, v in samples(here).items() if not k[0].endswith(moving)} == {
        k: v for k, v in samples(there).items() if not k[0].endswith(moving)
    }


def test_nothing_is_written_without_news_or_by_a_fork(tmp_path: Path) -> None:
    path, metrics = tmp_path / "counts.json", Metrics()
    writer = CountsWriter(path, metrics)
    pid = os.fork()
    if not pid:
        writer.write()
        os._exit(0)
    os.waitpid(pid, 0)
    assert not path.exists()
    writer.write()
    assert [p.name for p in tmp_path.iterdir()] == ["counts.json"]


def test_those_that_a_rank_starts_do_not_write_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counts.json"
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.setattr("oneflow.services.metrics_file.atexit.register", lambda act: None)
    writer = CountsWriter(path, worked())
    monkeypatch.setattr(writer, "_run", lambda: None)
    writer.start()
    assert VARIABLE not in os.environ
    (tmp_path / "counts.json.tmp").mkdir()  # another writer's, at the same time
    CountsWriter(path, worked()).write()
    assert CountsReader(path, PID).news()[0]


def test_a_full_disk_disturbs_nobody(tmp_path: Path) -> None:
    metrics = worked()
    CountsWriter(tmp_path / "gone" / "counts.json", metrics).write()


def test_other_processes_are_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    CountsWriter(path, worked()).write()
    assert CountsReader(path, PID + 1).news() == ([], [])


def row(*fields: object) -> bytes:
    return json.dumps({"pid": PID, "counts": [fields]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\x00",
        b"[" * 100_000,
        b"17",
        b"{}",
        json.dumps({"pid": PID, "counts": 3}).encode(),
        json.dumps({"pid": PID, "counts": [["acts", [], 1, []]] * (MAX_TOLD + 1)}).encode(),
        json.dumps({"pid": PID, "counts": [[1, 2]]}).encode(),
        json.dumps({"pid": PID, "counts": {"acts": 1}}).encode(),
        b'{"pid": %d, "counts": [["acts", ["segment"], 1%s, []]]}' % (PID, b"0" * 4000),
        row("acts", ["segment"], float("inf"), []),
        row("acts", ["segment"], float("nan"), []),
        row("acts", ["segment"], True, []),
        row("acts", ["segment"], "1", []),
        row("acts", [["segment"]], 1, []),
        row("acts", ["segment"], 1, [0.5]),
        b" " * (MAX_NBYTES + 1),
    ],
    ids=lambda data: repr(data.replace(b"%d" % PID, b"PID")[:48]),  # the same in every process
)
def test_nonsense_is_refused_once(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "counts.json"
    path.write_bytes(data)
    reader = CountsReader(path, PID)
    with pytest.raises(ProtocolError):
        reader.news()
    assert reader.news() == ([], [])


def test_what_is_no_file_does_not_stop_the_daemon(tmp_path: Path) -> None:
    for number, make in enumerate((os.mkfifo, os.mkdir)):
        path = tmp_path / str(number)
        make(path)
        with pytest.raises(ProtocolError):
            CountsReader(path, PID).news()
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    with pytest.raises(ProtocolError):
        CountsReader(link, PID).news()
