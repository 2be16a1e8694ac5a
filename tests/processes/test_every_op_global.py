"""Every op of the registry on global tensors, on 2, 3 and 4 ranks and a grid: values, gradients,
graphs. One launch; what the ranks do is in every_op_program.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from oneflow.scheduler.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", f"{__package__}.every_op_program")
NUM_RANKS = 4


def test_ops_mean_the_same_in_every_layout() -> None:
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
