"""Python calls of a steady-state call: the runtime adds no more to the kernels than it does now.

Counts, not times, so that they mean the same on every machine. Calls inside of kernels are the
kernels' own affair and not counted.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

import oneflow as flow
from oneflow import surfaces
from oneflow.tensor import eager
from oneflow.tensor.eager import MAX_CACHED_CALLS

WARM_UP = 8
"""Steps until nothing is bound or sketched any more, even if the table of bound calls, which other
tests have filled, is emptied in the midst of the first ones."""


def asked() -> int:
    """Calls more of a training step once another test has made a subclass of Tensor, or a sparse
    one: from then on calls ask the classes of their arguments.
    """
    are_there = surfaces.asking or "oneflow.compat.torch.sparse_tensor" in sys.modules
    return 18 if are_there else 0


def calls_of(work: Callable[[], Any]) -> int:
    """Python functions called by `work` and all that it calls, once it has run a few times."""
    for _ in range(WARM_UP):
        work()
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "/kernels/" not in frame.f_code.co_filename

    gc.disable()  # what it calls belongs to whoever left something to collect
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count - 1  # `work` itself


def test_an_eager_op() -> None:
    a, b = flow.ones(4, 4), flow.ones(4, 4)
    assert calls_of(lambda: flow.matmul(a, b)) <= 13


def test_an_eager_op_on_global_tensors() -> None:
    here = flow.placement("cpu", [0])
    a = flow.ones(4, 4).to_global(here, flow.sbp.split(0))
    b = flow.ones(4, 4).to_global(here, flow.sbp.broadcast)
    assert calls_of(lambda: flow.matmul(a, b)) <= 15


class Train(flow.nn.Graph):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.model = flow.nn.Linear(4, 4)
        self.add_optimizer(flow.optim.SGD(self.model.parameters(), lr=0.1))

    def build(self, x: Any, y: Any) -> Any:
        loss = flow.nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        return loss


def test_a_step_of_a_graph() -> None:
    graph, x, y = Train(), flow.ones(8, 4), flow.ones(8, 4)
    assert calls_of(lambda: graph(x, y)) <= 82


def test_an_eager_training_step() -> None:
    """The digits network of the benchmarks: 27 ops forward and back, and an update of 6 tensors."""
    nn = flow.nn
    model = nn.Sequential(
        nn.Linear(5, 17), nn.Tanh(), nn.Linear(17, 19), nn.Tanh(), nn.Linear(19, 7)
    )
    optimizer = flow.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, labels = flow.ones(23, 5), flow.zeros(23, dtype=flow.int64)

    def step() -> None:
        nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    assert calls_of(step) <= 412 + asked()


@pytest.mark.parametrize("room", [0, 5, 15, 25, 35, 45])
def test_a_full_table_of_calls_slows_no_later_step(room: int, monkeypatch: Any) -> None:
    """It is emptied in the midst of one of the first steps; the later ones are as quick as ever."""
    full = {("full", i): None for i in range(MAX_CACHED_CALLS - room)}
    monkeypatch.setattr(eager, "_calls", full)
    test_an_eager_training_step()
