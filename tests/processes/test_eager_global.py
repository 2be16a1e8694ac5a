"""Global tensors, collectives and data parallelism in real processes that share memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneflow.scheduler.ports import free_port

PROGRAM = Path(__file__).parent / "eager_program.py"
SCENES = ["layouts", "boxing", "conversions", "communication", "data_parallel", "desync", "modules"]


def launch(scene: str, num_ranks: int) -> subprocess.CompletedProcess[str]:
    flags = ["--nproc_per_node", str(num_ranks), "--master_port", str(free_port())]
    env = {**os.environ, "ONEFLOW_TIMEOUT_SECONDS": "60", "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, str(PROGRAM), scene],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, num_ranks: int) -> None:
    result = launch(scene, num_ranks)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    assert result.stdout.count("done") == num_ranks


def test_nothing_stays_in_shared_memory() -> None:
    before = set(os.listdir("/dev/shm"))
    assert launch("communication", 2).returncode == 0
    assert {n for n in set(os.listdir("/dev/shm")) - before if "oneflow" in n} == set()
