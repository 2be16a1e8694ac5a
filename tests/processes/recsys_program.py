"""Run on several ranks: the models of examples/recsys learn there as they do on one rank.

argv: names of scenes; without any, all are played.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import oneflow as flow
from tests.support.launching import play
from tests.unit.one_embedding.test_recsys_examples import EXAMPLES, MODELS

sys.path.insert(0, str(EXAMPLES))
clicks, layers, train = (importlib.import_module(name) for name in ("clicks", "layers", "train"))

RANKS = int(os.environ["WORLD_SIZE"])
EVERYONE = flow.placement("cpu", list(range(RANKS)))
STEPS, ROWS = 5, 48


def curve(name: str, way: str) -> list[float]:
    """The losses of some steps. way: alone (in eager mode on this rank), eager or graph."""
    flow.manual_seed(0)
    model = getattr(importlib.import_module(name), MODELS[name])(layers.Store())
    if way != "alone":
        model = model.to_global(EVERYONE, flow.sbp.broadcast)
    optimizer = flow.optim.Adagrad(model.parameters(), lr=0.05)
    given: Callable[[Any], Any] = train.spread
    if way == "alone":
        train.spread = flow.from_numpy
    try:
        log = (clicks.Truth(0).draw(ROWS, part) for part in range(STEPS))
        losses: list[float] = train.train(model, optimizer, log, way == "graph")[0]
    finally:
        train.spread = given
    return losses


def learns_what_it_learns_alone(name: str) -> None:
    wanted = curve(name, "alone")
    for way in ("eager", "graph"):
        np.testing.assert_allclose(curve(name, way), wanted, rtol=1e-4, err_msg=way)


def scene(name: str) -> Callable[[], None]:
    made = partial(learns_what_it_learns_alone, name)
    made.__name__ = name  # type: ignore[attr-defined]
    return made


if __name__ == "__main__":
    play([scene(name) for name in MODELS if not sys.argv[1:] or name in sys.argv[1:]])
