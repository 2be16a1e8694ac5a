"""Ranks of one host with fewer cores than ranks: they finish, with the right values, and leave
nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from oneflow.scheduler.ports import free_port

PROGRAM = Path(__file__).parent / "crowded_program.py"


def launch(scene: str, num_ranks: int) -> subprocess.CompletedProcess[str]:
    flags = ["--nproc_per_node", str(num_ranks), "--master_port", str(free_port())]
    return subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, str(PROGRAM), scene],
        env={**os.environ, "ONEFLOW_TIMEOUT_SECONDS": "60"},
        capture_output=True,
        text=True,
        timeout=180,
    )


def memory_files() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "oneflow" in name}


def test_four_ranks_on_one_core_finish_with_the_right_values() -> None:
    result = launch("calls", 4)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert result.stdout.count("done") == 4


def test_a_rank_that_dies_in_a_large_call_is_named_and_nothing_stays() -> None:
    before, started = memory_files(), time.monotonic()
    result = launch("killed", 3)
    said = result.stdout + result.stderr
    assert result.returncode != 0
    assert "rank=1" in said, said[-3000:]
    assert time.monotonic() - started < 50, "found by its end, not by the time-out"
    assert memory_files() - before == set()
