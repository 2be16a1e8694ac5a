"""`flow.asyncs`, for scripts that spread eager ops over worker threads to overlap them.

Eager ops here run when they are called, in the calling thread, so a block given to a worker has the
same results and the same order as without it. What should overlap belongs in an nn.Graph, where
computing and communication have streams of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from oneflow.core.spelling import also_called
from oneflow.surfaces import accept_paths

_numbers = itertools.count(1)


class Thread:
    """A worker that blocks of ops can be given to."""

    def __init__(self) -> None:
        self.number = next(_numbers)

    def __repr__(self) -> str:
        return f"oneflow.asyncs.Thread({self.number})"


@also_called(worker_thread="worker")
@contextmanager
def thread(worker: Thread) -> Iterator[Thread]:
    """Ops of the with-block belong to `worker`. Raises TypeError for anything but a Thread."""
    if not isinstance(worker, Thread):
        raise TypeError(f"asyncs.thread needs an oneflow.asyncs.Thread, got {worker!r}")
    yield worker


accept_paths(__name__)
