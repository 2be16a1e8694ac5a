"""Global tensors as users meet them (conversion, creation, gradients, printing, modules, data
parallelism): one program of many scenes, in worlds of 1, 2 and 4 ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneflow.scheduler.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", f"{__package__}.global_api_program")
SETTINGS = {"ONEFLOW_TIMEOUT_SECONDS": "60", "PYTHONWARNINGS": "error"}


@pytest.mark.parametrize(
    ("num_ranks", "settings"),
    [
        (1, {}),
        (2, {"ONEFLOW_DEBUG_MODE": "1"}),  # compares what the ranks ask for at every change
        (4, {"RANKS_PER_HOST": "2"}),  # shared memory inside a host, sockets between the two
    ],
    ids=["one process", "debug mode", "two hosts"],
)
def test_every_scene(num_ranks: int, settings: dict[str, str]) -> None:
    flags = ["--nproc_per_node", str(num_ranks), "--master_port", str(free_port())]
    result = subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, *PROGRAM],
        env={**os.environ, **SETTINGS, **settings},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-9000:]
    assert result.stdout.count("done") == num_ranks
