"""Work that threads of this process do beside the actors: the last pieces of it, for traces."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

_LAST: deque[tuple[str, float, float]] = deque(maxlen=4096)


@contextmanager
def side_work(name: str) -> Iterator[None]:
    """Record the block as a piece of work of the thread that runs it."""
    begin = perf_counter()
    try:
        yield
    finally:
        _LAST.append((name, begin, perf_counter()))


def side_work_since(begin: float) -> list[tuple[str, float, float]]:
    """(name, begin, end) of the last pieces that ended after a moment of `perf_counter`."""
    return [piece for piece in list(_LAST) if piece[2] > begin]
