"""Every optimizer with ZeRO of every stage trains as it does eagerly, on whole parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import oneflow.optim as optim
from oneflow.core.sbp import Split
from oneflow.optim.optimizer import Optimizer

from .options import LAYOUTS, Option, trains_as_eager_code, zero

S0 = Split(0)
MAKERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.2, dampens_first=False),
    "Adam": lambda p: optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "LAMB": lambda p: optim.LAMB(p, lr=0.01, weight_decay=0.1),
    "LAMB, l2": lambda p: optim.LAMB(p, lr=0.01, weight_decay=0.1, adam_w_mode=False),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01, lr_decay=0.1),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True, eps=1e-3),
    "Adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "Adamax": lambda p: optim.Adamax(p, lr=0.01, weight_decay=0.1),
    "NAdam": lambda p: optim.NAdam(p, lr=0.01, weight_decay=0.1),
    "RAdam": lambda p: optim.RAdam(p, lr=0.01, betas=(0.9, 0.7)),
    "ASGD": lambda p: optim.ASGD(p, lr=0.05, lambd=0.1, t0=1),
    "Rprop": lambda p: optim.Rprop(p, lr=0.001),
    "Adafactor": lambda p: optim.Adafactor(p, lr=0.01, weight_decay=0.1),
    "Muon": lambda p: optim.Muon([x for x in p if x.ndim == 2], lr=0.01),
}
# A sign or a number of 8 bits may fall to either side of what is summed in another order.
COARSE = {"Rprop": 3e-3, "Muon": 2e-3}


def trains(name: str, stage: int, place: str, rng: np.random.Generator) -> None:
    option = Option(zero(stage), tolerance=COARSE.get(name, 1e-5))
    trains_as_eager_code(option, place, lambda p: [(MAKERS[name](p), None)], rng)


@pytest.mark.parametrize("name", MAKERS)
def test_on_two_ranks(name: str, rng: np.random.Generator) -> None:
    trains(name, 2, "dp 2", rng)


@pytest.mark.parametrize("stage", [1, 3])
def test_lamb_of_parts_knows_the_norms_of_whole_parameters(
    stage: int, rng: np.random.Generator
) -> None:
    trains("LAMB", stage, "dp 2", rng)


@pytest.mark.slow
@pytest.mark.parametrize("place", LAYOUTS)
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_everywhere(name: str, stage: int, place: str, rng: np.random.Generator) -> None:
    trains(name, stage, place, rng)
