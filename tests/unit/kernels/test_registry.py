"""Kernels are found by the names of the files of their ops, and no others are imported."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import oneflow.ops  # noqa: F401  (declares all)
from oneflow.kernels import registry


def test_every_kernel_stands_where_it_is_looked_for() -> None:
    registry.load()
    found: list[tuple[str, Callable[..., Any]]] = [
        # A GPU's kernels stand anywhere: the first of them loads all files.
        *(
            (n, k.function)
            for (n, kind), ks in registry._KERNELS.items()
            if kind in ("cpu", registry.EVERY)
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


def test_a_thread_waits_for_the_kernels_that_another_one_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imported: list[str] = []
    seen: list[int] = []

    def load_and_count() -> None:
        registry.load()
        seen.append(len(imported))

    other = threading.Thread(target=load_and_count)

    def slow_import(name: str) -> ModuleType:
        if not imported:
            other.start()
            other.join(0.05)  # without waiting it would be done, with nothing imported
        imported.append(name)
        return registry.package

    monkeypatch.setattr(registry, "_loaded", False)
    monkeypatch.setattr(registry.importlib, "import_module", slow_import)
    registry.load()
    other.join()
    assert len(imported) > 30 and seen == [len(imported)]
