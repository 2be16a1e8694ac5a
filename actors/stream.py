"""A thread that runs the kernels of segments, one at a time, while the actors' own thread goes on.

Between hosts bytes move only while somebody reads and writes the sockets, and sums are made only
while somebody adds. So where a rank has peers on other hosts, its segments run here: the thread of
the actors waits for both, the end of a kernel and the sockets, and exchanges one bucket of
gradients while the next is computed. Both may compute at once, on different registers.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter

import numpy as np

from oneflow.actors.messages import Launch

Kernel = Callable[[tuple[int, ...], tuple[int, ...]], None]
Work = tuple[int, Kernel, Launch] | None
"""An actor, its kernel and the slots; None: no more."""


@dataclass(frozen=True)
class Ended:
    """The end of a kernel: of which actor, its times as in Acts, and its error."""

    actor: int
    begin: float
    end: float
    error: BaseException | None


class KernelStream:
    """The thread, and a file that can be read once a kernel has ended.

    running: the actor whose kernel runs; -1: none.
    """

    def __init__(self) -> None:
        self.running = -1
        self._work: SimpleQueue[Work] = SimpleQueue()
        self._ended: deque[Ended] = deque()
        self.file, writing = os.pipe()
        os.set_blocking(self.file, False)
        args = self._work, self._ended, writing
        self._thread = threading.Thread(target=_run, args=args, name="kernels", daemon=True)
        self._thread.start()
        self._close = weakref.finalize(self, _close, self._work, self._thread, self.file)

    def launch(self, actor: int, kernel: Kernel, launch: Launch) -> None:
        """Begin a kernel. Only when none runs."""
        self.running = actor
        self._work.put((actor, kernel, launch))

    def take(self) -> Ended | None:
        """Return the kernel that has ended since the last call, if one has. Raises the error of the
        kernel."""
        if not self._ended:
            return None
        os.read(self.file, 1)
        ended = self._ended.popleft()
        self.running = -1
        if ended.error is not None:
            raise ended.error
        return ended

    def close(self) -> None:
        """Wait for the kernel that runs; the thread ends."""
        self._close()


def _run(work: SimpleQueue[Work], ended: deque[Ended], writing: int) -> None:
    with np.errstate(all="ignore"):  # as in the actors' thread
        while (found := work.get()) is not None:
            actor, kernel, launch = found
            error: BaseException | None = None
            begin = perf_counter()
            try:
                kernel(launch.in_slots, launch.out_slots)
            except BaseException as raised:  # for `take`
                error = raised
            found_end = Ended(actor, begin, perf_counter(), error)
            os.write(writing, b"x")  # first, so that whoever finds the end can read this
            ended.append(found_end)
            del found, kernel, error, found_end
    os.close(writing)


def _close(work: SimpleQueue[Work], thread: threading.Thread, reading: int) -> None:
    work.put(None)
    thread.join()
    os.close(reading)
