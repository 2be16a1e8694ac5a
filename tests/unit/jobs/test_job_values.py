"""Jobs compute the values of their scripts: counters, detached tensors, byte orders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from oneflow.cluster.values import tensor_message, tensor_of
from oneflow.jobs.feeding import Feeder
from oneflow.jobs.running import bind_job
from oneflow.jobs.sources import Access

from .job_samples import ROWS, WIDTH, Train, export, rows


def variables_after(path: Path, steps: int) -> dict[str, Any]:
    """The job's variables, all of it on one rank in this process."""
    bound = bind_job(flow.jobs.load(path), "cpu", "", None)
    feeder = Feeder(bound, Access(), steps)
    for step in range(steps):
        bound.job.run(feeder.feeds(step))
    found = {name: v.array.copy() for name, v in bound.variables.items()}
    bound.close()
    return found


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_batch_norm_counts_its_batches(tmp_path: Path, pieces: int) -> None:
    """The counter is one variable, and it begins where the script was."""
    graph = Train(norm=True, pieces=pieces)
    graph.model[1].num_batches_tracked.add_(100)
    found = variables_after(export(tmp_path / "a.job", graph), 5)
    assert found["model.1.num_batches_tracked"] == 100 + 5 * pieces
    assert not [name for name in found if name.startswith("free")]


class Averaged(nn.Graph):
    """Reads and writes the same memory through `detach` in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1, bias=False)
        nn.init.ones_(self.layer.weight)
        self.layer.register_buffer("average", flow.zeros(1, WIDTH))
        self.layer.register_buffer("count", flow.zeros(2))
        self.add_optimizer(flow.optim.SGD(self.layer.parameters(), lr=0.5))

    def build(self, x: Any, y: Any) -> Any:
        layer = self.layer
        weight = layer.weight.to(flow.float32).detach()
        layer.average.mul_(0.5).add_(weight * 0.5)
        layer.count.detach().add_(1)
        layer.count[1:].add_(2)
        loss = layer(x).mean() * 0 + (layer.weight * layer.weight.detach()).sum()
        loss.backward()
        return loss


def test_detached_tensors_are_the_variables_they_came_from(tmp_path: Path) -> None:
    """w * w.detach() has the gradient w, so each step halves w."""
    found = variables_after(export(tmp_path / "a.job", Averaged()), 3)
    assert sorted(found) == ["layer.average", "layer.count", "layer.weight"]
    np.testing.assert_allclose(found["layer.weight"], np.full((1, WIDTH), 0.125))
    np.testing.assert_array_equal(found["layer.count"], [3, 9])
    average = 0.0
    for weight in (1, 0.5, 0.25):
        average = average * 0.5 + weight * 0.5
    np.testing.assert_allclose(found["layer.average"], np.full((1, WIDTH), average))


@pytest.mark.parametrize("kind", [">f4", "<f4", ">i8", ">f8", ">c8", "bool"])
def test_arrays_of_any_byte_order_are_sent(kind: str) -> None:
    value = np.arange(6).reshape(2, 3).astype(kind)
    found = tensor_of(tensor_message("x", value))
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, value)


def test_data_of_any_byte_order_is_taken(tmp_path: Path) -> None:
    x, y = rows()
    declared = flow.jobs.data.arrays(x=x.astype(">f4"), y=y.astype(">i8")).batch(ROWS)
    path = export(tmp_path / "a.job", data=declared, steps=1)
    with flow.jobs.load(path) as file:
        found = file.open_data(Access())
        np.testing.assert_array_equal(found["x"], x)
        np.testing.assert_array_equal(found["y"], y)
