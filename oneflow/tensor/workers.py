"""Threads that compute queued eager calls: the calls of one worker run in their order.

A call has its arrays from the beginning: those it fills are made when it is queued, without values.
So only the order needs care, and it follows from two rules:

    made    a call waits for the calls that fill its inputs; all of them were queued before it, on
            this worker or another, so the earliest call that is not finished can always run
    used    a writer of an array waits for the call that fills it and for those that
            read it; a reader that only copies numbers of it, for the first

A call that fails leaves its error: calls that read its outputs fail with it, and so does a reader
of their values. An error that nobody met that way is raised where somebody waits for all calls.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from oneflow.core.errors import OneFlowError
from oneflow.core.location import locate
from oneflow.core.log import get_logger
from oneflow.kernels.array import Array
from oneflow.kernels.quiet import run_quietly

MOST_QUEUED = 1000
"""Calls of one worker that are not finished; whoever queues another one waits for a place."""

log = get_logger(__name__)


class Failure:
    """The error of a call, and whether anybody has met it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.is_met = False
        self._traceback = error.__traceback__

    def meet(self) -> BaseException:
        """Return the error, to be raised; each time with the traceback that it began with."""
        self.is_met = True
        return self.error.with_traceback(self._traceback)


class Call:
    """One call of a kernel, in the queue of a worker.

    after: the calls that fill its inputs.  where: the user's line that it comes from.
    arrays: those that it reads or fills.
    """

    __slots__ = ("_after", "_function", "_where", "arrays", "failure", "number", "worker")

    def __init__(
        self,
        worker: Worker,
        function: Callable[[], object],
        after: Sequence[Call],
        where: str,
        arrays: Sequence[Array] = (),
    ) -> None:
        self.worker = worker
        self.number = 0
        self.failure: Failure | None = None
        self._function: Callable[[], object] | None = function
        self._after: Sequence[Call] = after
        self._where = where
        self.arrays = arrays

    @property
    def is_finished(self) -> bool:
        """Whether it has run."""
        return self.worker.has_finished(self.number)

    def uses(self, array: Array) -> bool:
        """Whether it may read or fill memory of `array`."""
        return any([np.may_share_memory(array, one) for one in self.arrays])

    def run(self) -> None:
        """Compute it, in the worker's thread; its inputs are let go."""
        function, after = self._function, self._after
        self._function, self._after = None, ()
        for call in after:
            call.worker.wait_for(call.number)
            if call.failure is not None:
                self.failure = call.failure
                return
        if function is None:
            return
        if _is_closing and not _others_wait:
            self.failure = Failure(OneFlowError("the process ended before this was computed"))
            return
        try:
            run_quietly(function)
        except BaseException as error:
            if isinstance(error, Exception):
                where = f"{self._where}, " if self._where else ""
                locate(error, where=f"{where}computed by {self.worker.name}")
            self.failure = Failure(error)
            self.worker.failures.append(self.failure)

    def wait(self) -> None:
        """Wait until it has run. Raises its error."""
        self.worker.wait_for(self.number)
        if self.failure is not None:
            raise self.failure.meet()


class Worker:
    """A queue of calls and the thread that runs them, which starts with the first one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures: deque[Failure] = deque()
        self.queued = 0
        self.restart()
        with queueing:
            _workers.add(self)

    def restart(self) -> None:
        """Begin without a thread and with all calls finished, as in a process just forked."""
        # The collector may close a worker whose lock its own thread holds just then.
        lock = threading.RLock()
        self._has_calls, self._has_finished = threading.Condition(lock), threading.Condition(lock)
        self._calls: deque[Call | None] = deque()
        self._thread: threading.Thread | None = None
        self._running: Call | None = None
        self._finished = self.queued

    @property
    def is_idle(self) -> bool:
        """Whether all its calls are finished."""
        return self._finished == self.queued

    def has_finished(self, number: int) -> bool:
        """Whether the first `number` calls are finished."""
        return self._finished >= number

    def make_room(self) -> None:
        """Wait until fewer than MOST_QUEUED calls are unfinished."""
        self.wait_for(self.queued - MOST_QUEUED + 1)

    def queue(self, call: Call) -> None:
        with self._has_calls:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
                self._thread.start()
            self.queued += 1
            call.number = self.queued
            self._calls.append(call)
            self._has_calls.notify()

    def wait_for(self, number: int) -> None:
        """Wait until the first `number` calls are finished."""
        if self._finished >= number:
            return
        with self._has_finished:
            while self._finished < number:
                self._has_finished.wait()

    def wait_with(self, array: Array) -> None:
        """Wait until the calls that use the memory of `array` are finished."""
        with self._has_calls:
            left = [call for call in (self._running, *self._calls) if call is not None]
        for call in reversed(left):
            if call.uses(array):
                self.wait_for(call.number)
                return

    def close(self) -> None:
        """End the thread once it has run the queued calls."""
        with self._has_calls:
            if self._thread is not None:
                self._calls.append(None)
                self._has_calls.notify()

    def _work(self) -> None:
        while True:
            with self._has_calls:
                while not self._calls:
                    self._has_calls.wait()
                call = self._running = self._calls.popleft()
            if call is None:
                return
            call.run()
            call.arrays = ()
            del call
            with self._has_finished:
                self._running = None
                self._finished += 1
                self._has_finished.notify_all()


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
queueing = threading.RLock()
"""Held while a call is queued, so that all see one order of calls."""
_is_closing = False
_others_wait = False
"""Whether calls that have not begun when the process ends are needed by other processes."""
_is_needed: Callable[[], bool] | None = None


def finish_at_exit(is_needed: Callable[[], bool]) -> None:
    """Let calls that have not begun when the process ends run if `is_needed()`: other processes
    wait in them. Comes before all that was registered with atexit so far.
    """
    global _is_needed
    if _is_needed is None:
        _is_needed = is_needed
        atexit.unregister(_at_exit)
        atexit.register(_at_exit)


def _all_workers() -> list[Worker]:
    with queueing:
        return list(_workers)


def finish() -> None:
    """Wait for all calls of all workers; errors stay where they are."""
    for worker in _all_workers():
        worker.wait_for(worker.queued)


def finish_with(array: Array) -> None:
    """Wait for the calls of all workers that use the memory of an array."""
    for worker in _all_workers():
        worker.wait_with(array)


def settle() -> None:
    """Wait for all calls of all workers. Raises the first error that nobody has met yet."""
    finish()
    for worker in _all_workers():
        while worker.failures:
            failure = worker.failures.popleft()
            if not failure.is_met:
                raise failure.meet()


def is_settled() -> bool:
    """Whether all calls are finished, and all errors met."""
    return all([w.is_idle and all([f.is_met for f in w.failures]) for w in _all_workers()])


def _before_fork() -> None:
    """A child has no workers: nothing may be left to them when it begins."""
    queueing.acquire()
    finish()


def _in_child() -> None:
    for worker in _all_workers():
        worker.restart()
    queueing.release()


def _at_exit() -> None:
    """Drop the queued calls, which nobody will see: only those that have begun are waited for."""
    global _is_closing, _others_wait
    _others_wait = _is_needed is not None and _is_needed()
    _is_closing = True
    finish()
    for worker in _all_workers():
        for failure in worker.failures:
            if not failure.is_met:
                log.warning("asyncs.thread: nobody met this error: %s", failure.error)


os.register_at_fork(before=_before_fork, after_in_parent=queueing.release, after_in_child=_in_child)
atexit.register(_at_exit)
