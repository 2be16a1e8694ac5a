"""The number of threads that the kernels of this process may use, those of BLAS among them, and the
number of pieces into which they cut their work."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from oneflow.core.config import current_config

_limit: int | None = None
_handed_out = 0
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


LEAST_SHARED = 1 << 17
"""Elements of a loop from which threads share it. An element stands for the time in which one
thread adds two floats that are in its cache, a quarter of a nanosecond; work of other kinds is
counted in as many elements as take as long."""

_LEAST_PIECE = 1 << 15
_PIECES = 8
"""Pieces for each thread: one that is late, or that began late, leaves more of them to others."""


def kernel_threads(elements: int) -> int:
    """Number of threads for work that takes as long as a loop over `elements`."""
    return num_threads() if elements >= LEAST_SHARED else 1


def num_threads() -> int:
    """Number of threads that large work takes."""
    return allowed(available())


def available() -> int:
    """Number of threads that this process may use where nobody has set a limit."""
    return current_config().kernel_threads or len(os.sched_getaffinity(0))


def num_pieces(elements: int) -> int:
    """Number of pieces of work that takes as long as a loop over `elements`; 1: of one thread."""
    threads = kernel_threads(elements)
    if threads == 1:
        return 1
    return max(threads, min(threads * _PIECES, elements // _LEAST_PIECE))


def cut(count: int, elements: int, most: int, unit: int = 1) -> list[tuple[int, int]]:
    """(begin, end) of the pieces of work on `count` things, for threads.

    elements: the work takes as long as a loop over so many. most: of pieces. unit: all but the last
    piece are of multiples of it.
    """
    units = count // unit
    pieces = max(1, min(num_pieces(elements), most, units))
    ends = [*(units * i // pieces * unit for i in range(pieces)), count]
    return list(pairwise(ends))


def handed_out() -> int:
    """Return the number of pieces of work that this process has given to threads so far."""
    return _handed_out


def count_pieces(count: int) -> None:
    """Add to `handed_out`."""
    global _handed_out
    _handed_out += count


def allowed(most: int) -> int:
    """Threads for a large loop on a machine with `most`."""
    return most if _limit is None else min(most, _limit)


def loaded(word: str) -> list[ctypes.CDLL]:
    """The shared libraries of this process whose file name has `word`."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if ".so" in line}
    return [ctypes.CDLL(p) for p in sorted(paths) if word in Path(p).name]
