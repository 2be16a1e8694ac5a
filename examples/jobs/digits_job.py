"""Writes a job file: a small network that learns to read handwritten digits, with its data.

    python examples/jobs/digits_job.py digits.job
    oneflow job submit digits.job --devices 2 --wait

The file holds the graph, the variables, the data and how it is shuffled and batched; a cluster
trains it without this script. --infer writes a job that answers requests instead.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn

DATA = Path(__file__).resolve().parents[1] / "data" / "digits.txt.gz"
Array = np.ndarray[Any, Any]


def read_digits(path: Path = DATA) -> tuple[Array, Array]:
    """Pixels, float32 (1797, 64) from 0 to 1, and labels, int64 (1797,); see ATTRIBUTION.md."""
    lines = gzip.decompress(path.read_bytes()).decode().split()
    values = np.array([[int(c, 17) for c in line] for line in lines])
    return values[:, :64].astype(np.float32) / 16, values[:, 64].astype(np.int64)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Dropout(0.1), nn.Linear(96, 10))


class Train(nn.Graph):
    """One step: loss and accuracy of a batch, and an update."""

    def __init__(self, model: nn.Module, lr: float, steps: int) -> None:
        super().__init__()
        self.model = model
        optimizer = flow.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
        schedule = flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        self.add_optimizer(optimizer, lr_sch=schedule)

    def build(self, x: flow.Tensor, y: flow.Tensor) -> dict[str, flow.Tensor]:
        scores = self.model(x)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        correct = (scores.argmax(dim=1) == y).to(flow.float32)
        return {"loss": loss, "accuracy": correct.mean()}


class Predict(nn.Graph):
    """Scores of a batch of images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: flow.Tensor) -> dict[str, flow.Tensor]:
        return {"scores": self.model(x)}


def export(args: argparse.Namespace) -> None:
    """Traces the graph and writes it; nothing is trained here."""
    flow.manual_seed(args.seed)
    model = make_model()
    if args.infer:
        model.eval()
        Predict(model).export(args.path, inputs={"x": flow.zeros(args.batch_size, 64)})
        return
    images, labels = read_digits()
    data = flow.jobs.data.arrays(x=images, y=labels)
    Train(model, args.lr, args.steps).export(
        args.path,
        data=data.shuffle(args.seed).batch(args.batch_size).repeat(),
        steps=args.steps,
        checkpoint_every=args.checkpoint_every,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a job file that learns to read digits.")
    parser.add_argument("path", type=Path)
    parser.add_argument("--infer", action="store_true", help="a job that answers requests")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--checkpoint-every", type=int, default=100)
    args = parser.parse_args()
    export(args)
    found = flow.jobs.verify(args.path)
    print(f"{args.path}: {found.kind} job {found.name}, {args.path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
