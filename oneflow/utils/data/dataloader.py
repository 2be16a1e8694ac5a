"""Batches of a data set, made here or ahead of time by worker processes."""

from __future__ import annotations

import itertools
import multiprocessing
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from types import GenericAlias
from typing import Any

from oneflow.functional.random_state import Generator, host_seed
from oneflow.utils.data.collate import default_collate, default_convert
from oneflow.utils.data.dataset import Dataset, IterableDataset, length
from oneflow.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from oneflow.utils.data.worker import Fetcher, Work, Worker


class _Forever:
    """The sampler of a stream: as many indices as it has samples, all None."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


class DataLoader:
    """An iterable of batches, in the order of the sampler whatever the number of workers.

    batch_size: samples a batch, None for single samples.  shuffle: a new random order each epoch,
    by `generator`.
    sampler, batch_sampler: own orders of indices or lists of indices.  collate_fn: from a list of
    samples to a batch.
    num_workers: processes that read ahead, 0 for none; each prepares prefetch_factor batches (2 by
    default).
    persistent_workers: keep them between epochs.  timeout: seconds to wait for a batch, 0 for ever.
    worker_init_fn: called with the worker's number in each worker.  multiprocessing_context:
    "forkserver" by default, because processes with threads must not be forked; the script is then
    imported by the workers.  pin_memory is accepted and changes nothing. Raises ValueError for
    arguments that exclude each other, and a worker's exceptions with its traceback.
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
    ) -> None:
        self.dataset = dataset
        self.is_stream = isinstance(dataset, IterableDataset)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.num_workers, self.timeout = num_workers, timeout
        self.worker_init_fn, self.generator = worker_init_fn, generator
        self.prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self.persistent_workers, self.pin_memory = persistent_workers, pin_memory
        self.multiprocessing_context = multiprocessing_context
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

    def __iter__(self) -> Iterator[Any]:
        """Draw the seed of the workers now, as PyTorch does, and without any: orders do not depend
        on them, and what a script does to the generator before the first batch counts after it.
        """
        seed = host_seed(self.generator)
        return self._here() if self.num_workers == 0 else self._ahead(seed)

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

    def _here(self) -> Iterator[Any]:
        fetcher = Fetcher(self._work(0))
        for indices in self._indices():
            try:
                batch = fetcher.fetch(indices)
            except StopIteration:
                return
            yield batch

    # ---- with workers ----------------------------------------------------------------------------

    def _ahead(self, seed: int) -> Iterator[Any]:
        workers = self._workers if self.persistent_workers else []
        self._epoch += 1
        try:
            if not workers:
                self._start(workers)
            for worker in workers:
                worker.begin_epoch(seed)
            yield from self._in_order(workers, self._epoch)
        except GeneratorExit:  # the caller has left the loop early
            if not self.persistent_workers:
                _stop_all(workers)
            raise
        except BaseException:
            self._discard(workers)
            raise
        if not self.persistent_workers:
            _stop_all(workers)

    def _start(self, workers: list[Worker]) -> None:
        context = self.multiprocessing_context
        if context is None or isinstance(context, str):
            context = multiprocessing.get_context(context or _default_start_method())
        for worker_id in range(self.num_workers):
            workers.append(Worker(self._work(worker_id), context))
        if self.persistent_workers:
            self._kept = weakref.finalize(self, _stop_all, workers)

    def _discard(self, workers: list[Worker]) -> None:
        if self._kept is not None:
            self._kept.detach()
            self._kept = None
        _stop_all(workers)

    def _in_order(self, workers: list[Worker], epoch: int) -> Iterator[Any]:
        """Deals tasks to the workers in turn and hands out the answers in the same order."""
        indices = iter(self._indices())
        idle = deque(workers * self.prefetch_factor)
        pending: deque[tuple[int, Worker]] = deque()
        ended: set[int] = set()

        def deal() -> None:
            while idle:
                worker = idle.popleft()
                task = _END if worker.id in ended else next(indices, _END)
                if task is not _END:
                    number = next(_task_numbers)
                    worker.ask(number, task)
                    pending.append((number, worker))

        deal()
        while pending:
            if self.persistent_workers and epoch != self._epoch:
                raise RuntimeError(
                    "DataLoader: a second iteration has taken over the persistent workers of "
                    "this one; "
                    "finish one loop before the next, or set persistent_workers=False"
                )
            number, worker = pending.popleft()
            answer = worker.answer(number, self.timeout)
            if answer is None:
                ended.add(worker.id)
                continue
            idle.append(worker)
            deal()  # before the batch is used, so that workers go on meanwhile
            yield answer[0]


_END = object()
_task_numbers = itertools.count()


def _default_start_method() -> str:
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods else "spawn"


def _stop_all(workers: list[Worker]) -> None:
    """Ends all workers and empties the list."""
    while workers:
        workers.pop().stop()
