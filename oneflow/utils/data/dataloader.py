"""Batches of a data set, made here or ahead of time by worker processes."""

from __future__ import annotations

import itertools
import multiprocessing
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.context import BaseContext
from types import GenericAlias
from typing import Any

from oneflow import cuda
from oneflow.functional.random_state import Generator, host_seed
from oneflow.kernels.cuda_device import own_device
from oneflow.utils.data.collate import default_collate, default_convert
from oneflow.utils.data.dataset import Dataset, IterableDataset, length
from oneflow.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from oneflow.utils.data.worker import Fetcher, Work, Worker


class _Forever:
    """The sampler of a stream: as many indices as it has samples, all None."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


class DatasetKind:
    """Kinds of data sets: by index, or streams."""

    Map = 0
    Iterable = 1

    @staticmethod
    def create_fetcher(
        kind: int,
        dataset: object,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
    ) -> Fetcher:
        """An object whose `fetch(indices)` makes a batch in this process."""
        is_stream = kind == DatasetKind.Iterable
        return Fetcher(Work(dataset, collate_fn, auto_collation, is_stream, drop_last, None, 0, 0))


class DataLoader:
    """An iterable of batches, in the order of the sampler whatever the number of workers.

    batch_size: samples a batch, None for single samples.  shuffle: a new random order each epoch,
    by `generator`.
    sampler, batch_sampler: own orders of indices or lists of indices.  collate_fn: from a list of
    samples to a batch.
    num_workers: processes that read ahead, 0 for none; each prepares prefetch_factor batches (2 by
    default).
    persistent_workers: keep them between epochs.  timeout: seconds to wait for a batch, 0 for ever.
    worker_init_fn: called with the worker's number in each worker.  multiprocessing_context: how
    workers are started, by default as Python does: forked before 3.14; where they are not, they
    import the script.  pin_memory: batches are pinned for a GPU, if there is one: with workers as
    they arrive, before they are asked for.  in_order is accepted: batches always come in order.
    Raises ValueError for arguments that exclude each other, and a worker's exceptions with its
    traceback.
    """

    @classmethod
    def __class_getitem__(cls, item: object) -> GenericAlias:
        """The class: annotations may name the items."""
        return GenericAlias(cls, item)

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: BaseContext | str | None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        self.dataset = dataset
        self.is_stream = isinstance(dataset, IterableDataset)
        self._dataset_kind = int(self.is_stream)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.num_workers, self.timeout = num_workers, timeout
        self.worker_init_fn, self.generator = worker_init_fn, generator
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.persistent_workers, self.pin_memory = persistent_workers, pin_memory
        self.multiprocessing_context = multiprocessing_context
        self.pin_memory_device, self.in_order = pin_memory_device, in_order
        self._check(prefetch_factor, bool(shuffle), sampler, batch_sampler)
        self._choose_samplers(bool(shuffle), sampler, batch_sampler)
        is_batched = self.batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if is_batched else default_convert)
        self._workers: list[Worker] = []
        self._epoch = 0
        self._kept: weakref.finalize[..., Any] | None = None

    def _check(
        self,
        prefetch_factor: int | None,
        shuffle: bool,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
    ) -> None:
        if self.num_workers < 0 or self.timeout < 0 or self.prefetch_factor < 1:
            raise ValueError(
                "num_workers and timeout must be at least 0, and prefetch_factor at least 1"
            )
        if self.num_workers == 0 and (self.persistent_workers or prefetch_factor is not None):
            raise ValueError("prefetch_factor and persistent_workers need num_workers > 0")
        if self.num_workers == 0 and self.multiprocessing_context is not None:
            raise ValueError("multiprocessing_context can only be used with num_workers > 0")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if self.is_stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                "DataLoader with IterableDataset: the data set has its own order; "
                "shuffle, sampler and batch_sampler must be left out"
            )
        if batch_sampler is not None and (
            self.batch_size != 1 or shuffle or sampler is not None or self.drop_last
        ):
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                "sampler, and drop_last"
            )
        if batch_sampler is None and self.batch_size is None and self.drop_last:
            raise ValueError("batch_size=None disables batching and excludes drop_last")

    def _choose_samplers(
        self, shuffle: bool, sampler: Iterable[Any] | None, batch_sampler: Iterable[Any] | None
    ) -> None:
        if batch_sampler is not None:
            self.batch_size = None
        if sampler is None and self.is_stream:
            sampler = _Forever()
        elif sampler is None:
            sampler = (
                RandomSampler(self.dataset, generator=self.generator)
                if shuffle
                else SequentialSampler(self.dataset)
            )
        if batch_sampler is None and self.batch_size is not None:
            batch_sampler = BatchSampler(sampler, self.batch_size, self.drop_last)
        self.sampler: Iterable[Any] = sampler
        self.batch_sampler = batch_sampler

    def __len__(self) -> int:
        """Number of batches; of samples without batching."""
        if self.is_stream:
            size = length(self.dataset)
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        return length(self._indices())

    def _indices(self) -> Iterable[Any]:
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def __iter__(self) -> _BaseDataLoaderIter:
        """Draw the seed of the workers now, as PyTorch does, and without any: orders do not depend
        on them, and what a script does to the generator before the first batch counts after it.
        """
        return self._get_iterator()

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return _SingleProcessDataLoaderIter(self)
        return _MultiProcessingDataLoaderIter(self)

    def _work(self, worker_id: int) -> Work:
        return Work(
            self.dataset,
            self.collate_fn,
            self.batch_sampler is not None,
            self.is_stream,
            self.drop_last,
            self.worker_init_fn,
            worker_id,
            self.num_workers,
        )

    def _pins(self) -> bool:
        return self.pin_memory and cuda.is_available()

    def _here(self) -> Iterator[Any]:
        fetcher, pins = Fetcher(self._work(0)), self._pins()
        for indices in self._indices():
            try:
                batch = fetcher.fetch(indices)
            except StopIteration:
                return
            yield pin_memory(batch) if pins else batch

    # ---- with workers ----------------------------------------------------------------------------

    def _ahead(self) -> tuple[list[Worker], Iterator[Any]]:
        """Workers, which are at work before the first batch is asked for, and their batches."""
        workers = self._workers if self.persistent_workers else []
        self._epoch += 1
        try:
            if not workers:
                self._start(workers)
            seed = host_seed(self.generator)
            for worker in workers:
                worker.begin_epoch(seed)
            queue = _Queue(self, workers)
            queue.deal()
        except BaseException:
            self._discard(workers)
            raise
        return workers, self._answers(workers, queue, self._epoch)

    def _answers(self, workers: list[Worker], queue: _Queue, epoch: int) -> Iterator[Any]:
        try:
            yield from queue.in_order(lambda: self._check_epoch(epoch))
        except GeneratorExit:  # the caller has left the loop early
            raise
        except BaseException:
            self._discard(workers)
            raise

    def _check_epoch(self, epoch: int) -> None:
        if self.persistent_workers and epoch != self._epoch:
            raise RuntimeError(
                "DataLoader: a second iteration has taken over the persistent workers of this one; "
                "finish one loop before the next, or set persistent_workers=False"
            )

    def _start(self, workers: list[Worker]) -> None:
        context = self.multiprocessing_context
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context)
        finish = _pin_in_a_thread if self._pins() else None
        for worker_id in range(self.num_workers):
            workers.append(Worker(self._work(worker_id), context, finish))
        for worker in workers:
            worker.listen()
        if self.persistent_workers:
            self._kept = weakref.finalize(self, _stop_all, workers)

    def _discard(self, workers: list[Worker]) -> None:
        if self._kept is not None:
            self._kept.detach()
            self._kept = None
        _stop_all(workers)


class _Queue:
    """The tasks of one epoch, dealt to the workers in turn; answers come out in the same order."""

    def __init__(self, loader: DataLoader, workers: list[Worker]) -> None:
        self.timeout = loader.timeout
        self.indices = iter(loader._indices())
        self.idle = deque(workers * loader.prefetch_factor)
        self.pending: deque[tuple[int, Worker]] = deque()
        self.ended: set[int] = set()

    def deal(self) -> None:
        """Gives every worker that has nothing to do the next task."""
        while self.idle:
            worker = self.idle.popleft()
            task = _END if worker.id in self.ended else next(self.indices, _END)
            if task is not _END:
                number = next(_task_numbers)
                worker.ask(number, task)
                self.pending.append((number, worker))

    def in_order(self, check: Callable[[], None]) -> Iterator[Any]:
        """The batches. check: called before each."""
        while self.pending:
            check()
            number, worker = self.pending.popleft()
            answer = worker.answer(number, self.timeout)
            if answer is None:
                self.ended.add(worker.id)
                continue
            self.idle.append(worker)
            self.deal()  # before the batch is used, so that workers go on meanwhile
            yield answer[0]


class _BaseDataLoaderIter(Iterator[Any]):
    """One pass over a loader; its length is that of the loader."""

    def __init__(self, loader: DataLoader, batches: Iterator[Any]) -> None:
        self._loader, self._batches = loader, batches

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        return len(self._loader)


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """A pass whose batches are made when they are asked for."""

    def __init__(self, loader: DataLoader) -> None:
        host_seed(loader.generator)  # what workers would be given: orders do not depend on them
        super().__init__(loader, loader._here())


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """A pass whose batches workers make ahead of time."""

    _workers: list[Worker]

    def __init__(self, loader: DataLoader) -> None:
        self._workers, batches = loader._ahead()
        super().__init__(loader, batches)

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except StopIteration:
            self._shutdown_workers()
            raise

    def __del__(self) -> None:
        if hasattr(self, "_batches"):
            self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        """Ends the pass, and its workers unless they are persistent."""
        if not self._loader.persistent_workers:
            _stop_all(self._workers)


def pin_memory(data: object, device: object = None) -> Any:
    """The data in memory that a GPU reads directly: what has a method `pin_memory` is asked for it,
    inside of containers too.
    """
    if hasattr(data, "pin_memory"):
        return data.pin_memory()
    if isinstance(data, Mapping):
        return {key: pin_memory(value) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(pin_memory, data))
    if isinstance(data, list | tuple):
        return type(data)(map(pin_memory, data))
    return data


def _pin_in_a_thread(batch: object) -> Any:
    """The batch pinned by this rank's own GPU: in a new thread the first of the host is current."""
    own_device()
    return pin_memory(batch)


_END = object()
_task_numbers = itertools.count()


def _stop_all(workers: list[Worker]) -> None:
    """Ends all workers and empties the list."""
    while workers:
        workers.pop().stop()
