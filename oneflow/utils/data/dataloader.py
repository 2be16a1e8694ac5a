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
from oneflow.surfaces import accept_paths
from oneflow.utils.data.collate import default_collate, default_convert
from oneflow.utils.data.dataset import Dataset, IterableDataset, length
from oneflow.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from oneflow.utils.data.worker import Exhausted, Failure, Fetcher, Work, Worker


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
    """An iterable of batches, in the order of the sampler with any number of workers.

    batch_size: samples a batch, None for single samples.  shuffle: a new random order each epoch,
    by `generator`.
    sampler, batch_sampler: own orders of indices or lists of indices.  collate_fn: from a list of
    samples to a batch.
    num_workers: processes that read ahead, 0 for none; each prepares prefetch_factor batches (2 by
    default, None without workers).
    persistent_workers: keep them between epochs.  timeout: seconds to wait for a batch, 0 for ever.
    worker_init_fn: called with the worker's number in each worker.  multiprocessing_context: how
    workers are started, by default as Python does: forked before 3.14; where they are not, they
    import the script.  pin_memory: batches are pinned for a GPU, if there is one: with workers as
    they arrive, before they are asked for.  in_order is accepted: batches always come in order.
    Raises ValueError for arguments that exclude each other. The error of a sample takes the place
    of its batch, with the traceback of its worker; `next()` then goes on with the batch after it.
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
        if prefetch_factor is None and num_workers > 0:
            prefetch_factor = 2
        self.prefetch_factor = prefetch_factor
        self.persistent_workers, self.pin_memory = persistent_workers, pin_memory
        self.multiprocessing_context = multiprocessing_context
        self.pin_memory_device, self.in_order = pin_memory_device, in_order
        self._check(shuffle, sampler, batch_sampler)
        self._choose_samplers(bool(shuffle), sampler, batch_sampler)
        is_batched = self.batch_sampler is not None
        self.collate_fn = collate_fn or (default_collate if is_batched else default_convert)
        self._workers: list[Worker] = []
        self._epoch = 0
        self._kept: weakref.finalize[..., Any] | None = None

    def _check(
        self,
        shuffle: bool | None,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
    ) -> None:
        self._check_workers()
        if self.is_stream:
            given = {"shuffle": shuffle or None, "sampler": sampler, "batch_sampler": batch_sampler}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(
                        f"DataLoader with IterableDataset: expected unspecified {name} option, but "
                        f"got {name}={value!r}: the data set has its own order"
                    )
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (
            self.batch_size != 1 or shuffle or sampler is not None or self.drop_last
        ):
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, "
                "sampler, and drop_last"
            )
        if batch_sampler is None and self.batch_size is None and self.drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with "
                "drop_last"
            )

    def _check_workers(self) -> None:
        if self.num_workers < 0:
            raise ValueError(
                "num_workers option should be non-negative; use num_workers=0 to disable "
                f"multiprocessing, got {self.num_workers}"
            )
        if self.timeout < 0:
            raise ValueError(f"timeout option should be non-negative, got {self.timeout}")
        if self.num_workers == 0 and self.prefetch_factor is not None:
            raise ValueError(
                "prefetch_factor option could only be specified in multiprocessing. let "
                "num_workers > 0 to enable multiprocessing, otherwise set prefetch_factor to None"
            )
        if self.num_workers == 0 and self.persistent_workers:
            raise ValueError("persistent_workers option needs num_workers > 0")
        if self.num_workers == 0 and self.multiprocessing_context is not None:
            raise ValueError("multiprocessing_context can only be used with num_workers > 0")
        if self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor must be at least 1, got {self.prefetch_factor}")

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
        if self._dataset_kind == DatasetKind.Iterable:  # which subclasses of others set as well
            size = length(self.dataset)
            if self.batch_size is None:
                return size
            return size // self.batch_size if self.drop_last else -(-size // self.batch_size)
        return length(self._index_sampler)

    @property
    def _auto_collation(self) -> bool:
        """Whether samples are put together; under the name that loaders made by others ask for."""
        return self.batch_sampler is not None

    @property
    def _index_sampler(self) -> Iterable[Any]:
        """The order of the data: of lists of indices, or of single ones."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    def check_worker_number_rationality(self) -> None:
        """Return at once: the number of workers is a program's own choice."""

    def _get_shared_seed(self) -> None:
        """Return None: ranks share the seed of `flow.manual_seed`."""

    def __iter__(self) -> _BaseDataLoaderIter:
        """Draw the seed of the workers now, as PyTorch does, and without any: orders do not depend
        on them, and changes of the generator before the first batch count after it.
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

    # ---- with workers ----------------------------------------------------------------------------

    def _ahead(self) -> tuple[list[Worker], _Queue]:
        """Workers, which are at work before the first batch is asked for, and their tasks."""
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
        return workers, queue

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
    """The tasks of one epoch, dealt to the workers in turn; answers come out in the same order.

    An error of a sample, or of the sampler, takes the place of its batch; those after it follow.
    """

    def __init__(self, loader: DataLoader, workers: list[Worker]) -> None:
        self.timeout = loader.timeout
        self.indices = iter(loader._index_sampler)
        self.idle = deque(workers * (loader.prefetch_factor or 1))
        self.pending: deque[tuple[int, Worker] | Exception] = deque()
        self.ended: set[int] = set()

    def deal(self) -> None:
        """Gives every worker that has nothing to do the next task."""
        while self.idle and not (self.pending and isinstance(self.pending[-1], Exception)):
            worker = self.idle[0]
            if worker.id not in self.ended:
                try:
                    task = next(self.indices)
                except StopIteration:
                    self.indices = iter(())  # an iterator of a user's may begin anew
                    return
                except Exception as error:  # of the sampler: raised when its turn comes
                    self.pending.append(error)
                    return
                number = next(_task_numbers)
                worker.ask(number, task)
                self.pending.append((number, worker))
            self.idle.popleft()

    def next(self) -> Any:
        """The next batch. Raises the error that there is in its place, StopIteration at the end;
        after a RuntimeError for a batch that takes too long the same batch is waited for again.
        """
        while self.pending:
            first = self.pending[0]
            if isinstance(first, Exception):
                self._done()
                raise first
            number, worker = first
            answer = worker.answer(number, self.timeout)
            if isinstance(answer, Exhausted) or worker.id in self.ended:
                self.pending.popleft()
                self.ended.add(worker.id)
                continue
            self.idle.append(worker)
            self._done()
            if isinstance(answer, Failure):
                answer.reraise()
            return answer
        raise StopIteration

    def _done(self) -> None:
        """Go on to the next task, before the batch is used, so that workers go on meanwhile."""
        self.pending.popleft()
        self.deal()


def _as_loader(loader: DataLoader) -> DataLoader:
    """Return the loader; of another class, a loader with the attributes that PyTorch's passes read.

    fastai's loader, for one, is none of ours, and hands an object with these to a pass.
    """
    if isinstance(loader, DataLoader):
        return loader
    made = object.__new__(DataLoader)
    names = "dataset num_workers timeout drop_last collate_fn worker_init_fn generator "
    names += "multiprocessing_context prefetch_factor pin_memory"
    for name in names.split():
        setattr(made, name, getattr(loader, name))
    made._dataset_kind = loader._dataset_kind
    made.is_stream = loader._dataset_kind == DatasetKind.Iterable
    made.sampler = loader._index_sampler
    made.batch_sampler = made.sampler if loader._auto_collation else None
    made.persistent_workers = False  # the loader itself would have to keep them
    made._workers, made._epoch, made._kept = [], 0, None
    return made


class _BaseDataLoaderIter(Iterator[Any]):
    """One pass over a loader; its length is that of the loader."""

    _loader: DataLoader

    def __init__(self, loader: DataLoader) -> None:
        self._loader = _as_loader(loader)

    def __len__(self) -> int:
        return len(self._loader)


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """A pass whose batches are made when they are asked for."""

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader)
        loader = self._loader
        host_seed(loader.generator)  # what workers would be given: orders do not depend on them
        self._indices = iter(loader._index_sampler)
        self._fetcher, self._pins = Fetcher(loader._work(0)), loader._pins()

    def __next__(self) -> Any:
        batch = self._fetcher.fetch(next(self._indices))
        return pin_memory(batch) if self._pins else batch


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """A pass whose batches workers make ahead of time."""

    _workers: list[Worker]

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader)
        loader = self._loader
        self._workers, self._queue = loader._ahead()
        self._epoch, self._death = loader._epoch, ""

    def __next__(self) -> Any:
        if self._death:
            raise RuntimeError(self._death)
        self._loader._check_epoch(self._epoch)
        try:
            return self._queue.next()
        except StopIteration:
            if not self._queue.pending:
                self._shutdown_workers()
            raise
        except RuntimeError as error:
            if any(worker.is_dead for worker in self._workers):
                self._death = str(error)
                self._loader._discard(self._workers)
            raise

    def __del__(self) -> None:
        if hasattr(self, "_queue"):
            self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        """Ends the pass, and its workers unless they are persistent."""
        if not self._loader.persistent_workers:
            _stop_all(self._workers)


def pin_memory(data: object, device: object = None) -> Any:
    """Copy the data into memory that a GPU reads directly: objects with a method `pin_memory` are
    asked for it, inside of containers too.
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


_task_numbers = itertools.count()


def _stop_all(workers: list[Worker]) -> None:
    """Ends all workers and empties the list."""
    while workers:
        workers.pop().stop()


accept_paths(__name__)
