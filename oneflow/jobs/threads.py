"""The threads of a process that imported its libraries before OMP_NUM_THREADS was known: a forked
worker learns only with its job how many ranks share the host.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from oneflow.kernels.threads import limit_blas, set_limit


def renew_numba() -> None:
    """numba's settings as the environment says now, where it was imported before that was known.

    It reads them at its import and again at each compilation, which fails if the pool of threads
    was launched in between with another number. A pool that runs keeps its number; `set_limit`
    then says how many of it are used.
    """
    config: Any = sys.modules.get("numba.core.config")
    if config is None:
        return  # it will read them when it is imported
    pool: Any = sys.modules.get("numba.np.ufunc.parallel")
    if pool is not None and pool._is_initialized:
        os.environ["NUMBA_NUM_THREADS"] = str(config.NUMBA_NUM_THREADS)
    config.reload_config()


def limit_threads(given: Mapping[str, str]) -> bool:
    """Limit compiled loops and matrix products as variables of the environment say.

    given: with OMP_NUM_THREADS, and OPENBLAS_NUM_THREADS where products have a number of their own;
    without either they take a thread for each processor. Returns whether products obey.
    """
    count = _number(given, "OMP_NUM_THREADS")
    if count:
        set_limit(count)
    return limit_blas(
        _number(given, "OPENBLAS_NUM_THREADS") or count or len(os.sched_getaffinity(0))
    )


def _number(given: Mapping[str, str], name: str) -> int:
    """The number of threads that a variable names; 0: none."""
    text = given.get(name, "")
    return int(text) if text.isdecimal() else 0
