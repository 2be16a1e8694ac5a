"""As many threads as OMP_NUM_THREADS says, in a process whose libraries were loaded before it was
known: a warm worker learns only with its job how many ranks share the host.
"""

from __future__ import annotations

import ctypes
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
