"""A GPU that is too small for a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.core.errors import DeviceMemoryError

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
cupy = need_gpu()


def test_a_graph_that_does_not_fit_names_what_takes_the_most() -> None:
    rows = 1 << 21

    class Outer(nn.Graph):
        def build(self, x: Any) -> Any:
            return (x.reshape(-1, 1) @ x.reshape(1, -1)).sum()

    x = flow.tensor(np.ones(rows, np.float32), device="cuda")
    with pytest.raises(DeviceMemoryError) as found:
        Outer()(x)
    text = str(found.value)
    assert f"float32[{rows}, {rows}]" in text and "test_gpu_faults.py:" in text
    assert float(flow.ones(3, device="cuda").sum().numpy()) == 3.0  # and the process goes on
