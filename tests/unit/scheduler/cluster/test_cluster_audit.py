"""The audit log: lines of JSON, never lost to a flood, never mixed."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from oneflow.scheduler.cluster.audit import AUDIT_FILE, MAX_FAILURES_PER_S, Audit, Retired
from oneflow.scheduler.jobs.events import Remove, Ticked
from oneflow.scheduler.jobs.records import JobRecord, JobSpec, JobState


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_done_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for name in ("a", "b"):  # a second start goes on in the same file
        audit = Audit(path, lambda: 12.5)
        audit.note("submit", "ann", "ipv4:1.2.3.4:5", job=name, text="x\ny" * 2000)
        assert audit.is_new
        audit.sync()
        assert not audit.is_new
        audit.close()
    found = lines(path)
    assert [entry["job"] for entry in found] == ["a", "b"]
    assert found[0]["ts"] == 12.5
    assert len(str(found[0]["text"])) == 2000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_flood_of_failures_is_summed_up(tmp_path: Path) -> None:
    wall = SimpleNamespace(now=1.0)
    audit = Audit(tmp_path / "audit.log", lambda: wall.now)
    for _ in range(100):
        audit.auth_failure("bad", "/oneflow.Jobs/Get", "ipv4:1.2.3.4:5")
    wall.now = 2.0
    audit.auth_failure("bad", "/oneflow.Jobs/Get", "ipv4:1.2.3.4:5")
    found = lines(tmp_path / "audit.log")
    assert len(found) == MAX_FAILURES_PER_S + 1
    assert found[-1]["left_out"] == 100 - MAX_FAILURES_PER_S
    audit.close()


def files(folder: Path) -> list[Path]:
    """Oldest first."""
    older = [p for p in folder.iterdir() if p.name.startswith("audit.log.")]
    older.sort(key=lambda p: int(p.name.rpartition(".")[2]))
    return [*older, folder / "audit.log"]


def test_a_full_file_is_put_away_and_no_line_is_lost_or_cut(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for start in (0, 20, 40):  # the scheduler is started anew, whatever the file holds
        audit = Audit(path, lambda: 1.0, max_nbytes=500, max_files=100)
        for number in range(start, start + 20):
            audit.note("submit", "ann", "peer", number=number)
            if number % 7 == 0:
                audit.sync()
        audit.close()
    found = files(tmp_path)
    assert len(found) > 5
    assert [entry["number"] for file in found for entry in lines(file)] == list(range(60))
    assert all(file.stat().st_size <= 500 for file in found)
    assert {stat.S_IMODE(file.stat().st_mode) for file in found} == {0o600}
    with pytest.raises(OSError):
        audit.sync()


def test_only_the_newest_of_the_full_files_are_kept(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.log", max_nbytes=100, max_files=3)
    (tmp_path / "audit.log.old").write_text("not ours")
    for number in range(12):
        audit.note("submit", "ann", "peer", number=number)
    audit.close()
    (tmp_path / "audit.log.old").unlink()
    found = files(tmp_path)
    assert [file.name for file in found] == [*(f"audit.log.{n}" for n in (9, 10, 11)), "audit.log"]
    assert [entry["number"] for file in found for entry in lines(file)] == [8, 9, 10, 11]


def test_a_line_that_a_crash_has_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b'{"event":"sub')
    audit = Audit(path)
    audit.note("submit", "ann", "peer")
    audit.close()
    torn, whole = path.read_text().splitlines()
    assert (torn, json.loads(whole)["event"]) == ('{"event":"sub', "submit")


def test_lines_wait_for_room_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, room, write = tmp_path / "audit.log", SimpleNamespace(left=150), os.write

    def short(fd: int, data: bytes) -> int:
        if not room.left:
            raise OSError(errno.ENOSPC, "No space left on device")
        room.left -= (taken := write(fd, data[: room.left]))
        return taken

    audit = Audit(path)
    monkeypatch.setattr("oneflow.scheduler.cluster.audit.os.write", short)
    with caplog.at_level("WARNING", "oneflow"):
        for number in range(5):
            audit.note("submit", "ann", "peer", number=number)
        assert [entry["number"] for entry in lines(path)] == [0]  # no half of a line
        assert audit.is_new  # so that it is tried again with each tick
        monkeypatch.setattr("oneflow.scheduler.cluster.audit.MAX_WAITING_NBYTES", 500)
        for number in range(5, 9):
            audit.note("submit", "ann", "peer", number=number)
        room.left = 1 << 20
        audit.sync()
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition("audit.log ")[2] for text in said if "again" in text] == [
        "can be written again"
    ]
    assert len([text for text in said if "No space left" in text]) == 1
    audit.note("submit", "ann", "peer", number=9)
    audit.close()
    found = lines(path)
    kept = [entry["number"] for entry in found if entry["event"] == "submit"]
    (lost,) = [entry for entry in found if entry["event"] == "lost"]
    assert kept == [*range(kept[-2] + 1), 9]
    assert lost["lines"] == 9 - len(kept[:-1]) > 0
    assert found.index(lost) == len(found) - 2  # where they are missing


def test_a_file_that_cannot_be_put_away_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    audit = Audit(tmp_path / "audit.log", max_nbytes=800)
    with monkeypatch.context() as patched, caplog.at_level("ERROR", "oneflow"):
        patched.setattr(Path, "rename", refuse)
        for number in range(20):
            audit.note("submit", "ann", "peer", number=number)
    assert any("cannot be put away" in record.getMessage() for record in caplog.records)
    assert [entry["number"] for entry in lines(tmp_path / "audit.log")] == list(range(20))
    for number in range(20, 25):
        audit.note("submit", "ann", "peer", number=number)
    audit.close()
    found = [file for file in files(tmp_path) if file.name != "audit.log.new"]
    assert len(found) == 2
    assert [entry["number"] for file in found for entry in lines(file)] == list(range(25))


def ended(name: str, state: JobState, checkpoint: str = "") -> JobRecord:
    step = 9 if checkpoint else 0
    return JobRecord(name, JobSpec(), state, last_checkpoint=checkpoint, last_checkpoint_step=step)


def test_a_job_is_retired_with_a_word_on_the_checkpoint_that_goes_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("oneflow"), "propagate", True)
    audit = Audit(tmp_path / AUDIT_FILE)
    retired = Retired(audit)
    removes = [Remove("old", "it ended long ago"), Remove("lost", "too many"), Remove("asked")]
    retired.stepped(Ticked(0.0), removes)
    retired.changed(ended("old", JobState.SUCCEEDED, "step-9"), None)
    retired.changed(ended("lost", JobState.FAILED, "/ckpt/step-9"), None)
    retired.changed(ended("asked", JobState.FAILED, "step-9"), None)  # by its owner
    audit.close()
    noted = lines(tmp_path / AUDIT_FILE)
    assert [(line["job"], line["why"], line["checkpoint"]) for line in noted] == [
        ("old", "it ended long ago", ""),
        ("lost", "too many", "/ckpt/step-9"),
    ]
    warned = {r.getMessage() for r in caplog.records if r.levelno == logging.WARNING}
    assert len(warned) == 1 and "step 9 (/ckpt/step-9) goes with it" in warned.pop()
