"""Calls that fail before, while and after they are done leave the state of calls that do not."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from campaigns.rpc import MODES, BadConnection, run_modes
from oneflow.cluster.connection import Connection
from oneflow.protos import cluster_pb2 as pb


def test_calls_are_broken_where_they_are_made() -> None:
    """The hook that the slow test overrides has the parameters that calls give it."""
    hooks = [inspect.signature(kind._method) for kind in (Connection, BadConnection)]
    assert list(hooks[0].parameters) == list(hooks[1].parameters)


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
