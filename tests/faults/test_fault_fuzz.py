"""Inputs that nobody means: some of each kind here, two million by `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns import servers
from campaigns.fuzz import KINDS, Setting, fuzz_here, fuzz_served, message_kinds
from campaigns.models import dense

from .fuzz_files import Checkpoint
from .fuzz_inputs import Verdict
from .fuzz_jobfiles import tiny_job, truncate_jobfile

INPUTS, SERVED = 8000, 5000


def test_every_message_is_tried() -> None:
    names = {kind.__name__ for kind in message_kinds()}
    assert {"JobSpec", "DaemonMessage", "Begin", "JoinRequest", "Graph", "Plan"} <= names
    share = {kind.name: kind.share for kind in KINDS}
    assert 2_000_000 * share["messages"] // 1000 >= 1_000_000
    assert sum(kind.share for kind in KINDS) == 1000


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("jobs")
    dense(folder)
    tiny_job(folder / "tiny.job")
    return Setting(folder)


def test_nothing_but_declared_errors_and_bounded_memory(setting: Setting) -> None:
    for verdict in fuzz_here(INPUTS, 1, "", setting):
        assert not verdict.bad, f"{verdict.name}: {verdict.bad[:5]}"
        assert len(verdict.ends) > 1, "only one end: nothing was tried"


def test_no_part_of_a_job_file_is_taken_for_all(setting: Setting) -> None:
    verdict = Verdict("cut")
    truncate_jobfile(verdict, setting.folder / "tiny.job")
    assert not verdict.bad, verdict.bad[:5]
    assert set(verdict.ends) == {"JobFileError"}


def test_the_checkpoint_that_is_broken_is_a_right_one(tmp_path: Path) -> None:
    Checkpoint(tmp_path).check()


def test_a_cluster_that_is_fed_nonsense_goes_on_serving(setting: Setting, tmp_path: Path) -> None:
    rig = servers.started(tmp_path, setting.folder / "tiny.job")
    try:
        for verdict in fuzz_served(SERVED, 1, "", Setting(setting.folder, rig), scale=0.02):
            assert not verdict.bad, f"{verdict.name}: {verdict.bad[:5]}"
    finally:
        rig.stop()
