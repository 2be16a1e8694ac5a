"""Calls that fail before, while and after they are done leave the state of calls that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from oneflow.protos import cluster_pb2 as pb

from .fault_rpc import MODES, run_modes


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_calls_that_fail_leave_the_state_of_calls_that_do_not(tmp_path: Path) -> None:
    rows = run_modes(tmp_path / "rpc", range(1))
    assert [row["error"] for row in rows] == [""] * len(MODES)
    services = pb.DESCRIPTOR.services_by_name
    methods = {m.name for s in ("Jobs", "Cluster") for m in services[s].methods}
    for row in rows:
        assert methods - set(row["failed"]) <= {"Debug", "Trace"}
    assert rows[-1]["fetches"] > 0
