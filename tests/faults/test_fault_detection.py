"""Faults are noticed and named in time on a cluster whose times are the default."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaigns.detection import FAULTS, KILLED, Blame, Seen, run_faults, see, table
from campaigns.detection_scene import RealRig, Scene
from tests.support.waiting import WAIT_S


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    rig = RealRig(tmp_path)
    try:
        yield Scene(rig.start(), tmp_path / "none.job")
    finally:
        rig.stop()


def test_who_is_killed_is_named(scene: Scene) -> None:
    """The figures are for the slow test: here a busy machine may take its time."""
    job, _ = scene.script_job()
    pid = scene.worker(job, 1)
    struck = scene.strike(job, lambda: os.kill(pid, signal.SIGKILL))
    seen = Seen("rank 1 killed", None)
    see(scene, seen, struck, "ended: SIGNAL", Blame(1, "SIGNAL", 137, KILLED), WAIT_S)
    assert f" rank=1 host=rig pid={pid} exit=137 " in seen.line


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_faults_are_noticed_in_time(tmp_path: Path) -> None:
    found = run_faults(tmp_path, list(FAULTS), turns=1)
    print(table(found))
    assert [f"{seen.fault}: {seen.error}" for seen in found if seen.error] == []
    assert len(found) == len(FAULTS) == 27
