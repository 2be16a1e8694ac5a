"""Inner names of `torch.utils.data` that loaders made by others ask for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

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
    """PyTorch's interface of a batch maker: `fetch(indices)`."""

    def __init__(self, work: Work) -> None:
        self._fetcher = Fetcher(work)
        self.dataset, self.ended = work.dataset, False

    def fetch(self, possibly_batched_index: object) -> Any:
        """Return the batch of these numbers."""
        return self._fetcher.fetch(possibly_batched_index)


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
