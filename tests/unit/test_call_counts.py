"""Python calls of a steady-state call: the runtime adds no more to the kernels than it does now.

Counts, not times, so that they mean the same on every machine. Calls inside of kernels are the
kernels' own affair and not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import oneflow as flow

WARM_UP = 3


def calls_of(work: Callable[[], Any]) -> int:
    """Python functions called by `work` and all that it calls, once it has run a few times."""
    for _ in range(WARM_UP):
        work()
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "/kernels/" not in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count - 1  # `work` itself


def test_an_eager_op() -> None:
    a, b = flow.ones(4, 4), flow.ones(4, 4)
    assert calls_of(lambda: flow.matmul(a, b)) <= 19


def test_an_eager_op_on_global_tensors() -> None:
    here = flow.placement("cpu", [0])
    a = flow.ones(4, 4).to_global(here, flow.sbp.split(0))
    b = flow.ones(4, 4).to_global(here, flow.sbp.broadcast)
    assert calls_of(lambda: flow.matmul(a, b)) <= 18


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
    assert calls_of(lambda: graph(x, y)) <= 107
