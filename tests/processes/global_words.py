"""Words that the scenes of global_api_program.py share: layouts to try, references, checks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

import oneflow as flow
from tests.support import refusing

RANK, SIZE = flow.env.get_rank(), flow.env.get_world_size()
ALL = flow.placement("cpu", list(range(SIZE)))
N = SIZE + 1
FIRST, LAST = flow.placement("cpu", [0]), flow.placement("cpu", [SIZE - 1])
GRID = flow.placement("cpu", np.arange(SIZE).reshape((2, 2) if SIZE == 4 else (1, SIZE)))
S0, S1, B, P = flow.sbp.split(0), flow.sbp.split(1), flow.sbp.broadcast, flow.sbp.partial_sum
ONE_AXIS = [(s,) for s in (S0, S1, B, P)]
TWO_AXES = list(itertools.product((S0, S1, B, P), repeat=2))
LAYOUTS = [(ALL, s) for s in ONE_AXIS] + [(GRID, s) for s in TWO_AXES] + [(LAST, (S0,))]
SOME_LAYOUTS = LAYOUTS[:4] + LAYOUTS[4:20:3] + LAYOUTS[20:]


def same(got: Any, expected: Any, tolerance: float = 0.0) -> None:
    values = got.numpy() if isinstance(got, flow.Tensor) else got
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance)


def part(whole: np.ndarray, placement: Any, nd_sbp: Any, rank: int = RANK) -> np.ndarray:
    """The part that `rank` holds of a tensor that is not partial: balanced parts, axis after
    axis.
    """
    where = np.argwhere(placement.ranks == rank)[0]
    for s, n, i in zip(nd_sbp, placement.ranks.shape, where, strict=True):
        if s.is_split:
            whole = np.array_split(whole, n, s.dim)[i]
    return whole


def refuses(text: str, work: Callable[[], Any], kind: type[Exception] = RuntimeError) -> None:
    """`work` fails with `text`, on this rank and, by the barrier, on all of them."""
    refusing.refuses(kind, text, work)
    flow.comm.barrier()


def together() -> flow.Tensor:
    """A small global tensor of N ones, cut unevenly."""
    return flow.ones(N, placement=ALL, sbp=S0)


def scenes_of(module: dict[str, Any], helpers: tuple[Any, ...] = ()) -> list[Callable[[], None]]:
    """The functions that a module of scenes defines, in order."""
    return [
        f
        for f in list(module.values())
        if callable(f) and getattr(f, "__module__", "") == module["__name__"] and f not in helpers
    ]
