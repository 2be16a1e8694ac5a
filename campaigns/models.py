"""Job files that faults are tried on: `python models.py FOLDER` on two ranks.

dense: copies on both ranks, momentum.  stages: a pipeline of two stages, one on each rank, Adam.
embedding: rows looked up, dropout on the way, Adam: random numbers and their state count.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn

NAMES = ("dense", "stages", "embedding")
WIDTH, HIDDEN, CLASSES, WORDS, BATCH, ROWS = 6, 8, 3, 16, 8, 40
STEPS, EVERY = 100, 5


class Train(nn.Graph):
    """move: the change of the features between the two parts of the model."""

    def __init__(self, first: nn.Module, last: nn.Module, optimizer: Any, move: Any = None) -> None:
        super().__init__()
        self.first, self.last, self.move = first, last, move
        self.add_optimizer(optimizer)

    def build(self, x: Any, y: Any) -> Any:
        hidden = self.first(x)
        if self.move is not None:
            hidden = hidden.to_global(**self.move)
        loss = F.cross_entropy(self.last(hidden), y)
        loss.backward()
        return loss


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, HIDDEN)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Any) -> Any:
        return self.drop(self.table(x)).mean(dim=1)


def rows() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    words = rng.integers(0, WORDS, (ROWS, 4))
    return x, words, (x.sum(axis=1) > 0).astype(np.int64)


def options(x: Any, y: Any) -> dict[str, Any]:
    data = flow.jobs.data.arrays(x=x, y=y).shuffle(3).batch(BATCH).repeat()
    return {"data": data, "steps": STEPS, "checkpoint_every": EVERY}


def parts() -> tuple[nn.Module, nn.Module]:
    flow.manual_seed(5)
    first = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh())
    return first, nn.Linear(HIDDEN, CLASSES)


def dense(folder: Path) -> None:
    x, _, y = rows()
    first, last = parts()
    weights = [*first.parameters(), *last.parameters()]
    optimizer = flow.optim.SGD(weights, lr=0.05, momentum=0.9)
    Train(first, last, optimizer).export(folder / "dense.job", **options(x, y))


def embedding(folder: Path) -> None:
    _, words, y = rows()
    flow.manual_seed(6)
    first, last = Words(), nn.Linear(HIDDEN, CLASSES)
    optimizer = flow.optim.Adam([*first.parameters(), *last.parameters()], lr=0.02)
    Train(first, last, optimizer).export(folder / "embedding.job", **options(words, y))


def stages(folder: Path) -> None:
    """All ranks call it."""
    x, _, y = rows()
    places = [flow.placement("cpu", [rank]) for rank in (0, 1)]
    first, last = parts()
    for module, place in zip((first, last), places, strict=True):
        module.to_global(placement=place, sbp=flow.sbp.broadcast)
    optimizer = flow.optim.Adam([*first.parameters(), *last.parameters()], lr=0.02)
    graph = Train(first, last, optimizer, {"placement": places[1], "sbp": flow.sbp.broadcast})
    broadcast = flow.sbp.broadcast
    inputs = {
        "x": flow.zeros(BATCH, WIDTH, placement=places[0], sbp=broadcast),
        "y": flow.zeros(BATCH, dtype=flow.int64, placement=places[1], sbp=broadcast),
    }
    graph.export(folder / "stages.job", inputs=inputs, **options(x, y))


def main(folder: Path) -> None:
    stages(folder)
    if flow.env.get_rank() == 0:
        dense(folder)
        embedding(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
