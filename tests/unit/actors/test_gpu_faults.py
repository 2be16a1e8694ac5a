"""Errors of a GPU are told in terms of the graph; with stand-ins for CuPy's errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oneflow.actors.gpu_faults import explained, largest, launched_earlier
from oneflow.actors.segment import Segment
from oneflow.core.errors import DeviceFaultError, DeviceMemoryError
from oneflow.core.graph_text import parse_graph
from oneflow.core.job_config import Cluster, JobConfig
from oneflow.scheduler.compiler.pipeline import compile_graph

from .programs import two_layers


class CUDARuntimeError(RuntimeError):
    """Stands for CuPy's."""


class OutOfMemoryError(MemoryError):
    """Stands for CuPy's."""


PAIR = "cpu[0, 1]"
PLAN = compile_graph(parse_graph(two_layers(PAIR, PAIR, width=90000)), JobConfig("job"), Cluster(2))
SLOW = CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("Out of memory allocating 512 bytes"),
        CUDARuntimeError("cudaErrorMemoryAllocation: out of memory"),
    ],
)
def test_a_full_gpu_names_the_largest_registers(error: Exception) -> None:
    ours = explained(error, PLAN, 0, {})
    assert isinstance(ours, DeviceMemoryError) and ours.reason == "OOM_DEVICE"
    assert str(error) in str(ours)
    lines = largest(PLAN, 0, {}).splitlines()
    sizes = [float(line.split()[0].replace(",", "")) for line in lines]
    assert sizes == sorted(sizes, reverse=True) and "90000" in lines[0] and lines[0] in str(ours)


def test_temporaries_are_among_the_largest() -> None:
    made = SimpleNamespace(op="matmul", location="train.py:3")
    huge = SimpleNamespace(name="%7", type=SimpleNamespace(nbytes=3 << 30), node=made)
    segment: Any = SimpleNamespace(temporaries=lambda: [huge])
    first = largest(PLAN, 0, {1: segment}).splitlines()[0]
    assert "3,072.0 MiB  temporary %7" in first and first.endswith("of matmul (train.py:3)")


def test_a_kernel_that_failed_ends_the_job_as_a_fault_of_the_device() -> None:
    ours = explained(SLOW, PLAN, 0, {})
    assert isinstance(ours, DeviceFaultError) and "illegal memory access" in str(ours)
    assert explained(ValueError("3"), PLAN, 0, {}) is None


def test_an_op_that_meets_the_error_of_another_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    assert "CUDA_LAUNCH_BLOCKING=1 names its op" in launched_earlier(SLOW)
    assert not launched_earlier(OutOfMemoryError("full")) and not launched_earlier(ValueError("3"))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert not launched_earlier(SLOW)


def test_a_segment_names_the_op_that_met_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    segment = Segment.__new__(Segment)
    node: Any = SimpleNamespace(node=SimpleNamespace(module="front", location="train.py:7"))
    segment._made_for = [node]
    error = CUDARuntimeError("cudaErrorLaunchFailure: unspecified launch failure")
    for _ in range(2):
        segment.blame(error, 0)
    assert str(error).startswith(
        "cudaErrorLaunchFailure: unspecified launch failure (train.py:7, in "
    )
    assert str(error).count("launched by this op or before it") == 1
