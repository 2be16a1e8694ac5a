"""Two ranks on the GPUs of this host, or sharing its only one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oneflow.distributed.device_groups import SHARING_VERSION
from oneflow.scheduler.ports import free_port

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()
PROGRAM = Path(__file__).parent / "gpu_program.py"
PATH = os.pathsep.join(filter(None, (str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH"))))
"""The program imports from `tests`."""


def _run(scene: str, **env: str) -> subprocess.CompletedProcess[str]:
    flags = ["--nproc_per_node", "2", "--master_port", str(free_port())]
    return subprocess.run(
        [sys.executable, "-m", "oneflow.distributed.launch", *flags, str(PROGRAM), scene],
        env={**os.environ, "PYTHONPATH": PATH, "ONEFLOW_TIMEOUT_SECONDS": "60", **env},
        capture_output=True,
        text=True,
        timeout=200,
    )


def _launch(scene: str, **env: str) -> None:
    result = _run(scene, **env)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-6000:]
    assert result.stdout.count("done") == 2


def _nccl_env() -> dict[str, str]:
    """The environment in which two ranks use NCCL here; skips where they cannot."""
    from cupy.cuda import nccl

    if not nccl.available:
        pytest.skip("this CuPy finds no NCCL: install oneflow-actors[cuda] or [cuda13]")
    if cupy.cuda.runtime.getDeviceCount() >= 2:
        return {}
    if nccl.get_version() < SHARING_VERSION:
        pytest.skip(f"two ranks on one GPU need NCCL 2.30, this is {nccl.get_version()}")
    return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


@pytest.mark.parametrize(
    "scene", ["data_parallel", "dropped", "replicas", "layouts", "boxing", "embeddings"]
)
def test_two_ranks(scene: str) -> None:
    """Without NCCL where the ranks share a GPU: eager tensors then go through host memory."""
    _launch(scene)


def test_ranks_that_act_as_two_hosts() -> None:
    """Registers travel through pinned memory and TCP."""
    _launch("data_parallel_far")


@pytest.mark.parametrize("scene", ["nccl", "streams", "dropped", "replicas", "layouts", "boxing"])
def test_nccl(scene: str) -> None:
    _launch(scene, **_nccl_env())


def test_ranks_in_different_gpu_calls_end_and_say_which() -> None:
    result = _run("desync", **_nccl_env())
    output = result.stdout + result.stderr
    assert result.returncode == 81, output[-6000:]
    assert "all_reduce(sum) float32[2, 1048576]" in output and "all_to_all float32" in output


def test_a_rank_that_dies_in_a_gpu_call_ends_the_job() -> None:
    result = _run("killed", **_nccl_env())
    assert result.returncode not in (0, 124), result.stdout[-6000:] + result.stderr[-6000:]
    assert "rank=1" in result.stderr, result.stderr[-6000:]
    assert "AssertionError" not in result.stderr, result.stderr[-6000:]
