"""Inputs that nobody means: a few thousand of each here, two million by `make faults`."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_fuzz import fuzz_here, message_kinds
from fault_rig import export_jobs, rig
from fault_servers import fuzz_servers

INPUTS, SERVED = 20_000, 300


def test_every_message_is_tried() -> None:
    names = {kind.__name__ for kind in message_kinds()}
    assert {"JobSpec", "DaemonMessage", "Begin", "JoinRequest", "Graph", "Plan"} <= names
    assert 100 * len(names) < INPUTS * 0.7


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    export_jobs(folder)
    return folder


def test_nothing_but_declared_errors_and_bounded_memory(jobs: Path) -> None:
    for verdict in fuzz_here(INPUTS, 1, "", jobs / "dense.job"):
        assert not verdict.bad, f"{verdict.name}: {verdict.bad[:5]}"
        assert len(verdict.ends) > 1, "only one end: nothing was tried"


def test_a_scheduler_that_is_fed_nonsense_goes_on_serving(tmp_path: Path) -> None:
    with rig(tmp_path, armed=False) as cluster:
        for verdict in fuzz_servers(cluster, SERVED, 1):
            assert not verdict.bad, f"{verdict.name}: {verdict.bad[:5]}"
