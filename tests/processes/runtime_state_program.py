"""Runs on the ranks of test_graph_ranks.py, twice: `save FOLDER`, then `load FOLDER` in processes
of their own, which go on with the plans of the first ones without tracing or compiling anything.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import oneflow as flow
from oneflow import nn
from oneflow.nn.graph import GraphModule

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
EVERYONE = flow.placement("cpu", list(range(SIZE)))
HALVES = [flow.placement("cpu", list(range(i * SIZE // 2, (i + 1) * SIZE // 2))) for i in range(2)]
B, S0 = flow.sbp.broadcast, flow.sbp.split(0)
X = np.random.default_rng(0).standard_normal((5, 8, 6)).astype(np.float32)
LAST = slice(3, 5)
"""The steps of the loaded plan."""


class Train(nn.Graph):
    """Draws, counts micro-batches, scales gradients, splits states and follows a schedule.

    stages: two of a pipeline, or one.
    """

    def __init__(self, stages: int) -> None:
        super().__init__()
        flow.manual_seed(3)
        places = [HALVES[0], HALVES[1]] if stages == 2 else [EVERYONE, EVERYONE]
        self.source = places[0]
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))
        for i, layer in enumerate(self.model):
            layer.origin.to_global(places[i > 2], B)
            if stages == 2:
                layer.to(GraphModule).set_stage(int(i > 2), places[i > 2])
        optimizer = flow.optim.Adam(self.model.origin.parameters(), lr=0.05)
        schedule = flow.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        self.add_optimizer(optimizer, lr_sch=schedule)
        self.set_grad_scaler(flow.amp.GradScaler(init_scale=64.0, growth_interval=2))
        self.config.set_gradient_accumulation_steps(2)
        self.config.enable_zero(True, stage=2, shard_min_size=8)

    def build(self, x: Any) -> Any:
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        return {"loss": loss}

    def step(self, x: Any) -> Any:
        losses = self(flow.tensor(x, placement=self.source, sbp=S0))["loss"]
        return losses.to_global(placement=EVERYONE, sbp=B).numpy()


def save(folder: Path) -> None:
    for stages in (1, 2):
        graph = Train(stages)
        for x in X[: LAST.start]:
            graph.step(x)
        flow.save(graph.runtime_state_dict(with_eager=True), folder / f"state{stages}")
        random = flow.get_rng_state().numpy()
        losses = [graph.step(x) for x in X[LAST]]
        np.savez(folder / f"wanted{stages}.{RANK}.npz", random=random, losses=losses)


def load(folder: Path) -> None:
    for stages in (1, 2):
        wanted = np.load(folder / f"wanted{stages}.{RANK}.npz")
        graph = Train(stages)
        state = nn.Graph.runtime_state_dict_to(flow.load(folder / f"state{stages}"), "cpu")
        compiles = [f"oneflow.graph.compiling.{n}" for n in ("trace_chosen", "compile_and_bind")]
        with patch(compiles[0], None), patch(compiles[1], None):
            graph.load_runtime_state_dict(state)
            flow.set_rng_state(flow.tensor(wanted["random"]))
            losses = [graph.step(x) for x in X[LAST]]
        np.testing.assert_array_equal(losses, wanted["losses"])
        assert graph.state_dict()["System-Train-TrainStep"].item() == len(X)
        assert graph._spec.scaler is not None and graph._spec.scaler.scaler.get_scale() == 256.0


def main() -> None:
    {"save": save, "load": load}[sys.argv[1]](Path(sys.argv[2]))
    print(f"rank {RANK} done", flush=True)


if __name__ == "__main__":
    main()
