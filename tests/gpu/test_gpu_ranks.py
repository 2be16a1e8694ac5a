"""Two ranks on the GPUs of this host, or sharing its only one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_needed import need_gpu

from oneflow.scheduler.ports import free_port

pytestmark = pytest.mark.gpu
cupy = need_gpu()
PROGRAM = Path(__file__).parent / "gpu_program.py"


def _launch(scene: str, **env: str) -> None:
    flags = ["--nproc_per_node", "2", "--master_port", str(free_port())]
    result = subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, str(PROGRAM), scene],
        env={**os.environ, "ONEFLOW_TIMEOUT_SECONDS": "60", **env},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    assert result.stdout.count("done") == 2


@pytest.mark.parametrize("scene", ["data_parallel", "layouts"])
def test_two_ranks(scene: str) -> None:
    _launch(scene)


def test_ranks_that_act_as_two_hosts() -> None:
    """Registers travel through pinned memory and TCP."""
    _launch("data_parallel_far")


def test_nccl() -> None:
    from cupy.cuda import nccl

    if not nccl.available:
        pytest.skip("this CuPy finds no NCCL: install nvidia-nccl-cu12")
    shared = cupy.cuda.runtime.getDeviceCount() < 2
    _launch("nccl", **({"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if shared else {}))
