"""Loops over float32 arrays, compiled by numba so that LLVM makes vector code of them."""

from __future__ import annotations

import os
import sys
from functools import cache, wraps
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np
from numba import config, njit, set_num_threads

from oneflow.core.jit import compiled
from oneflow.kernels.threads import allowed

F = np.float32
REORDER = {"reassoc", "contract", "nsz"}
"""Sums may be reordered and products contracted, which vector code needs; NaN and infinity keep
their meaning.
"""


def inlined(function: Any) -> Any:
    """Compiles a helper that becomes part of every loop that calls it. Division by zero gives
    infinity, as in NumPy: the check that Python makes would keep the loop from becoming vector
    code."""
    return njit(inline="always", fastmath=REORDER, error_model="numpy")(function)


def _may_run_parallel() -> bool:
    """Is there a threading layer that several Python threads may call at once?

    TBB and OpenMP are; numba's own work queue, which it falls back to where neither library is
    installed, ends the process instead.
    """
    if config.THREADING_LAYER == "workqueue":  # type: ignore[attr-defined]
        return False
    for pool in ("tbbpool", "omppool"):
        try:
            import_module(f"numba.np.ufunc.{pool}")
        except ImportError:
            continue
        return True
    return False


PARALLEL = _may_run_parallel()


ALONE = 1 << 19
"""Elements below which one thread does a loop. Waking a second one for less gains little on an idle
machine (training steps of a small GPT took 26.4 ms with two threads everywhere, 25.2 with one) and
costs milliseconds on a busy one, where the second thread has to be waited for."""


_pool_is_lost = False


def _look_for_pool() -> None:
    """numba's threads do not exist in a fork, and its OpenMP layer ends a fork that calls them."""
    global _pool_is_lost
    pool: Any = sys.modules.get("numba.np.ufunc.parallel")
    _pool_is_lost = _pool_is_lost or (pool is not None and pool._is_initialized)


os.register_at_fork(after_in_child=_look_for_pool)


def _twin(function: Any) -> Any:
    """The function under another name, so that numba's cache keeps its code apart."""
    name = f"{function.__name__}_alone"
    twin = FunctionType(function.__code__, function.__globals__, name, function.__defaults__)
    twin.__module__, twin.__qualname__ = function.__module__, f"{function.__qualname__}_alone"
    return twin


def vectorized(function: Any) -> Any:
    """Compiles a kernel on its first call (or loads it from the cache on disk); its pranges use
    numba's threads if its first argument is an array of at least ALONE elements.
    """
    options: dict[str, Any] = {"fastmath": REORDER, "error_model": "numpy", "nogil": True}
    loop = compiled(function, parallel=PARALLEL, **options)
    if not PARALLEL:
        return loop

    @cache
    def alone() -> Any:
        return compiled(_twin(function), **options)

    @wraps(function)
    def call(*args: Any) -> Any:
        if _pool_is_lost:
            return alone()(*args)
        # Read at each call: a process may learn how many there are after its imports.
        every: int = config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        set_num_threads(allowed(every) if args[0].size >= ALONE else 1)
        return loop(*args)

    return call
