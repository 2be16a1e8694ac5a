"""A graph gives results the layouts that eager execution gives them, for every op of the registry;
what the ranks do is in graph_sbp_program.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from oneflow.scheduler.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", f"{__package__}.graph_sbp_program")
NUM_RANKS = 4
LEAST_PAIRS = 300


def test_results_lie_alike_eagerly_and_in_graphs() -> None:
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
    counts = [int(n) for n in re.findall(r": (\d+) pairs alike", result.stdout)]
    assert len(counts) == NUM_RANKS
    assert min(counts) >= LEAST_PAIRS
