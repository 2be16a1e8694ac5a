"""Daemons on a real Ray cluster of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_cluster import LocalTest, last_line, submit

ray = pytest.importorskip("ray")


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_daemons_are_placed_by_ray(tmp_path: Path, address: str) -> None:
    local = LocalTest(tmp_path)
    asked = ["cluster", "up", "--on", address, "--daemons", "2", "--device-type", "cpu"]
    done = local.run(*asked, "--allow-scripts", timeout_s=180)
    assert done.returncode == 0, done.stderr
    try:
        assert "cpu:0 cpu:1" in done.stdout
        done = submit(local, local.script("ok.py", "print('rank', rank)"), "--wait")
        assert done.returncode == 0, done.stderr
        assert "state=SUCCEEDED" in last_line(done)
        done = submit(local, local.script("bad.py", "sys.exit(5)"), "--wait")
        assert done.returncode == 5
        too_many = local.run("cluster", "up", "--on", address, "--daemons", "1")
        assert too_many.returncode == 78
    finally:
        down = local.run("cluster", "down", timeout_s=120)
    assert down.returncode == 0, down.stderr
    assert not _daemons(tmp_path)


def _daemons(folder: Path) -> list[str]:
    """Command lines of daemons that are still there for this test's cluster."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if sys.executable in words and "daemon" in words and str(folder) in " ".join(words):
            found.append(" ".join(words))
    return found
