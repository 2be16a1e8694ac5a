"""The pace of this machine's memory and arithmetic, as measured: the scale of profiles."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from time import perf_counter
from typing import NamedTuple

import numpy as np

COPIED_NBYTES = 1 << 25
"""More than caches hold, at most a few milliseconds of copying."""
SIDE = 768
BUDGET_S = 0.15
"""Time of each of the two measurements; at least LEAST rounds."""
LEAST = 3


class Peak(NamedTuple):
    """The most that a machine was measured to do: of memory, and of arithmetic in float32."""

    bytes_per_second: float
    flops_per_second: float


@lru_cache(1)
def measured_peak() -> Peak:
    """Measure once a process: copy more than caches hold, and multiply matrices as ops do.

    The best of some rounds, with as many threads as products have.
    """
    source, target = np.ones(COPIED_NBYTES, np.uint8), np.empty(COPIED_NBYTES, np.uint8)
    a, out = np.full((SIDE, SIDE), 1e-3, np.float32), np.empty((SIDE, SIDE), np.float32)
    copying = _least_seconds(lambda: np.copyto(target, source))
    multiplying = _least_seconds(lambda: np.matmul(a, a, out=out))
    return Peak(2 * COPIED_NBYTES / copying, 2 * SIDE**3 / multiplying)


def _least_seconds(run: Callable[[], object]) -> float:
    run()
    best, rounds, until = float("inf"), 0, perf_counter() + BUDGET_S
    while rounds < LEAST or perf_counter() < until:
        begin = perf_counter()
        run()
        best = min(best, perf_counter() - begin)
        rounds += 1
    return best
