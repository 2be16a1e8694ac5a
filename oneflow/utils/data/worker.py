"""A data-loading process, and the parent's end of it.

The parent sends `(task number, indices)` or `_NewEpoch` over a pipe and gets `(task number, batch
or Failure)`, large arrays in shared memory (handing.py). A thread of the parent reads each pipe all
the time, so neither side ever waits for the other to read. A worker ends when its pipe closes,
which happens when the parent dies, however it dies.

A worker may be a fork of its parent: it then has what the parent had, but none of its threads.
Kernels know that (kernels/threads.py); signals get their usual meaning back.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import random
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import numpy as np

from oneflow.functional.random_state import manual_seed
from oneflow.kernels.threads import set_limit
from oneflow.utils.data import collate, handing
from oneflow.utils.data.dataset import read_several


@dataclass(frozen=True)
class WorkerInfo:
    """The facts that a worker knows of itself. seed: different in each worker and epoch. dataset:
    its own copy.
    """

    id: int
    num_workers: int
    seed: int
    dataset: Any


@dataclass(frozen=True)
class Failure:
    """An exception of a worker, as text and type."""

    worker_id: int
    exc_type: type[BaseException]
    text: str

    def reraise(self) -> None:
        """Raises the same type of exception, with the worker's traceback in its message."""
        message = (
            f"Caught {self.exc_type.__name__} in DataLoader worker process {self.worker_id}.\n"
            f"Original {self.text}"
        )
        if issubclass(self.exc_type, KeyError):
            message = _Message(message)
        try:
            error = self.exc_type(message)
        except Exception:  # a type whose constructor wants something else
            error = RuntimeError(message)
        raise error from None


class _Message(str):
    """The message of a KeyError, which otherwise shows line breaks as backslashes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class _NewEpoch:
    seed: int


@dataclass(frozen=True)
class _Exhausted:
    """The worker's copy of a stream has no more samples."""


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Inside a worker: which one it is. In the main process: None."""
    return _info


@dataclass(frozen=True)
class Work:
    """The work of a worker, sent once. Must survive pickling.

    collate: from a list of samples to a batch, or None for single samples.  is_stream: an
    IterableDataset.
    """

    dataset: Any
    collate: Callable[[Any], Any]
    is_batched: bool
    is_stream: bool
    drop_last: bool
    init: Callable[[int], Any] | None
    worker_id: int
    num_workers: int


class Fetcher:
    """Makes batches of a data set, in a worker or in the main process."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._stream = iter(work.dataset) if work.is_stream else None

    def fetch(self, indices: object) -> Any:
        """The batch at `indices` (for a stream: of as many samples). Raises StopIteration at a
        stream's end.
        """
        work = self.work
        if not work.is_batched:
            one = work.dataset[indices] if self._stream is None else next(self._stream)
            return work.collate(one)
        batch = cast("Sequence[object]", indices)
        if self._stream is not None:
            return self._next(self._stream, batch)
        return work.collate(read_several(work.dataset, batch))

    def _next(self, stream: Iterator[Any], indices: Sequence[object]) -> Any:
        samples = [sample for _, sample in zip(indices, stream, strict=False)]
        if not samples or (self.work.drop_last and len(samples) < len(indices)):
            raise StopIteration
        return self.work.collate(samples)


def run_worker(work: Work, pipe: Connection) -> None:
    """The worker's main function."""
    state: dict[str, Any] = {"seed": 0}
    _leave_the_parent()
    arrays = handing.SharedArrays()
    collate.new_array = arrays.new_array
    parent = multiprocessing.parent_process()
    sentinel = None if parent is None else parent.sentinel
    try:
        while True:
            if sentinel is not None and pipe not in wait([pipe, sentinel]):
                return
            message = pipe.recv()
            if message is None:
                return
            answer = _answer(work, message, state)
            if answer is not None:
                _send(pipe, answer, work.worker_id, arrays)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return  # the parent is gone or has stopped listening


def _leave_the_parent() -> None:
    """Gives a fork what a process of its own would have: signals that end it, and one thread."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    set_limit(1)  # the workers are the parallelism


def _send(
    pipe: Connection, answer: tuple[int, Any], worker_id: int, arrays: handing.SharedArrays
) -> None:
    """Sends an answer, or the failure to pickle it."""
    try:
        handing.send(pipe, answer, arrays)
    except OSError:
        raise
    except Exception:
        failure = Failure(worker_id, RuntimeError, traceback.format_exc())
        handing.send(pipe, (answer[0], failure), arrays)
    finally:
        arrays.forget()


def _answer(work: Work, message: _NewEpoch | tuple[int, Any], state: dict[str, Any]) -> Any:
    if isinstance(message, _NewEpoch):
        state.clear()
        state["seed"] = message.seed
        return None
    number, indices = message
    try:
        if "fetcher" not in state:
            _prepare(work, state)
        return number, state["fetcher"].fetch(indices)
    except StopIteration:
        return number, _Exhausted()
    except Exception as error:
        return number, Failure(work.worker_id, type(error), traceback.format_exc())


def _prepare(work: Work, state: dict[str, Any]) -> None:
    """Seeds this process and starts reading. Here, so that its errors come out like those of a
    sample.
    """
    global _info
    seed = (state["seed"] + work.worker_id) & 0xFFFFFFFFFFFFFFFF
    is_first = _info is None
    _info = WorkerInfo(work.worker_id, work.num_workers, seed, work.dataset)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    manual_seed(seed)
    if is_first and work.init is not None:
        work.init(work.worker_id)
    state["fetcher"] = Fetcher(work)


class Worker:
    """The parent's end of one worker process.

    finish: applied to each batch in the thread that reads it, before anybody asks for the batch.
    """

    def __init__(
        self, work: Work, context: Any, finish: Callable[[Any], Any] | None = None
    ) -> None:
        self.id, self._finish = work.worker_id, finish
        self._owner = os.getpid()
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=run_worker, args=(work, theirs), daemon=True, name=f"DataLoader worker {self.id}"
        )
        with warnings.catch_warnings():
            # Python warns of every fork with threads; see the top of this file.
            warnings.filterwarnings("ignore", "This process", DeprecationWarning)
            self.process.start()
        theirs.close()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._reader = threading.Thread(
            target=self._read, daemon=True, name=f"reader of worker {self.id}"
        )

    def listen(self) -> None:
        """Reads answers from now on. To be called when no other worker is yet to be forked."""
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                message = handing.receive(self._pipe)
            except (EOFError, OSError):
                self._answers.put(None)
                return
            try:
                self._answers.put(self._finished(handing.value_of(message)))
            except Exception as error:  # what it sent cannot be unpickled, or finished, here
                self._answers.put((-1, Failure(self.id, type(error), traceback.format_exc())))
            del message

    def _finished(self, answer: tuple[int, Any]) -> tuple[int, Any]:
        number, value = answer
        if self._finish is None or isinstance(value, Failure | _Exhausted):
            return answer
        return number, self._finish(value)

    def begin_epoch(self, seed: int) -> None:
        """Forgets the old stream; samples from now on are of a new epoch."""
        self._send(_NewEpoch(seed))

    def ask(self, number: int, indices: object) -> None:
        self._send((number, indices))

    def _send(self, message: _NewEpoch | tuple[int, Any]) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._death() from None

    def answer(self, number: int, timeout_s: float) -> Any:
        """The batch asked for under `number`, `None` if the stream has ended; older answers are
        dropped.

        timeout_s: 0 waits for ever. Raises RuntimeError if it takes longer or the worker dies, or
        the worker's exception.
        """
        while True:
            try:
                answer = self._answers.get(timeout=timeout_s or None)
            except queue.Empty:
                raise RuntimeError(
                    f"DataLoader timed out after {timeout_s:g} seconds waiting for worker {self.id}"
                ) from None
            if answer is None:
                raise self._death()
            got, value = answer
            if isinstance(value, Failure) and got in (number, -1):
                value.reraise()
            if got == number:
                return None if isinstance(value, _Exhausted) else (value,)

    def _death(self) -> RuntimeError:
        self.process.join(timeout=1.0)
        return RuntimeError(
            f"DataLoader worker {self.id} (pid {self.process.pid}) exited unexpectedly with "
            f"exit code {self.process.exitcode}; see its output above. Unless workers are forked, "
            "they import the main script again, so it must start its work under `if __name__ == "
            '"__main__":`, and dataset, collate_fn and worker_init_fn must be picklable'
        )

    def stop(self) -> None:
        """Ends the process; at once if it does not end by itself within a second."""
        if os.getpid() != self._owner:
            return  # a fork that throws away its copy: the worker is not its own
        with contextlib.suppress(OSError):  # it has ended already
            self._pipe.send(None)
        self.process.join(timeout=1.0)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()
        self._reader.join(timeout=1.0)
        self._pipe.close()
