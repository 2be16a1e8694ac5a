"""Exports job files from two ranks: weights split over them, and stages on one each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn

BOTH = flow.placement("cpu", [0, 1])
WIDTH, HIDDEN, CLASSES, BATCH, ROWS, STEPS = 6, 8, 3, 8, 40, 12


def make_model() -> nn.Module:
    flow.manual_seed(5)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES))


def rows() -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    return x, (x.sum(axis=1) > 0).astype(np.int64)


def data() -> Any:
    x, y = rows()
    return flow.jobs.data.arrays(x=x, y=y).shuffle(3).batch(BATCH).repeat()


class Train(nn.Graph):
    """move: the change of the features between the two layers."""

    def __init__(self, model: nn.Module, move: Any = None) -> None:
        super().__init__()
        self.model, self.move = model, move
        optimizer = flow.optim.Adam(model.parameters(), lr=0.05)
        self.add_optimizer(optimizer)

    def build(self, x: Any, y: Any) -> Any:
        hidden = self.model[1](self.model[0](x))
        if self.move is not None:
            hidden = hidden.to_global(**self.move)
        loss = F.cross_entropy(self.model[2](hidden), y)
        loss.backward()
        return loss


class Predict(nn.Graph):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def build(self, x: Any) -> Any:
        return self.model(x)


def split_weights(model: nn.Module) -> nn.Module:
    """Columns of the first layer and rows of the second on each rank."""
    layouts = {"0.weight": 0, "0.bias": 0, "2.weight": 1}
    for module_name, module in model.named_modules():
        for name, x in list(module._parameters.items()):
            dim = layouts.get(f"{module_name}.{name}")
            sbp = flow.sbp.broadcast if dim is None else flow.sbp.split(dim)
            whole = x.detach().to_global(BOTH, flow.sbp.broadcast)
            module._parameters[name] = nn.Parameter(whole.to_global(BOTH, sbp))
    return model


def zeros(shape: tuple[int, ...], place: Any, dtype: Any = flow.float32) -> Any:
    return flow.zeros(*shape, dtype=dtype, placement=place, sbp=flow.sbp.broadcast)


def main(folder: Path) -> None:
    model = split_weights(make_model())
    inputs = {"x": zeros((BATCH, WIDTH), BOTH), "y": zeros((BATCH,), BOTH, flow.int64)}
    options = {"data": data(), "steps": STEPS, "checkpoint_every": 4}
    Train(model).export(folder / "split.job", inputs=inputs, **options)
    Predict(model).export(folder / "split_infer.job", inputs={"x": inputs["x"]})

    first, last = flow.placement("cpu", [0]), flow.placement("cpu", [1])
    staged = make_model()
    for module, place in ((staged[0], first), (staged[2], last)):
        module.to_global(placement=place, sbp=flow.sbp.broadcast)
    inputs = {"x": zeros((BATCH, WIDTH), first), "y": zeros((BATCH,), last, flow.int64)}
    move = {"placement": last, "sbp": flow.sbp.broadcast}
    Train(staged, move).export(folder / "stages.job", inputs=inputs, **options)
    if flow.env.get_rank() == 0:
        Train(make_model()).export(folder / "local.job", **options)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
