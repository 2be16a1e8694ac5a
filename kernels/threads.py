"""The number of threads that the kernels of this process may use, those of BLAS among them."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

_limit: int | None = None
_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)


def set_limit(count: int) -> bool:
    """Use at most `count` threads from now on, at least 1, in compiled loops and in OpenBLAS.

    Returns whether matrix products obey, which they do where NumPy has loaded OpenBLAS.
    """
    global _limit
    _limit = count
    return limit_blas(count)


def limit_blas(count: int) -> bool:
    """Let matrix products use `count` threads; whether they obey."""
    found = find_blas()
    if found is None:
        return False
    get, set_ = found
    if get() != count:  # to set it launches threads, which spin for a tenth of a second
        set_(ctypes.c_int(count))
    return True


@cache
def find_blas() -> tuple[Any, Any] | None:
    """Find the functions that read and set the number of threads of OpenBLAS, which NumPy loads."""
    import numpy  # noqa: F401

    for library in loaded("openblas"):
        for name in _NAMES:
            setter: Any = getattr(library, name.format("set"), None)
            if setter is not None:
                return getattr(library, name.format("get")), setter
    return None


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
