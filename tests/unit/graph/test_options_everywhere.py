"""Options of graphs: with each the graph trains as eager code does that spells it out, on one rank
and with data, tensors and stages spread over up to eight. All ranks run in this process.
"""

from __future__ import annotations

import numpy as np
import pytest

from .options import LAYOUTS, OPTIMIZERS, OPTIONS, drawn, trains_as_eager_code

SPREAD = list(LAYOUTS)[1:]
MIXED = ("none, pieces", "zero 2", "zero 3, scaler, inf, pieces", "again, nested, in stages")
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")


@pytest.mark.parametrize(
    ("name", "place"), [(name, SPREAD[i % 7]) for i, name in enumerate(OPTIONS)]
)
def test_an_option_in_a_layout(name: str, place: str, rng: np.random.Generator) -> None:
    trains_as_eager_code(OPTIONS[name], place, OPTIMIZERS["momentum, clipped"], rng)


@pytest.mark.parametrize(
    ("optimizer", "name", "place"),
    [
        (optimizer, MIXED[(i + shift) % 4], SPREAD[(i + 2 * shift) % 7])
        for shift in range(2)
        for i, optimizer in enumerate(OPTIMIZERS)
    ],
)
def test_an_optimizer_in_two_layouts(
    optimizer: str, name: str, place: str, rng: np.random.Generator
) -> None:
    trains_as_eager_code(OPTIONS[name], place, OPTIMIZERS[optimizer], rng)


def test_what_passes_rewrite_composes(rng: np.random.Generator) -> None:
    """Mixed precision, half floats kept, ZeRO 3, computing again, a scaler whose step is left out,
    micro-batches and two stages of two ranks.
    """
    option = OPTIONS["amp, casts in updates, zero 3, again, scaler, inf, pieces"]
    trains_as_eager_code(option, "dp 2, pp 2", OPTIMIZERS["adam"], rng)


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(i, marks=pytest.mark.slow) for i in range(6, 200))]
)
def test_three_options_at_once(seed: int, rng: np.random.Generator) -> None:
    draws = np.random.default_rng(seed)
    option, place = drawn(draws), list(LAYOUTS)[draws.integers(len(LAYOUTS))]
    optimizer = ("momentum, clipped", "adam")[draws.integers(2)]
    trains_as_eager_code(option, place, OPTIMIZERS[optimizer], rng)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum, clipped", "adam"])
@pytest.mark.parametrize("place", LAYOUTS)
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_in_every_layout(
    name: str, place: str, optimizer: str, rng: np.random.Generator
) -> None:
    trains_as_eager_code(OPTIONS[name], place, OPTIMIZERS[optimizer], rng)


@pytest.mark.slow
@pytest.mark.parametrize("place", LAYOUTS)
@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_in_every_layout(
    optimizer: str, name: str, place: str, rng: np.random.Generator
) -> None:
    trains_as_eager_code(OPTIONS[name], place, OPTIMIZERS[optimizer], rng)
