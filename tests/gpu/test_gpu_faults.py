"""A GPU that is too small for a graph; indices and labels that name nothing."""

from __future__ import annotations

import subprocess
import sys
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


CALLS = {
    "gather": "flow.nn.functional.embedding(i, x)",
    "dim_gather": "flow.gather(x, 0, i.reshape(1, 2))",
    "dim_scatter": "flow.scatter(x, 0, i.reshape(1, 2), x)",
    "dim_scatter_add": "flow.index_add(x, 0, i, x[:2])",
    "checked_index": "x[i, i]",
    "one_hot": "flow.nn.functional.one_hot(i, 3)",
    "nll_loss": "flow.nn.functional.nll_loss(x.t()[:2], i)",
    "sparse_softmax_cross_entropy": "flow.nn.functional.cross_entropy(x.t()[:2], i)",
}
PROGRAM = """
import sys
import oneflow as flow
x = flow.arange(12.0, device="cuda").reshape(3, 4)
work = lambda x, i: {call}
class Graph(flow.nn.Graph):
    def build(self, x, i):
        return work(x, i)
run = Graph() if sys.argv[1] == "graph" else work
print(run(x, flow.tensor([0, 2], device="cuda")).numpy().shape, flush=True)
print(run(x, flow.tensor([0, 3], device="cuda")).numpy(), flush=True)
"""


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("op", CALLS)
def test_an_index_out_of_range_ends_the_program_with_the_name_of_the_op(op: str, mode: str) -> None:
    """Each is tried in a new process: a GPU that has failed an assertion answers it no more."""
    command = [sys.executable, "-c", PROGRAM.format(call=CALLS[op]), mode]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode != 0
    assert len(run.stdout.splitlines()) == 1, run.stdout
    assert op in run.stderr and "an index or a label is out of bounds" in run.stderr
