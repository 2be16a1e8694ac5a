"""Trains a small network to read handwritten digits, on one process or on several.

    python examples/digits.py
    python -m oneflow.distributed.launch --nproc_per_node 2 examples/digits.py --parallel tp

The model and the loop are the same in every layout; with one seed so are the weights, the order of
the data and, up to rounding, the loss of every step.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from parallel import (
    Array,
    Clock,
    ColumnLinear,
    Layout,
    Progress,
    RowLinear,
    add_arguments,
    load_checkpoint,
    make_layout,
    positive,
    read,
    save_checkpoint,
    write_json,
)

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn

DATA = Path(__file__).parent / "data" / "digits.txt.gz"
NUM_TRAIN = 1437  # of 1,797 images; the other 360 are for testing
SPLIT_SEED = 0  # which images are for testing does not depend on --seed


class Digits(nn.Module):
    """Two halves, which pipeline parallelism makes its two stages.

    x: (rows, 64) for the MLP, (rows, 1, 8, 8) for the CNN.  Returns scores (rows, 10).
    """

    def __init__(self, front: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.front = front
        self.head = head

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        return self.head(self.front(x))


def make_mlp() -> Digits:
    """Each half is a column-split and a row-split layer: one all-reduce a half where cut."""
    front = nn.Sequential(ColumnLinear(64, 128), nn.Tanh(), RowLinear(128, 128), nn.Tanh())
    return Digits(front, nn.Sequential(ColumnLinear(128, 128), nn.Tanh(), RowLinear(128, 10)))


def make_cnn() -> Digits:
    """Convolutions are small and stay whole; the dense half, where most weights are, is split."""
    front = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
    )
    return Digits(front, nn.Sequential(ColumnLinear(512, 64), nn.Tanh(), RowLinear(64, 10)))


MODELS = {"mlp": make_mlp, "cnn": make_cnn}


class Train(nn.Graph):
    """One step: forward, backward, update."""

    def __init__(self, model: Digits, layout: Layout, optimizer: Any, schedule: Any) -> None:
        super().__init__()
        self.model = model
        self.layout = layout
        self.add_optimizer(optimizer, lr_sch=schedule)
        layout.set_stages((self.model.front, self.model.head))
        if layout.micro_batches > 1:
            self.config.set_gradient_accumulation_steps(layout.micro_batches)

    def build(self, x: flow.Tensor, y: flow.Tensor) -> flow.Tensor:
        loss = F.cross_entropy(self.model(x), y, label_smoothing=0.1)
        loss.backward()
        return self.layout.everywhere(loss)


class Predict(nn.Graph):
    """Scores of a batch, whole on every rank. It shares the weights of the training graph."""

    def __init__(self, model: Digits, layout: Layout) -> None:
        super().__init__()
        self.model = model
        self.layout = layout
        layout.set_stages((self.model.front, self.model.head))

    def build(self, x: flow.Tensor) -> flow.Tensor:
        return self.layout.everywhere(self.model(x))


def read_digits(path: Path = DATA) -> tuple[Array, Array]:
    """Pixels, float32 (1797, 64) from 0 to 1, and labels, int64 (1797,).

    The notation of the file is explained in data/ATTRIBUTION.md.
    """
    lines = gzip.decompress(path.read_bytes()).decode().split()
    values = np.array([[int(c, 17) for c in line] for line in lines])
    return values[:, :64].astype(np.float32) / 16, values[:, 64]


def load_data(model: str) -> tuple[Array, Array, Array, Array]:
    """Training images and labels, test images and labels."""
    images, labels = read_digits()
    if model == "cnn":
        images = images.reshape(-1, 1, 8, 8)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    train, test = order[:NUM_TRAIN], order[NUM_TRAIN:]
    return images[train], labels[train], images[test], labels[test]


def accuracy(graph: Predict, images: Array, labels: Array) -> float:
    """Share of images that are read correctly. The batch is padded so that it can be cut evenly."""
    padding = -len(images) % graph.layout.data_parts
    padded = np.concatenate([images, images[:padding]])
    scores = read(graph(graph.layout.feed(padded, 0)))[: len(images)]
    return float((scores.argmax(axis=1) == labels).mean())


class Trainer:
    """Everything a run needs, made in the same order in every layout."""

    def __init__(self, args: argparse.Namespace, layout: Layout) -> None:
        self.args, self.layout = args, layout
        self.images, self.labels, self.test_images, self.test_labels = load_data(args.model)
        self.steps_per_epoch = NUM_TRAIN // args.batch_size  # the last, partial batch is dropped
        flow.manual_seed(args.seed)
        model = MODELS[args.model]()
        layout.place((model.front, model.head))
        optimizer = flow.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
        steps = args.epochs * self.steps_per_epoch
        schedule = flow.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        self.train = Train(model, layout, optimizer, schedule)
        self.predict = Predict(model, layout)
        self.losses: list[float] = []
        self.accuracies: list[float] = []
        self.clock = Clock()

    def run(self) -> None:
        first = load_checkpoint(self.train, self.args.resume)
        last = min(self.args.epochs, self.args.stop_after or self.args.epochs)
        progress = Progress(last * self.steps_per_epoch, "step", first * self.steps_per_epoch)
        for epoch in range(first, last):
            self._epoch(epoch, progress)
            self.accuracies.append(accuracy(self.predict, self.test_images, self.test_labels))
        progress.close()
        save_checkpoint(self.train, self.args.save, last)

    def _epoch(self, epoch: int, progress: Progress) -> None:
        order = np.random.default_rng((self.args.seed, epoch)).permutation(NUM_TRAIN)
        size = self.args.batch_size
        self.clock.restart()
        for step in range(self.steps_per_epoch):
            rows = order[step * size : (step + 1) * size]
            x = self.layout.feed(self.images[rows], 0)
            y = self.layout.feed(self.labels[rows], -1)
            self.losses.append(float(read(self.train(x, y)).mean()))  # the mean over micro-batches
            self.clock.step()
            progress.step(loss=self.losses[-1], samples_per_s=self.clock.per_second(size))

    def report(self) -> dict[str, Any]:
        args = self.args
        return {
            "example": "digits",
            "layout": self.layout.name,
            "world_size": flow.env.get_world_size(),
            "model": args.model,
            "device": args.device,
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "seed": args.seed,
            "losses": self.losses,
            "accuracies": self.accuracies,
            "accuracy": self.accuracies[-1] if self.accuracies else None,
            "samples_per_s": self.clock.per_second(args.batch_size),
            "compile_s": self.clock.compile_s,
        }


def plot(path: Path, report: dict[str, Any]) -> None:
    """Loss of every step and test accuracy of every epoch, as a picture; rank 0 only."""
    if flow.env.get_rank() != 0:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    losses, accuracies = report["losses"], report["accuracies"]
    axes.plot(losses, label="loss")
    axes.set(xlabel="step", ylabel="loss", title=f"{report['model']}, {report['layout']}")
    right = axes.twinx()
    ends = np.arange(1, len(accuracies) + 1) * (len(losses) / max(1, len(accuracies)))
    right.plot(ends, accuracies, color="tab:green")
    right.set_ylabel("test accuracy")
    figure.tight_layout()
    figure.savefig(path)


def parse_arguments() -> tuple[argparse.Namespace, Layout]:
    parser = argparse.ArgumentParser(
        description="Trains a small network to read handwritten digits."
    )
    add_arguments(parser, batch_size=96, lr=0.2)
    parser.add_argument("--model", choices=tuple(MODELS), default="mlp")
    parser.add_argument("--epochs", type=positive, default=25)
    parser.add_argument(
        "--stop-after",
        type=positive,
        metavar="N",
        help="stop after N epochs of the schedule, to resume later",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw loss and accuracy (needs matplotlib)"
    )
    args = parser.parse_args()
    if args.plot and importlib.util.find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib; pip install 'oneflow-actors[plot]' installs it")
    if args.batch_size > NUM_TRAIN:
        parser.error(f"--batch-size {args.batch_size} is more than the {NUM_TRAIN} training images")
    return args, make_layout(args, parser)


def main() -> None:
    args, layout = parse_arguments()
    trainer = Trainer(args, layout)
    trainer.run()
    report = trainer.report()
    write_json(args.json, report)
    if args.plot:
        plot(args.plot, report)
    if flow.env.get_rank() != 0:
        return
    if not report["losses"]:
        print(f"nothing left to train: {args.resume} has all its epochs; --epochs adds some")
    else:
        print(
            f"{layout.name} on {report['world_size']} rank(s): loss {report['losses'][-1]:.4f}, "
            f"test accuracy {report['accuracy']:.4f}, {report['samples_per_s']:.0f} samples/s, "
            f"compiled in {report['compile_s']:.2f} s"
        )


if __name__ == "__main__":
    main()
