"""Small job files and a way to run them on several ranks in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.actors.in_process import InProcessCluster
from oneflow.core.job_config import NO_OVERRIDES, Overrides
from oneflow.core.plan import Plan
from oneflow.jobs.description import randomness_of
from oneflow.jobs.feeding import Feeder
from oneflow.jobs.jobfile import JobFile
from oneflow.jobs.plans import compile_plan
from oneflow.jobs.running import Bound, _box_of, _in_plan, _variables, placed_graph
from oneflow.jobs.sources import Access

ROWS, WIDTH, CLASSES, BATCH, WORDS = 40, 6, 3, 8, 20_000


class Train(nn.Graph):
    """Two layers, a batch norm and dropout if asked for, momentum, a schedule, clipping."""

    def __init__(self, dropout: float = 0.0, pieces: int = 1, norm: bool = False) -> None:
        super().__init__()
        flow.manual_seed(5)
        middle = [nn.BatchNorm1d(10)] if norm else []
        self.model = nn.Sequential(
            nn.Linear(WIDTH, 10), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(10, CLASSES)
        )
        groups = [
            {"params": list(self.model[0].parameters()), "lr": 0.3, "clip_grad_max_norm": 1.0},
            {"params": [p for m in self.model[1:] for p in m.parameters()], "lr": 0.1},
        ]
        optimizer = flow.optim.SGD(groups, lr=0.1, momentum=0.9)
        schedule = flow.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
        self.add_optimizer(optimizer, lr_sch=schedule)
        self.config.set_gradient_accumulation_steps(pieces)

    def build(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        return loss


class Words(nn.Graph):
    """A transformer of two layers that guesses words, of which it knows so many that to sum their
    gradients over ranks costs more than to split them.
    """

    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(5)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.words = nn.Embedding(WORDS, 16)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.add_optimizer(flow.optim.AdamW(self.parameters(), lr=0.01))

    def parameters(self) -> Any:
        return [p for m in (self.words, self.layers, self.head) for p in m.parameters()]

    def build(self, x: Any, y: Any) -> Any:
        guesses = self.head(self.layers(self.words(x)))
        loss = F.cross_entropy(guesses.reshape(-1, WORDS), y.reshape(-1))
        loss.backward()
        return loss


def sentences() -> Any:
    """The rows that `Words` trains on."""
    words = np.random.default_rng(1).integers(0, WORDS, (2, ROWS, 4))
    return flow.jobs.data.arrays(x=words[0], y=words[1]).shuffle(3).batch(BATCH).repeat()


class Predict(nn.Graph):
    def __init__(self) -> None:
        super().__init__()
        flow.manual_seed(5)
        self.model = nn.Linear(WIDTH, CLASSES)

    def build(self, x: Any) -> Any:
        return {"scores": self.model(x), "largest": self.model(x).amax(1)}


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return (
        rng.standard_normal((ROWS, WIDTH)).astype(np.float32),
        rng.integers(0, CLASSES, ROWS).astype(np.int64),
    )


def data(**changes: Any) -> Any:
    x, y = rows()
    found = flow.jobs.data.arrays(x=x, y=y).shuffle(3).batch(BATCH).repeat()
    return found._with(**changes) if changes else found


def export(path: Path, graph: nn.Graph | None = None, **options: Any) -> Path:
    """A job file of a few steps."""
    made = graph if graph is not None else Train()
    made.export(path, **{"data": data(), "steps": 6, "checkpoint_every": 2, **options})
    return path


def losses_of(
    path: Path, num_ranks: int, steps: int = 6, overrides: Overrides = NO_OVERRIDES
) -> list[float]:
    """The job's losses, all ranks in this process."""
    with JobFile(path, overrides=overrides) as file:
        graph = placed_graph(file, num_ranks, "cpu")
        inputs = {str(n.attrs["name"]): n for n in graph.of_kind("input")}
        plan = Plan.from_bytes(compile_plan(path, num_ranks, "cpu", overrides=overrides))
        ranks = range(num_ranks)
        variables = [
            {n: v.array for n, v in _variables(file, plan, r).items() if v.array is not None}
            for r in ranks
        ]
        cluster = InProcessCluster(plan, variables)
        cluster.draw(randomness_of(file.description))
        feeders = []
        for rank in ranks:
            boxes = {
                n: (node.outputs[0].type, _box_of(_in_plan(plan, n, node), rank))
                for n, node in inputs.items()
                if rank in node.placement
            }
            feeders.append(Feeder(Bound(file, None, {}, boxes), Access(), steps))  # type: ignore[arg-type]
        found = []
        for step in range(steps):
            results = cluster.step([f.feeds(step) for f in feeders])
            found.append([float(np.mean(r[0])) for r in results])
        assert all(len(set(f)) == 1 for f in found), "the ranks report different losses"
        return [f[0] for f in found]


def losses_here(graph: nn.Graph, declared: Any, steps: int = 6) -> list[float]:
    """Outputs of the graph itself, called in a script with the same rows."""
    from oneflow.jobs.order import Cursor

    x, y = rows()
    batches, cursor, found = declared.batches, Cursor(), []
    for _ in range(steps):
        index = batches.rows(cursor, 0, declared.spec.batch)
        loss = graph(flow.tensor(x[index]), flow.tensor(y[index]))
        found.append(float(loss.numpy().mean()))
        cursor = batches.after(cursor)
    return found
