"""A rank lost in the middle of collectives ends the job, and the last line names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import WAIT_S

SCRIPT = """
import os, sys
import oneflow as flow
import oneflow.distributed as dist

how, victim = sys.argv[1], int(sys.argv[2])
x = flow.ones(1000)
for step in range(1_000_000):
    dist.all_reduce(x)
    if step == 20 and dist.get_rank() == victim:
        if how == "kill":
            os.kill(os.getpid(), 9)
        if how == "exit":
            sys.exit(int(sys.argv[3]))
        raise ValueError("boom")
"""


def run(folder: Path, *args: str) -> tuple[int, str]:
    """(exit code, last line of stderr) of a launched job of two ranks."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    flags = ["--standalone", "--nproc_per_node", "2", "--grace-period", "2"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ONEFLOW_")}
    done = subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, str(script), *args],
        env=env | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    return done.returncode, done.stderr.splitlines()[-1]


@pytest.mark.parametrize("victim", ["0", "1"])
def test_a_killed_rank_is_the_cause(tmp_path: Path, victim: str) -> None:
    code, line = run(tmp_path, "kill", victim)
    assert code == 137
    assert f"reason=SIGNAL rank={victim} " in line


def test_an_error_is_the_cause_with_its_text(tmp_path: Path) -> None:
    code, line = run(tmp_path, "raise", "1")
    assert code == 1
    assert "reason=USER_ERROR rank=1 " in line and "ValueError: boom (train.py:" in line


def test_an_exit_code_is_kept(tmp_path: Path) -> None:
    code, line = run(tmp_path, "exit", "0", "7")
    assert code == 7
    assert "rank=0 " in line


@pytest.mark.parametrize("victim", ["0", "1"])
def test_leaving_early_with_0_is_no_success(tmp_path: Path, victim: str) -> None:
    code, line = run(tmp_path, "exit", victim, "0")
    assert code == 85
    assert "reason=PEER_LOST" in line and f"rank {victim} exited 0 while peers run" in line
