"""The settings of numba in a process that imported it before OMP_NUM_THREADS was known: a warm
worker learns only with its job how many ranks share the host.
"""

from __future__ import annotations

import os
import sys
from typing import Any


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
