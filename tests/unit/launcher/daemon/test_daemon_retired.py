"""Folders of retired jobs are kept aside for a day."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from oneflow.launcher.daemon import retired
from oneflow.launcher.daemon.retired import KEEP_S, RetiredJobs


@pytest.fixture
def jobs(tmp_path: Path) -> RetiredJobs:
    for name in ("j1", "j2"):
        (tmp_path / "jobs" / name / "outputs").mkdir(parents=True)
        (tmp_path / "jobs" / name / "outputs" / "variables").write_text(name)
    return RetiredJobs(tmp_path / "jobs", tmp_path / "removed")


def test_a_folder_is_put_aside_whole(jobs: RetiredJobs, tmp_path: Path) -> None:
    jobs.retire("j1")
    jobs.retire("j1")  # another daemon of the node was told too
    assert sorted(p.name for p in (tmp_path / "jobs").iterdir()) == ["j2"]
    (aside,) = (tmp_path / "removed").iterdir()
    assert aside.name.startswith("j1.")
    assert (aside / "outputs" / "variables").read_text() == "j1"
    assert (tmp_path / "removed").stat().st_mode & 0o777 == 0o700


def test_it_goes_after_a_day_by_both_clocks(
    jobs: RetiredJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.retire("j1")
    old = time.time() - KEEP_S - 1
    jobs.sweep()
    (aside,) = (tmp_path / "removed").iterdir()
    os.utime(aside, (old, old))  # so it seems after a jump of the clock
    jobs.sweep()
    assert aside.exists()
    later = time.monotonic() + retired.SEEN_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    jobs.retire("j2")
    jobs.sweep()
    assert [p.name.split(".")[0] for p in (tmp_path / "removed").iterdir()] == ["j2"]
