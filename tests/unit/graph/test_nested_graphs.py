"""A graph called inside another one's build, and tensors without values, are refused in words."""

from __future__ import annotations

from typing import Any

import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import GraphError


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("under_autocast", [False, True])
def test_a_graph_inside_a_graph(is_compiled: bool, under_autocast: bool) -> None:
    inner = nn.Graph.trace(lambda x: x + 1)
    if is_compiled:
        inner(flow.ones(3))

    @nn.Graph.trace
    def outer(x: Any) -> Any:
        with flow.autocast("cpu", enabled=under_autocast):
            return inner(x)

    for _ in range(2):
        with pytest.raises(GraphError, match=r"inside the build\(\) of another graph.*modules"):
            outer(flow.ones(3))
    assert inner(flow.ones(3)).sum().item() == 6


def test_a_tensor_without_values() -> None:
    graph = nn.Graph.trace(lambda x: x + 1)
    with pytest.raises(GraphError, match="is on meta, it has no values"):
        graph(flow.ones(3, device="meta"))
