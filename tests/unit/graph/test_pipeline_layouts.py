"""Pipelines with data and tensor parallelism on eight ranks train as eager code does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.errors import ConfigError
from oneflow.core.job_config import JobConfig
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import Split
from oneflow.nn.graph import GraphModule

from .spread import Spread, placed

S0, S1 = Split(0), Split(1)
ROWS, WIDTH, CLASSES, PIECES = 16, 8, 3, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """A token model of blocks, each a stage; the first holds the embedding, the last the head."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(blocks)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Any) -> Any:
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Train(nn.Graph):
    def __init__(self, model: Model, optimizer: Any, schedule: str, recomputes: bool) -> None:
        super().__init__()
        self.model = model
        self.add_optimizer(optimizer)
        self.config.set_gradient_accumulation_steps(PIECES)
        self.config.set_pipeline_schedule(schedule)
        where = model.embedding.weight.placement
        self.model.embedding.to(GraphModule).set_stage(0, where)
        for i, block in enumerate(self.model.blocks):
            block.to(GraphModule).set_stage(i, where)
            block.to(GraphModule).activation_checkpointing = recomputes
        self.model.head.to(GraphModule).set_stage(len(model.blocks) - 1, where)

    def build(self, x: Any) -> Any:
        ids, labels = x[:, 0], x[:, 1]
        loss = F.cross_entropy(self.model(ids), labels)
        loss.backward()
        return loss.to_global(sbp=[B, B])


def lay_out(model: Model) -> None:
    """Copies along the first axis of a 2 x n grid; up and down cut along the second."""
    cuts = {"up.weight": S0, "up.bias": S0, "down.weight": S1}
    for name, parameter in model.named_parameters():
        cut = next((s for end, s in cuts.items() if name.endswith(end)), B)
        parameter.data = placed(parameter.numpy(), (B, cut))


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("schedule", "blocks", "devices", "grid", "recomputes"),
    [
        ("1f1b", 2, 2, (2, 2), False),
        ("zero_bubble", 2, 2, (2, 2), True),
        ("1f1b", 4, 2, (2, 2), False),  # interleaved
        slow("1f1b", 4, 2, (2, 2), True),
        slow("1f1b", 4, 4, (2, 1), True),
        slow("zero_bubble", 4, 4, (1, 2), False),
        slow("1f1b", 8, 4, (1, 2), True),
    ],
)
def test_a_pipeline_of_grids_trains_as_eager_code_does(
    schedule: str, blocks: int, devices: int, grid: tuple[int, int], recomputes: bool
) -> None:
    rng = np.random.default_rng(3)
    batches = [
        np.stack([rng.integers(0, 20, ROWS), rng.integers(0, CLASSES, ROWS)], 1) for _ in range(2)
    ]
    flow.manual_seed(2)
    model, twin = Model(blocks), Model(blocks)
    twin.load_state_dict(model.state_dict())
    lay_out(model)
    graph = Train(model, flow.optim.SGD(model.parameters(), 0.1, 0.9), schedule, recomputes)
    spread = Spread(graph, placed(batches[0], (S0, B)), grid, num_devices=devices)
    assert bool(spread.plan.turns) == (schedule == "zero_bubble" or blocks > devices)
    optimizer = flow.optim.SGD(twin.parameters(), 0.1, 0.9)
    for batch in batches:
        loss = F.cross_entropy(twin(flow.tensor(batch[:, 0])), flow.tensor(batch[:, 1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_allclose(spread(batch).mean(), loss.numpy(), rtol=1e-5)
    for name, parameter in twin.named_parameters():
        found = spread.variable(f"model.{name}")
        np.testing.assert_allclose(found, parameter.numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


def test_schedules_have_names() -> None:
    graph = nn.Graph()
    with pytest.raises(ConfigError, match="takes one of '1f1b', 'zero_bubble', got 'gpipe'"):
        graph.config.set_pipeline_schedule("gpipe")
    with pytest.raises(ConfigError, match="pipeline must be one of"):
        JobConfig("g", pipeline="gpipe")
