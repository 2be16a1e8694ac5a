"""Bytes of a rank with ZeRO, variables and arena together, against a formula: alone and with tensor
parallelism. All ranks run in this process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.nn.functional as F
from oneflow import nn
from oneflow.core.sbp import BROADCAST as B
from oneflow.core.sbp import NdSbp, Split

from .spread import Spread, placed

S0, S1 = Split(0), Split(1)
DEPTH, WIDTH, ROWS = 8, 256, 16
LAYER = WIDTH * WIDTH * 4
"""Bytes of a layer's weight. A bucket of gradients is an eighth of all: one layer."""
PLACES: dict[str, tuple[tuple[int, ...], NdSbp, tuple[NdSbp, NdSbp]]] = {
    "dp 4": ((4,), (S0,), ((B,), (B,))),
    "dp 2, tp 2": ((2, 2), (S0, B), ((B, S0), (B, S1))),
}
"""Hierarchy, layout of the batch, layouts of the weights in turn."""


class Deep(nn.Module):
    def __init__(self, layouts: tuple[NdSbp, NdSbp]) -> None:
        super().__init__()
        data = np.random.default_rng(2)
        for i in range(DEPTH):
            array = data.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8.0
            setattr(self, f"w{i}", nn.Parameter(placed(array, layouts[i % 2])))

    def forward(self, x: Any) -> Any:
        for i in range(DEPTH):
            x = F.linear(x, getattr(self, f"w{i}")).tanh()
        return x


class Trains(nn.Graph):
    def __init__(self, layouts: tuple[NdSbp, NdSbp], stage: int, pieces: int) -> None:
        super().__init__()
        self.model = Deep(layouts)
        self.add_optimizer(flow.optim.Adam(self.model.parameters(), lr=0.01))
        self.config.set_gradient_accumulation_steps(pieces)
        self.config.enable_zero(stage > 0, stage=stage or 1)

    def build(self, x: Any) -> Any:
        loss = (self.model(x) ** 2).mean()
        loss.backward()
        return loss


def spread(place: str, stage: int, pieces: int, seed: int | None = None) -> Spread:
    hierarchy, batch, weights = PLACES[place]
    x = placed(np.ones((ROWS, WIDTH), np.float32), batch)
    return Spread(Trains(weights, stage, pieces), x, hierarchy, seed)


def held(graph: Spread) -> int:
    """Bytes of variables, registers and scratch memory of a rank."""
    variables = sum(array.nbytes for array in graph.held[0].values())
    return graph.cluster.bound[0].arena_nbytes + variables


def formula(stage: int, pieces: int, parameters: int, layer: int, n: int) -> float:
    """Adam, float32: bytes of model states of a rank, and of what moves at a time.

    parameters, layer: bytes of all of them and of one, as they lie without ZeRO.  n: ranks that
    hold copies.

    stage 0   3 P, and P gradients, which are summed where they lie
    stage 1   P + 2 P / n, and P / n gradients once they are summed; with micro-batches P sums
              of gradients before
    stage 2   P + 2 P / n, and P / n gradients
    stage 3   3 P / n, and P / n gradients

    From stage 1 on two layers' gradients on their way, as a whole; one layer gathered after its
    update, and two parts that others read. In stage 3 two layers gathered to be read (four with
    micro-batches), and the parts of four layers (of six).
    """
    p, part = parameters, parameters / n
    added = 2 * layer if pieces > 1 else 0
    if stage == 0:
        return 4 * p + added
    if stage == 3:
        return 4 * part + 4 * layer + 4 * layer / n + added * (1 + 1 / n)
    moving = (0 if pieces > 1 and stage == 1 else 2 * layer) + layer + 2 * layer / n
    return p + 3 * part + moving + (p + added if pieces > 1 and stage == 1 else 0)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_bytes_fall_with_each_stage_as_the_formula_says(place: str, pieces: int) -> None:
    n = PLACES[place][0][0]
    tensor_ranks = 4 // n
    p, layer = DEPTH * LAYER / tensor_ranks, LAYER / tensor_ranks
    found = [held(spread(place, stage, pieces)) for stage in range(4)]
    rest = found[0] - formula(0, pieces, p, layer, n)  # activations and temporaries
    assert 0 < rest < p / 2
    for stage in (1, 2, 3):
        assert found[stage] <= 1.05 * (formula(stage, pieces, p, layer, n) + rest)
    assert found[0] > found[1] >= found[2] > found[3]


@pytest.mark.parametrize("place", PLACES)
def test_memory_in_turns_changes_no_value(place: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
    plain = spread(place, 0, 2)
    wanted = [plain(x).mean() for _ in range(3)]
    for stage in (1, 2, 3):
        for pieces, seed in ((1, 3), (2, 4)):
            graph = spread(place, stage, pieces, seed)
            found = [graph(x).mean() for _ in range(3)]
            np.testing.assert_allclose(found, wanted, rtol=2e-4)
            assert any(r.storage is not None for r in graph.plan.registers)
