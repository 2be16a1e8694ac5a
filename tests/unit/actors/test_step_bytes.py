"""The bytes that benchmarks/step_bytes.py counts, and the least of them, beside sums by hand."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import oneflow as flow

F = flow.nn.functional
ROWS, IN, OUT = 64, 40, 48
X, W, B, Y = 4 * ROWS * IN, 4 * OUT * IN, 4 * OUT, 4 * ROWS * OUT  # bytes


@pytest.fixture(scope="module")
def counter() -> ModuleType:
    path = Path(__file__).parents[3] / "benchmarks" / "step_bytes.py"
    spec = importlib.util.spec_from_file_location("step_bytes", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _dense(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def _centred(x: Any, w: Any, b: Any) -> Any:
    return x - x.sum(0)


CASES: dict[str, tuple[Callable[..., Any], int, int]] = {
    # The product is written, read by a kernel that adds the bias; at best it is never written.
    "dense": (_dense, (X + W + Y) + (Y + B + Y), X + W + B + Y),
    # Nobody can subtract a sum before it is whole.
    "sum": (_centred, (X + 4 * IN) + (X + 4 * IN + X), (X + 4 * IN) + (X + 4 * IN + X)),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_by_hand(name: str, counter: ModuleType) -> None:
    build, moved, least = CASES[name]

    class Step(flow.nn.Graph):
        def build(self, *arrays: Any) -> Any:
            return build(*arrays)

    step, rng = Step(), np.random.default_rng(0)
    shapes = ((ROWS, IN), (OUT, IN), (OUT,))
    step(*(flow.tensor(rng.standard_normal(s), dtype=flow.float32) for s in shapes))
    assert counter.step_bytes(step) == (moved, least)


def test_a_look_up_reads_its_rows_and_not_the_table(counter: ModuleType) -> None:
    class Step(flow.nn.Graph):
        def build(self, table: Any, ids: Any) -> Any:
            return F.embedding(ids, table)

    step = Step()
    step(flow.ones(1000, 16), flow.tensor([3, 5, 5, 7]))
    rows, ids = 4 * 16 * 4, 4 * 8
    workspace = 4 * 8 + 4  # of a CPU: positions, and which are here; written and read
    least = rows + ids + rows
    assert counter.step_bytes(step) == (least + 2 * workspace, least)
