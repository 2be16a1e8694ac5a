"""Rewrites the golden files: `python -m tests.golden.regenerate`. Read the diff afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from oneflow import nn
from oneflow.amp import GradScaler
from oneflow.core.dtype import bfloat16
from oneflow.core.graph import LogicalGraph
from oneflow.core.job_config import JobConfig
from oneflow.core.placement import Placement
from oneflow.core.sbp import BROADCAST, Split
from oneflow.nn.graph import GraphModule
from oneflow.optim import SGD
from tests.unit.graph.ranks import put, traced_by_ranks
from tests.unit.scheduler.compiler.graph_builder import mlp

from .passes_by_text import run_by_text, write_sections

HERE = Path(__file__).resolve().parent
TWO = Placement("cpu", [0, 1])


def cases() -> dict[str, LogicalGraph]:
    """File name -> the graph as traced."""
    grid = Placement("cpu", [[0, 1], [2, 3]])
    stages = [Placement("cpu", [0]), Placement("cpu", [1])]
    return {
        "data_parallel": mlp([TWO], "S(0)", "B", "B"),
        "data_parallel_pieces": mlp([TWO], "S(0)", "B", "B", num_pieces=2),
        "tensor_parallel": mlp([TWO], "B", "S(0)", "S(1)"),
        "pipeline": mlp(stages, "B", "B", "B", num_pieces=4),
        "grid": mlp([grid], "(S(0), B)", "(B, S(0))", "(B, S(1))"),
    }


class Block(nn.Module):
    """tanh of a product."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        array = np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32)
        self.weight = nn.Parameter(put(array, TWO, (BROADCAST,)))

    def forward(self, x: Any) -> Any:
        return (x @ self.weight).tanh()


class Rewritten(nn.Graph):
    """Training with everything that passes rewrite, but stages."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(Block(1), Block(2))
        self.add_optimizer(SGD(self.model.parameters(), lr=0.1, momentum=0.9))
        self.set_grad_scaler(GradScaler())
        self.config.enable_amp(True, dtype=bfloat16)
        self.config.enable_fused_model_update_cast()
        self.config.enable_zero(True, stage=3, shard_min_size=1)
        self.config.set_gradient_accumulation_steps(2)
        self.model[0].to(GraphModule).activation_checkpointing = True

    def build(self, x: Any) -> Any:
        loss = self.model(x).sum()
        loss.backward()
        return loss


def rewritten() -> tuple[LogicalGraph, JobConfig]:
    """The graph, traced on two ranks, and its configuration."""

    def make() -> tuple[nn.Graph, Any]:
        return Rewritten(), put(np.ones((8, 4), np.float32), TWO, (Split(0),))

    graph, trace = traced_by_ranks(make, 2)[0]
    for node in trace.graph:
        node.location = ""  # that of this file is another one on each machine
    trace.graph.name = "Rewritten"
    return trace.graph, replace(graph._spec.job_config(), name=trace.graph.name)


def main() -> None:
    found = {name: (g, JobConfig(g.name, g.num_pieces)) for name, g in cases().items()}
    for name, (graph, config) in {**found, "rewritten": rewritten()}.items():
        write_sections(HERE / f"{name}.txt", run_by_text(str(graph), config))
        print(f"wrote {name}.txt")


if __name__ == "__main__":
    main()
