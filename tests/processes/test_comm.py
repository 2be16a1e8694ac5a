"""flow.comm and flow.distributed on real ranks: every function, dtype and odd shape, and misuse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("comm_program.py")
SCENES = ["reductions", "moves", "pairs", "objects", "mistakes", "unequal"]
WAIT_S = 120


def launch(num_ranks: int, *args: str) -> subprocess.CompletedProcess[str]:
    flags = ["--standalone", "--nproc_per_node", str(num_ranks)]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("ONEFLOW_")}
    env = kept | {"ONEFLOW_TIMEOUT_SECONDS": "30", "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, str(PROGRAM), *args],
        env=env,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )


@pytest.mark.parametrize(
    ("num_ranks", "far"), [(2, ()), (3, ()), (3, ("far",))], ids=["2-near", "3-near", "3-far"]
)
@pytest.mark.parametrize("scene", SCENES)
def test_scene(scene: str, num_ranks: int, far: tuple[str, ...]) -> None:
    result = launch(num_ranks, scene, *far)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]
    assert result.stdout.count("done") == num_ranks


def test_four_ranks() -> None:
    for scene in ("reductions", "moves"):
        result = launch(4, scene)
        assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-6000:]


@pytest.mark.parametrize("scene", ["reductions", "moves", "objects"])
def test_one_rank_alone(scene: str) -> None:
    names = ("ONEFLOW_", "MASTER_", "RANK", "WORLD_", "LOCAL_RANK")
    env = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    command = [sys.executable, str(PROGRAM), scene]
    result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=WAIT_S)
    assert result.returncode == 0, result.stderr[-6000:]
