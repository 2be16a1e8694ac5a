"""Runs on the ranks of test_registered_device.py: training on a registered device beside the CPU.

Usage: device_program [eager] [graph] [parallel] [layouts]
"""

from __future__ import annotations

import sys

import numpy as np

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.tensor.tensor import Tensor
from tests.support.fake_device import Fake

flow.register_device("fake", Fake)
RANKS = list(range(flow.env.get_world_size()))


def _model() -> nn.Module:
    flow.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))


def _data() -> tuple[Tensor, Tensor]:
    return flow.arange(48.0).reshape(8, 6).sin(), flow.arange(8) % 2


def _laid_out(kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model whose first weight is split by rows, and data split by samples."""
    place = flow.placement(kind, RANKS)
    model, (x, wanted) = _model(), _data()
    model = model.to_global(placement=place, sbp=flow.sbp.broadcast)
    model[0].to_global(placement=place, sbp=flow.sbp.split(0))
    split = [
        y.to_global(place, flow.sbp.broadcast).to_global(sbp=flow.sbp.split(0)) for y in (x, wanted)
    ]
    return model, split[0], split[1]


def eager(kind: str) -> list[Tensor]:
    model, x, wanted = _laid_out(kind)
    optimizer = flow.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = F.cross_entropy(model(x), wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return [*losses, *model.parameters()]


def graph(kind: str) -> list[Tensor]:
    model, x, wanted = _laid_out(kind)

    class Step(nn.Graph):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.add_optimizer(flow.optim.Adam(model.parameters(), lr=0.1))

        def build(self, x: Tensor, wanted: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), wanted)
            loss.backward()
            return loss

    step = Step()
    return [*[step(x, wanted) for _ in range(3)], *model.parameters()]


def parallel(kind: str) -> list[Tensor]:
    model, (x, wanted) = _model().to(kind), _data()
    wrapped = nn.parallel.DistributedDataParallel(model)
    rank, size = flow.env.get_rank(), len(RANKS)
    optimizer = flow.optim.SGD(wrapped.parameters(), lr=0.1)
    for _ in range(2):
        loss = F.cross_entropy(wrapped(x[rank::size].to(kind)), wanted[rank::size].to(kind))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


def layouts(kind: str) -> list[Tensor]:
    place = flow.placement(kind, RANKS)
    x = flow.arange(35.0).reshape(7, 5).to_global(place, flow.sbp.broadcast)
    ways = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.partial_sum, flow.sbp.broadcast
    found = [x.to_global(sbp=a).to_global(sbp=b) for a in ways for b in ways]
    found += [found[0][1:, 2:], flow.cat([found[0], found[1]]), found[1].to_global(placement=place)]
    if kind != "cpu":
        found[0] = x.to("cpu").to(kind)
    return found


SCENES = {f.__name__: f for f in (eager, graph, parallel, layouts)}


def _whole(x: Tensor) -> np.ndarray:  # type: ignore[type-arg]
    return (
        x.detach().numpy()
        if not x.is_global
        else x.detach().to_global(sbp=flow.sbp.broadcast).numpy()
    )


for name in sys.argv[1:]:
    want, got = SCENES[name]("cpu"), SCENES[name]("fake")
    kinds = {x.placement.type if x.is_global else x.device.type for x in got}
    assert kinds == {"fake"}, kinds
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(_whole(b), _whole(a), rtol=1e-5, atol=1e-6, err_msg=name)
    print(f"{name} done", flush=True)
