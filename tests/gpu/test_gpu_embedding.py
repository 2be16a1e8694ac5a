"""Embeddings whose rows lie in host memory train models on cuda:0 as on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
from oneflow import nn
from tests.unit.one_embedding.making import embedding, one

from .gpu_needed import need_gpu

pytestmark = pytest.mark.gpu
need_gpu()
STEPS, ROWS, TABLES, WIDTH = 5, 8, 3, 4
IDS = np.random.default_rng(0).zipf(1.3, size=(STEPS, ROWS, TABLES)) % 50
TARGETS = np.random.default_rng(1).normal(size=(STEPS, ROWS)).astype(np.float32)


class Model(nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.rows = embedding(WIDTH, TABLES, padding_idx=0, **given)
        self.top = nn.Linear(TABLES * WIDTH, 1)
        for i, x in enumerate(self.top.parameters()):
            x.data = flow.tensor(np.random.default_rng(i).normal(size=x.shape).astype(np.float32))

    def forward(self, ids: Any) -> Any:
        return self.top(self.rows(ids).flatten(1)).squeeze(1)


class Train(nn.Graph):
    def __init__(self, model: Model, optimizer: Any, pieces: int = 1) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, ids: Any, target: Any) -> Any:
        loss = ((self.model(ids) - target) ** 2).mean()
        loss.backward()
        return loss


def losses(model: Model, kind: Any, pieces: int = 0) -> list[float]:
    """pieces: micro-batches of a graph; 0: eagerly."""
    device = model.top.weight.device
    optimizer = kind(model.parameters(), lr=0.05)
    graph = Train(model, optimizer, pieces) if pieces else None
    found = []
    for x, y in zip(IDS, TARGETS, strict=True):
        ids, target = flow.tensor(x, device=device), flow.tensor(y, device=device)
        if graph is not None:
            found.append(float(graph(ids, target).numpy().mean()))
            continue
        loss = ((model(ids) - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("pieces", [0, 1, 2])
@pytest.mark.parametrize(
    "kind", [flow.optim.Adagrad, flow.optim.Adam, one.SmartDecayAdam, one.Ftrl]
)
def test_losses_are_those_of_the_cpu(kind: Any, pieces: int) -> None:
    wanted = losses(Model(), kind)
    np.testing.assert_allclose(losses(Model().to("cuda"), kind, pieces), wanted, rtol=1e-5)


def test_a_snapshot_of_one_device_loads_on_the_other(tmp_path: Path) -> None:
    options = one.make_device_mem_store_options(str(tmp_path), 1000, size_factor=3)
    model = Model(store_options=options).to("cuda")
    losses(model, flow.optim.Adam)
    model.rows.save_snapshot("a")
    ids = flow.tensor(IDS[0])
    wanted = model.rows(ids.to("cuda")).detach().cpu().numpy()
    model = model.to("cpu")
    model.rows.load_snapshot("a")
    np.testing.assert_array_equal(model.rows(ids).detach().numpy(), wanted)
