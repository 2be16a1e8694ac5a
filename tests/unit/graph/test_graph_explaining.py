"""graph.explain() on one rank: nothing moves; before a trace there is nothing to explain.

Layouts on several ranks are compared in tests/processes/auto_parallel_program.py.
"""

from __future__ import annotations

from typing import Any

import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import GraphError


class Product(nn.Graph):
    def __init__(self, is_auto: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4, bias=False)
        self.config.enable_auto_parallel(is_auto)

    def build(self, x: Any) -> Any:
        return self.linear(x)


def test_there_is_nothing_to_explain_before_a_trace() -> None:
    with pytest.raises(GraphError, match=r"explain: graph Product_\d+ was not traced here"):
        Product(False).explain()


@pytest.mark.parametrize("is_auto, name", [(False, "followed"), (True, "searched")])
def test_on_one_rank_nothing_moves(is_auto: bool, name: str) -> None:
    """x of 3 x 8, a weight of 4 x 8 and their product of 3 x 4 are held at once."""
    graph = Product(is_auto)
    graph.build_graph(flow.ones(3, 8))
    told = graph.explain()
    assert (told.chosen.name, told.chosen.moved_nbytes) == (name, 0)
    assert told.chosen.memory_nbytes == 4 * (3 * 8 + 4 * 8 + 3 * 4)
    assert list(told.chosen.variables) == ["linear.weight"]
    graph.finish_compile_and_init_runtime()
    assert graph.explain().chosen == told.chosen
    assert str(told).splitlines()[0] == f"layouts of {graph.name}"
