"""Graphs whose traces are remembered, and whether one was found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.graph import trace_cache
from oneflow.graph.trace_cache import Found


class Run(nn.Graph):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.m = module

    def build(self, x: flow.Tensor) -> flow.Tensor:
        return self.m(x)


@pytest.fixture(autouse=True)
def keeps_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(trace_cache, "LEAST_NODES", 0)
    trace_cache._traces.cache_clear()
    yield
    trace_cache._traces.cache_clear()


INPUT = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)


def is_found(graph: Any) -> bool:
    return isinstance(graph._built.made, Found)


def run(graph: nn.Graph, *args: flow.Tensor) -> tuple[bool, np.ndarray[Any, Any]]:
    """Whether a trace was found, and the result."""
    args = args or (flow.tensor(INPUT),)
    graph.build_graph(*args)
    return is_found(graph), graph(*args).numpy()


def assert_eager(module: nn.Module, result: np.ndarray[Any, Any]) -> None:
    with flow.no_grad():
        np.testing.assert_allclose(result, module(flow.tensor(INPUT)).numpy(), rtol=1e-5, atol=1e-6)
