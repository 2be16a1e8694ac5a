"""Inner names of `torch.utils.data` that loaders made by others ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from oneflow.core.errors import OneFlowError
from oneflow.cuda import is_available
from oneflow.functional.random_state import host_seed
from oneflow.utils.data import dataloader
from oneflow.utils.data.dataset import length
from oneflow.utils.data.worker import Fetcher, Work

MP_STATUS_CHECK_INTERVAL = 5.0
python_exit_status = False
HAS_NUMPY = True
_collate_fn_t = _worker_init_fn_t = _DataPipeLike = object


class _DatasetKind:
    """Kinds of data sets: with numbers, or streams."""

    Map = 0
    Iterable = 1

    @staticmethod
    def create_fetcher(
        kind: int,
        dataset: Any,
        auto_collation: bool,
        collate_fn: Callable[[Any], Any],
        drop_last: bool,
    ) -> Any:
        """Return an object whose `fetch(indices)` gives a batch."""
        work = Work(dataset, collate_fn, auto_collation, kind == 1, drop_last, None, 0, 0)
        return Fetching(work)


class Fetching:
    """PyTorch's interface of a batch maker: `fetch(indices)`, and the state of a stream."""

    def __init__(self, work: Work) -> None:
        self._fetcher = Fetcher(work)
        self.dataset = work.dataset

    def fetch(self, possibly_batched_index: object) -> Any:
        """Return the batch of these numbers."""
        return self._fetcher.fetch(possibly_batched_index)

    @property
    def dataset_iter(self) -> Any:
        """The pass over a stream, which a loader that resumes replaces."""
        return self._fetcher.stream

    @dataset_iter.setter
    def dataset_iter(self, stream: Iterator[Any]) -> None:
        self._fetcher.stream = stream

    @property
    def ended(self) -> bool:
        """Whether the stream has ended."""
        return self._fetcher.is_over

    @ended.setter
    def ended(self, is_over: bool) -> None:
        self._fetcher.is_over = is_over


class _BaseDataLoaderIter(Iterator[Any]):
    """A pass over a loader for subclasses that say `_next_data`, with the members that they read.

    Passes of this library's own loaders are instances as well.
    """

    def __init__(self, loader: dataloader.DataLoader) -> None:
        self._dataset, self._dataset_kind = loader.dataset, loader._dataset_kind
        self._auto_collation, self._drop_last = loader._auto_collation, loader.drop_last
        self._index_sampler, self._collate_fn = loader._index_sampler, loader.collate_fn
        self._num_workers, self._timeout = loader.num_workers, loader.timeout
        self._pin_memory = loader.pin_memory and is_available()
        self._pin_memory_device = loader.pin_memory_device
        self._persistent_workers = loader.persistent_workers
        self._world_size, self._rank, self._pg = 1, 0, None  # pipes of data are not cut here
        self._start(loader)

    def _start(self, loader: dataloader.DataLoader) -> None:
        self._sampler_iter = iter(self._index_sampler)
        self._base_seed, self._shared_seed = host_seed(loader.generator), None
        self._num_yielded = 0
        self._IterableDataset_len_called = getattr(loader, "_IterableDataset_len_called", None)

    def _reset(self, loader: dataloader.DataLoader, first_iter: bool = False) -> None:
        """Begin the pass anew."""
        self._start(loader)

    def _next_index(self) -> Any:
        """Return the next number, or list of numbers, of samples."""
        return next(self._sampler_iter)

    def _next_data(self) -> Any:
        """Return the next batch."""
        raise OneFlowError(f"{type(self).__name__}: a pass over a loader needs a method _next_data")

    def __next__(self) -> Any:
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def __len__(self) -> int:
        count: int = length(self._index_sampler)
        return count


_BaseDataLoaderIter.register(dataloader._SingleProcessDataLoaderIter)
_BaseDataLoaderIter.register(dataloader._MultiProcessingDataLoaderIter)


class _InfiniteConstantSampler:
    """None for ever: the numbers of a stream's samples."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None


class _IterableDatasetStopIteration:
    """A worker's word that its copy of a stream has ended."""

    def __init__(self, worker_id: int) -> None:
        self.worker_id = worker_id


class _ResumeIteration:
    """The main process's word that a new pass begins."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed


class ManagerWatchdog:
    """A worker's look at its parent: whether it is still there."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def is_alive(self) -> bool:
        """Return whether the parent that began the watch is still there."""
        return os.getppid() == self._parent


def _generate_state(base_seed: int, worker_id: int) -> list[int]:
    """Return four numbers for NumPy's generator in a worker."""
    made = np.random.SeedSequence([base_seed, worker_id]).generate_state(4)
    return [int(number) for number in made]


def _set_nothing(*_: object, **__: object) -> None:
    """Change nothing: signals of workers are looked after by the loader."""


_set_worker_signal_handlers = _set_worker_pids = _set_SIGCHLD_handler = _set_nothing
_remove_worker_pids = _error_if_any_worker_fails = _sharding_worker_init_fn = _set_nothing


def traverse(datapipe: object) -> dict[int, Any]:
    """Return an empty graph: pipes of data are plain iterables."""
    return {}


traverse_dps, get_all_graph_pipes = traverse, _set_nothing


def apply_random_seed(datapipe: object, *_: object, **__: object) -> Any:
    """Return the pipe as it is: `flow.manual_seed` seeds the shuffling."""
    return datapipe


apply_shuffle_settings = apply_shuffle_seed = apply_sharding = apply_random_seed
