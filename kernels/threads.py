"""The number of threads that the kernels of this process may use, those of BLAS among them, and the
number of pieces into which they cut their work."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from oneflow.core.config import current_config
from oneflow.core.processors import usable_processors

_limit: int | None = None
_handed_out = 0
_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)


def set_limit(count: int) -> bool:
    """Use at most `count` threads from now on, at least 1. OpenBLAS takes one: the threads of this
    project share its work.

    Returns whether OpenBLAS obeys, which it does where NumPy has loaded it.
    """
    global _limit
    _limit = count
    return limit_blas(1)


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
"""Elements of a loop from which threads share it, if they are awake. An element stands for a
quarter of a nanosecond of one thread, which adds two floats in its cache meanwhile; work of other
kinds is counted in as many elements as take as long."""

ELEMENT_NS = 0.25
_LEAST_ASLEEP = 1 << 19
"""The same where the first of them sleeps, until it is measured how long they take to wake."""

_LEAST_PIECE = 1 << 15
_PIECES = 8
"""Pieces for each thread: one that is late, or that began late, leaves more of them to others."""


@dataclass
class Helpers:
    """The state of the threads that help. asleep: 1 while the first of them sleeps. least_asleep:
    elements of a loop for which it is worth while to wake them."""

    asleep: ctypes.c_int32 = field(default_factory=lambda: ctypes.c_int32(1))
    least_asleep: int = _LEAST_ASLEEP


_helpers = Helpers()


def watch_helpers(helpers: Helpers) -> None:
    """Ask `helpers` from now on whether threads are awake."""
    global _helpers
    _helpers = helpers


def kernel_threads(elements: int) -> int:
    """Number of threads for work that takes as long as a loop over `elements`."""
    if elements < LEAST_SHARED:
        return 1
    if elements < _helpers.least_asleep and _helpers.asleep.value:
        return 1
    return num_threads()


def num_threads() -> int:
    """Number of threads that large work takes: the number set last, or that of the environment, or
    the processors that this process may use."""
    if _limit is not None:
        return min(_limit, usable())
    return current_config().kernel_threads or usable()


usable = cache(usable_processors)


def _forget() -> None:
    usable.cache_clear()
    watch_helpers(Helpers())


os.register_at_fork(after_in_child=_forget)  # a fork may be moved, and has none of the threads


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


def loaded(word: str) -> list[ctypes.CDLL]:
    """The shared libraries of this process whose file name has `word`."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if ".so" in line}
    return [ctypes.CDLL(p) for p in sorted(paths) if word in Path(p).name]
