"""nn.Graph on 2 and 4 ranks: one launch each, every scene within (graph_program.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneflow.scheduler.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", f"{__package__}.graph_program")


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_graphs_compute_what_eager_code_does(num_ranks: int, tmp_path: Path) -> None:
    flags = ["--nproc_per_node", str(num_ranks), "--master_port", str(free_port())]
    command = [sys.executable, "-m", "oneflow.distributed.launch", *flags]
    result = subprocess.run(
        [*command, *PROGRAM, str(tmp_path)],
        env={**os.environ, "ONEFLOW_TIMEOUT_SECONDS": "60", "PYTHONWARNINGS": "error"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    assert result.stdout.count("done") == num_ranks
