"""The number of threads of libraries that were loaded before OMP_NUM_THREADS was known: a warm
worker learns only with its job how many ranks share the host.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from oneflow.core.log import get_logger
from oneflow.kernels.threads import set_limit

log = get_logger(__name__)

_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def renew_numba() -> None:
    """numba's settings as the environment says now, where it was imported before that was known.

    It reads them at its import and again at each compilation, which fails if the pool of threads
    was launched in between with another number. A pool that runs keeps its number; `limit_threads`
    then says how many of it are used.
    """
    config: Any = sys.modules.get("numba.core.config")
    if config is None:
        return  # it will read them when it is imported
    pool: Any = sys.modules.get("numba.np.ufunc.parallel")
    if pool is not None and pool._is_initialized:
        os.environ["NUMBA_NUM_THREADS"] = str(config.NUMBA_NUM_THREADS)
    config.reload_config()


def limit_threads(count: int) -> bool:
    """Limits our own kernels, and OpenBLAS if NumPy uses it. Returns whether that was found."""
    set_limit(count)
    for library in _loaded("openblas"):
        for name in _SETTERS:
            setter: Any = getattr(library, name, None)
            if setter is not None:
                setter(ctypes.c_int(count))
                return True
    log.info("NumPy's matrix products keep their number of threads: no OpenBLAS is loaded")
    return False


def _loaded(word: str) -> list[ctypes.CDLL]:
    """The shared libraries of this process whose file name has `word`."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if ".so" in line}
    return [ctypes.CDLL(p) for p in sorted(paths) if word in Path(p).name]
