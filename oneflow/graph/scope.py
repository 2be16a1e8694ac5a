"""Which trace is being recorded, and which module is being called: so that nodes know where they
come from.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oneflow.graph.trace import Trace


class _State(threading.local):
    trace: Trace | None = None


_state = _State()


def current_trace() -> Trace | None:
    """The trace that this thread records into, or None."""
    return _state.trace


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    previous, _state.trace = _state.trace, trace
    try:
        yield
    finally:
        _state.trace = previous
