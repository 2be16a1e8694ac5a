"""`flow.asyncs`: worker threads that compute eager ops while the calling thread goes on.

    one, two = flow.asyncs.Thread(), flow.asyncs.Thread()
    with flow.asyncs.thread(one):
        a = x @ v                     # checked, typed and recorded here, computed by `one`
    with flow.asyncs.thread(two):
        b = x @ w                     # at the same time, by `two`
    print((a + b).numpy())            # waits for both

Values are those that the same program has without workers. Calls on global tensors are queued with
their exchanges between ranks, over a channel of the worker's own; the ranks of a job make their
Threads in one order, so that those of one number belong together. A mistake in the types of a call
is raised by the call; the error of a kernel is raised where its result is used, or else by the next
operation that waits for all workers, which every operation in place does, and names the worker and
the line of the call that failed. oneflow/tensor/overlapping.py lists the ops that are queued and
those that run at once.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from oneflow.core.spelling import also_called
from oneflow.surfaces import accept_paths
from oneflow.tensor.overlapping import use_worker
from oneflow.tensor.workers import Worker

_numbers = itertools.count(1)


class Thread:
    """A worker that blocks of ops can be given to. Its thread ends after it is deleted."""

    def __init__(self) -> None:
        self.number = next(_numbers)
        self._worker = Worker(repr(self))
        weakref.finalize(self, self._worker.close).atexit = False

    def __repr__(self) -> str:
        return f"oneflow.asyncs.Thread({self.number})"


_numbered: dict[int, Thread] = {}


@also_called(worker_thread="worker")
@contextmanager
def thread(worker: Thread | int) -> Iterator[Thread]:
    """Ops of the with-block are computed by `worker`: a Thread, or the number of one that all
    blocks of the same number share. Raises TypeError for anything else.
    """
    if isinstance(worker, int) and not isinstance(worker, bool):
        worker = _numbered.get(worker) or _numbered.setdefault(worker, Thread())
    if not isinstance(worker, Thread):
        raise TypeError(f"asyncs.thread needs an oneflow.asyncs.Thread or a number, got {worker!r}")
    with use_worker(worker._worker):
        yield worker


accept_paths(__name__)
