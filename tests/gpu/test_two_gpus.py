"""A second GPU in one process: graphs run on the GPU that they are for."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu(2)
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


class Double(nn.Graph):
    """A graph without variables."""

    def build(self, x: Any) -> Any:
        return flow.matmul(x, x.t()) * 2


def test_a_graph_without_variables_runs_where_its_inputs_are() -> None:
    x = flow.tensor(VALUES, device="cuda:1")
    y = Double()(x)
    assert y.device == flow.device("cuda:1")
    assert y._array.device.id == 1  # type: ignore[attr-defined]
    np.testing.assert_allclose(y.numpy(), VALUES @ VALUES.T * 2)


def test_a_graph_runs_on_its_gpu_in_another_thread() -> None:
    x, graph = flow.tensor(VALUES, device="cuda:1"), Double()
    graph(x)
    found: list[Any] = []

    def call() -> None:
        cupy.cuda.Device(0).use()
        found.append(graph(x)._array)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert found[0].device.id == 1
    np.testing.assert_allclose(found[0].get(), VALUES @ VALUES.T * 2)
