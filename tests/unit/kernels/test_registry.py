"""Kernels are found by the names of the files of their ops, and no others are imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.kernels import registry


def test_every_kernel_stands_where_it_is_looked_for() -> None:
    registry.load()
    found: list[tuple[str, Callable[..., Any]]] = [
        # A GPU's kernels stand anywhere: the first of them loads all files.
        *(
            (n, k.function)
            for (n, kind), ks in registry._KERNELS.items()
            if kind == "cpu"
            for k in ks
        ),
        *registry._VIEWS.items(),
        *registry._PRECHECKS.items(),
    ]
    assert len(found) > 300
    for name, function in found:
        if homes := registry.homes(name):  # not of an op that a test declares
            assert function.__module__.rpartition(".")[2] in homes, name


def test_a_local_op_loads_the_kernels_of_that_op() -> None:
    code = (
        "import sys, oneflow as flow; assert (flow.ones(2) + 1).tolist() == [2, 2]; "
        "print(*(m for m in sys.modules if m.startswith('oneflow.kernels.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix("oneflow.kernels.") for name in done.stdout.split()}
    assert {"creation", "elementwise"} <= loaded
    assert not {"conv", "pool", "matmul", "softmax", "sort", "fft"} & loaded
