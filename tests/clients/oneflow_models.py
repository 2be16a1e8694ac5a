"""Training steps of models of OneFlow's examples, eagerly, as graphs, and on PyTorch.

`python -m tests.clients.oneflow_models FOLDER [names]` takes a checkout of Oneflow-Inc/models and
prints one line of JSON a model: the losses of the steps. Models, losses and ResNet's optimizer are
theirs; their training scripts, which move all data to a GPU, are not run.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import oneflow as flow

from .twin import Twin

STEPS = 3
BATCH = 2

Example = tuple[Any, Any, Callable[..., Any]]
"""A model, its optimizer, and a loss of the model and the arrays of a batch."""


def resnet50(models: Any, library: Any) -> Example:
    """The classifier with its label smoothing.

    In float64: batch norm over two images makes float32 uncertain by a thirtieth of the loss.
    """
    network = importlib.import_module(f"{models.__name__}.resnet50")
    training = importlib.import_module(f"{models.__name__}.optimizer")
    options = SimpleNamespace(
        grad_clipping=0.0, learning_rate=0.01, momentum=0.9, weight_decay=1e-4,
        label_smoothing=0.1, num_classes=10,
    )  # fmt: skip
    model = network.resnet50(num_classes=10).double()
    cross_entropy = training.make_cross_entropy(options)
    return (
        model,
        training.make_optimizer(options, model),
        lambda m, images, labels: cross_entropy(m(images), labels),
    )


def wide_and_deep(models: Any, library: Any) -> Example:
    network = importlib.import_module(f"{models.__name__}.wide_and_deep")
    model = network.LocalWideAndDeep(100, 120, hidden_size=32, deep_dropout_rate=0.0)
    loss = library.nn.BCELoss(reduction="mean")
    return (
        model,
        library.optim.SGD(model.parameters(), lr=0.1),
        lambda m, clicked, dense, wide, deep: loss(m(dense, wide, deep), clicked),
    )


def bert(modeling: Any, library: Any) -> Example:
    """Words and next sentence.  No dropout: in place, of values that a softmax keeps, it is
    refused.
    """
    model = modeling.BertForPreTraining(
        60, 16, 32, 2, 4, 64, library.nn.GELU(), 0.0, 0.0, 16, 2, initializer_range=0.2
    )
    loss = library.nn.CrossEntropyLoss()

    def step(m: Any, ids: Any, kinds: Any, mask: Any, places: Any, words: Any, next_: Any) -> Any:
        scores, order = m(ids, kinds, mask, places)
        return loss(scores, words.reshape(-1)) + loss(order, next_)

    return model, library.optim.Adam(model.parameters(), lr=1e-3), step


EXAMPLES: dict[str, tuple[str, str, Callable[[Any, Any], Example]]] = {
    "resnet50": ("Vision/classification/image/resnet50", "models", resnet50),
    "wide_and_deep": ("RecommenderSystems/wide_and_deep", "models", wide_and_deep),
    "bert": ("NLP/BERT", "modeling", bert),
}


def batch_of(name: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    if name == "resnet50":
        return [rng.standard_normal((BATCH, 3, 224, 224)), rng.integers(0, 10, BATCH)]
    if name == "wide_and_deep":
        return [
            rng.integers(0, 2, (8, 1)).astype(np.float32),
            rng.standard_normal((8, 13)).astype(np.float32),
            rng.integers(0, 100, (8, 2)),
            rng.integers(0, 120, (8, 26)),
        ]
    places = np.stack([rng.permutation(16)[:3] for _ in range(BATCH)])
    return [
        rng.integers(0, 60, (BATCH, 16)), rng.integers(0, 2, (BATCH, 16)),
        np.ones((BATCH, 16), np.int64), places, rng.integers(0, 60, (BATCH, 3)),
        rng.integers(0, 2, BATCH),
    ]  # fmt: skip


def trained(example: Example, library: Any, batch: list[np.ndarray]) -> list[float]:
    """The losses of the steps."""
    model, optimizer, loss_of = example
    arrays = [library.tensor(x) for x in batch]
    found = []
    for _ in range(STEPS):
        loss = loss_of(model, *arrays)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


class Step(flow.nn.Graph):
    """A training step as a graph."""

    def __init__(self, example: Example) -> None:
        super().__init__()
        self.model, optimizer, self.loss_of = example
        self.add_optimizer(optimizer)

    def build(self, *arrays: Any) -> Any:
        loss = self.loss_of(self.model, *arrays)
        loss.backward()
        return loss


def report(name: str, folder: Path) -> dict[str, Any]:
    path, package, make = EXAMPLES[name]
    sys.path.insert(0, str(folder / path))
    module = importlib.import_module(package)
    eager, traced = make(module, flow), make(module, flow)
    twin = Twin(package)
    with twin.active():
        reference = make(importlib.import_module(package), torch)
    start = {k: v.numpy().copy() for k, v in eager[0].state_dict().items()}
    traced[0].load_state_dict({k: flow.tensor(v) for k, v in start.items()})
    reference[0].load_state_dict({k: torch.tensor(v) for k, v in start.items()})
    batch = batch_of(name)
    graph, arrays = Step(traced), [flow.tensor(x) for x in batch]
    found = {
        "model": name,
        "eager": trained(eager, flow, batch),
        "graph": [graph(*arrays).item() for _ in range(STEPS)],
        "torch": trained(reference, torch, batch),
    }
    sys.path.remove(str(folder / path))
    for loaded in [m for m in sys.modules if m.partition(".")[0] == package]:
        del sys.modules[loaded]
    return found


if __name__ == "__main__":
    for example in sys.argv[2:] or EXAMPLES:
        print(json.dumps(report(example, Path(sys.argv[1]))), flush=True)
