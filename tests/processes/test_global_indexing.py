"""Indexing, slicing and in-place writing of global tensors on split dims, on 2, 3 and 4 ranks and a
grid: values against NumPy, bytes moved, gradients. One launch of global_indexing_program.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oneflow.scheduler.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", f"{__package__}.global_indexing_program")
NUM_RANKS = 4


def test_split_dims_are_indexed_and_written_in_place() -> None:
    flags = ["--nproc_per_node", str(NUM_RANKS), "--master_port", str(free_port())]
    env = {**os.environ, "ONEFLOW_TIMEOUT_SECONDS": "60"}
    result = subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, *PROGRAM],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout[-9000:] + result.stderr[-3000:]
    assert result.stdout.count("done") == NUM_RANKS
