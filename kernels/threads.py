"""The number of threads that the kernels of this process may use, those of BLAS among them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

_limit: int | None = None
_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def set_limit(count: int) -> bool:
    """Use at most `count` threads from now on, at least 1, in compiled loops and in OpenBLAS.

    Returns whether matrix products obey, which they do where NumPy has loaded OpenBLAS.
    """
    global _limit
    _limit = count
    for library in loaded("openblas"):
        for name in _SETTERS:
            setter: Any = getattr(library, name, None)
            if setter is not None:
                setter(ctypes.c_int(count))
                return True
    return False


def allowed(available: int) -> int:
    """Threads for a large loop on a machine with `available`."""
    return available if _limit is None else min(available, _limit)


def loaded(word: str) -> list[ctypes.CDLL]:
    """The shared libraries of this process whose file name has `word`."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if ".so" in line}
    return [ctypes.CDLL(p) for p in sorted(paths) if word in Path(p).name]
