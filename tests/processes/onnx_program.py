"""A graph of two ranks, written as the model of one, which gives the results of the ranks."""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime

import oneflow as flow
from oneflow import nn

PLACEMENT = flow.placement("cpu", [0, 1])
COLUMNS, ROWS, WHOLE = flow.sbp.split(1), flow.sbp.split(0), flow.sbp.broadcast


class Net(nn.Module):
    """Two layers: rows of the first weight and columns of the second lie on the ranks."""

    def __init__(self) -> None:
        super().__init__()
        first = flow.nn.init.normal_(flow.empty(16, 8, placement=PLACEMENT, sbp=ROWS))
        last = flow.nn.init.normal_(flow.empty(4, 16, placement=PLACEMENT, sbp=COLUMNS))
        self.first, self.last = nn.Parameter(first), nn.Parameter(last)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return flow.relu(x @ self.first.T) @ self.last.T


class Step(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        self.m = Net()

    def build(self, x: flow.Tensor) -> flow.Tensor:
        out: flow.Tensor = self.m(x)
        return out


def main(path: str) -> None:
    flow.manual_seed(1)
    graph, x = Step(), flow.randn(6, 8, placement=PLACEMENT, sbp=WHOLE)
    want = graph(x).numpy()
    made = flow.onnx.export(graph, (), path)
    flow.comm.barrier()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert {tuple(t.dims) for t in made.graph.initializer} == {(16, 8), (4, 16)}
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
