"""A data-loading process, and the parent's end of it.

The parent sends `(task number, indices)` or `_NewEpoch` over a pipe and gets `(task number, batch
or Failure)`, large arrays in shared memory (handing.py). A thread of the parent reads each pipe all
the time, so neither side ever waits for the other to read. A worker ends when its pipe closes,
which happens when the parent dies, however it dies.

A worker may be a fork of its parent: it then has the parent's memory, but none of its threads.
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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, cast

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

    def reraise(self) -> NoReturn:
        """Raises the same type of exception, with the worker's traceback in its message."""
        raise self._error() from None

    def _error(self) -> BaseException:
        message = (
            f"Caught {self.exc_type.__name__} in DataLoader worker process {self.worker_id}.\n"
            f"Original {self.text}"
        )
        if issubclass(self.exc_type, KeyError):
            message = _Message(message)
        try:
            return self.exc_type(message)
        except Exception:  # a type whose constructor wants something else
            return RuntimeError(message)


class _Message(str):
    """The message of a KeyError, which otherwise shows line breaks as backslashes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class _NewEpoch:
    seed: int


@dataclass(frozen=True)
class Exhausted:
    """The worker's copy of a stream has no more samples."""


_info: WorkerInfo | None = None
_is_initialised = False  # its worker_init_fn has been called, and raised nothing


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
    """Makes batches of a data set, in a worker or in the main process.

    stream: the pass over an IterableDataset, None of others. is_over: whether it has ended.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.stream: Iterator[Any] | None = iter(work.dataset) if work.is_stream else None
        self.is_over = False

    def fetch(self, indices: object) -> Any:
        """The batch at `indices` (for a stream: of as many samples). Raises StopIteration at a
        stream's end.
        """
        work = self.work
        if self.stream is not None:
            return work.collate(self._following(self.stream, indices))
        if not work.is_batched:
            return work.collate(work.dataset[indices])
        several = getattr(work.dataset, "__getitems__", None)
        if several is not None and work.collate is not collate.default_collate:
            return work.collate(several(indices))  # whatever the two of them agree on
        return work.collate(read_several(work.dataset, cast("Sequence[object]", indices)))

    def _following(self, stream: Iterator[Any], indices: object) -> Any:
        """The next samples of a stream; its end is final."""
        samples: list[Any] = []
        wanted = len(cast("Sequence[object]", indices)) if self.work.is_batched else 1
        try:
            while len(samples) < wanted and not self.is_over:
                samples.append(next(stream))
        except StopIteration:
            self.is_over = True
        if not samples or (self.work.drop_last and len(samples) < wanted):
            raise StopIteration
        return samples if self.work.is_batched else samples[0]


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
    """Give a fork the state of a new process: signals that end it, and one thread."""
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
        said = answer[1]  # an error of a class that no other process can import has a text, too
        text = said.text if isinstance(said, Failure) else traceback.format_exc()
        failure = Failure(worker_id, RuntimeError, text)
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
            state["fetcher"] = _prepared(work, state["seed"])
        return number, state["fetcher"].fetch(indices)
    except Exception as error:
        if work.is_stream and isinstance(error, StopIteration):
            return number, Exhausted()
        return number, Failure(work.worker_id, type(error), traceback.format_exc())


def _prepared(work: Work, seed: int) -> Fetcher:
    """Seeds this process and starts reading. Here, so that its errors come out like those of a
    sample, and again for the next one.
    """
    global _info, _is_initialised
    seed = (seed + work.worker_id) & 0xFFFFFFFFFFFFFFFF
    _info = WorkerInfo(work.worker_id, work.num_workers, seed, work.dataset)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    manual_seed(seed)
    if not _is_initialised and work.init is not None:
        work.init(work.worker_id)
    _is_initialised = True
    return Fetcher(work)


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
        self._asked: deque[int] = deque()  # answers come in this order, whatever is in them
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.is_dead = False
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
            number = self._asked.popleft()
            try:
                value = handing.value_of(message)[1]
                if self._finish is not None and not isinstance(value, Failure | Exhausted):
                    value = self._finish(value)
            except Exception as error:  # what it sent cannot be unpickled, or finished, here
                value = Failure(self.id, type(error), traceback.format_exc())
            self._answers.put((number, value))
            del message, value

    def begin_epoch(self, seed: int) -> None:
        """Forgets the old stream; samples from now on are of a new epoch."""
        self._send(_NewEpoch(seed))

    def ask(self, number: int, indices: object) -> None:
        self._asked.append(number)
        self._send((number, indices))

    def _send(self, message: _NewEpoch | tuple[int, Any]) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._death() from None

    def answer(self, number: int, timeout_s: float) -> Any:
        """The batch asked for under `number`, a Failure, or Exhausted if the stream has ended;
        older answers are dropped.

        timeout_s: 0 waits for ever. Raises RuntimeError if it takes longer or the worker dies.
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
            if answer[0] == number:
                return answer[1]

    def _death(self) -> RuntimeError:
        self.is_dead = True
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
