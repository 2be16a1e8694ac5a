"""The orders in which samples are read. Random orders follow our generator, so a seed fixes them on
every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from types import GenericAlias
from typing import Any

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.draws import mix_seed
from oneflow.functional.random_state import Generator, host_seed
from oneflow.utils.data.dataset import length

PIECE = 4096
"""Indices that are drawn at once: an epoch may have more draws than there is memory."""


def positive_integer(name: str, value: object) -> int:
    """`value` as an int of at least 1. Raises ValueError, as PyTorch's samplers do."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value <= 0:
        raise ValueError(f"{name} should be a positive integer value, but got {name}={value!r}")
    return int(value)


def require_bool(name: str, value: object, kind: type[Exception] = ValueError) -> None:
    """Raise an error of `kind` for anything but True and False."""
    if not isinstance(value, bool):
        raise kind(f"{name} should be a boolean value, but got {name}={value!r}")


def _pieces(count: int) -> Iterator[int]:
    """Sizes of the pieces in which `count` indices are drawn."""
    for first in range(0, count, PIECE):
        yield min(PIECE, count - first)


class Sampler:
    """An iterable of indices; subclasses define `__iter__`, and `__len__` where it is known."""

    @classmethod
    def __class_getitem__(cls, item: object) -> GenericAlias:
        """The class: annotations may name the items."""
        return GenericAlias(cls, item)

    def __init__(self, data_source: object = None) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")


class SequentialSampler(Sampler):
    """0, 1, 2, ..."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(length(self.data_source)))

    def __len__(self) -> int:
        return length(self.data_source)


class RandomSampler(Sampler):
    """All indices in a new random order each time; replacement: each drawn anew.

    num_samples: how many to draw, by default one per sample; more than that starts another order.
    """

    def __init__(
        self,
        data_source: object,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        super().__init__(data_source)
        require_bool("replacement", replacement, TypeError)
        self.replacement = replacement
        self._num_samples = (
            None if num_samples is None else positive_integer("num_samples", num_samples)
        )
        self.generator = generator

    @property
    def num_samples(self) -> int:
        return length(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(host_seed(self.generator))
        size = length(self.data_source)
        if self.replacement:
            for count in _pieces(self.num_samples if size else 0):
                yield from rng.integers(size, size=count).tolist()
            return
        left = self.num_samples
        while left > 0 and size > 0:
            yield from rng.permutation(size)[:left].tolist()
            left -= size

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler):
    """The given indices in a new random order each time."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        super().__init__()
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order = np.random.default_rng(host_seed(self.generator)).permutation(len(self.indices))
        yield from (self.indices[i] for i in order.tolist())

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler):
    """Indices drawn in proportion to `weights` (any non-negative numbers)."""

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.weights = np.asarray(weights, dtype=np.float64)
        num_samples = positive_integer("num_samples", num_samples)
        require_bool("replacement", replacement)
        if self.weights.ndim != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {self.weights.shape}"
            )
        total = self.weights.sum()
        if (self.weights < 0).any() or not (0 < total < math.inf):
            raise ValueError("weights should be finite numbers >= 0, not all of them 0")
        if not replacement and num_samples > int((self.weights > 0).sum()):
            raise ValueError(
                f"cannot draw {num_samples} samples without replacement from "
                f"{int((self.weights > 0).sum())} positive weights"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng(host_seed(self.generator))
        share = self.weights / self.weights.sum()
        if not self.replacement:
            yield from rng.choice(len(share), self.num_samples, replace=False, p=share).tolist()
            return
        below = share.cumsum()
        below /= below[-1]
        for count in _pieces(self.num_samples):
            yield from below.searchsorted(rng.random(count), side="right").tolist()

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler):
    """Lists of batch_size indices of another sampler. drop_last: leave out a last list that is
    shorter.
    """

    def __init__(self, sampler: Iterable[Any], batch_size: int, drop_last: bool) -> None:
        super().__init__()
        require_bool("drop_last", drop_last)
        self.sampler = sampler
        self.batch_size = positive_integer("batch_size", batch_size)
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in self.sampler:
            batch.append(index)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        count = length(self.sampler)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)


class DistributedSampler(Sampler):
    """This rank's share of the indices: every num_replicas-th, from `rank` on, of one order that
    all ranks share.

    The share has the same length on all ranks: the order is filled up from its beginning, or cut if
    drop_last. Call `set_epoch(n)` before each epoch for another order. The defaults are this
    process's rank and world size.
    """

    def __init__(
        self,
        dataset: object,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset)
        self.dataset = dataset
        self.num_replicas = current_config().world_size if num_replicas is None else num_replicas
        self.rank = current_config().rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"Invalid rank {self.rank}, rank should be in the interval [0, "
                f"{self.num_replicas - 1}]"
            )
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    @property
    def num_samples(self) -> int:
        """Length of each rank's share."""
        shares = length(self.dataset) / self.num_replicas
        return math.floor(shares) if self.drop_last else math.ceil(shares)

    @property
    def total_size(self) -> int:
        """Length of all shares together."""
        return self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        order = np.arange(length(self.dataset))
        if self.shuffle:
            order = np.random.default_rng(mix_seed(self.seed, self.epoch)).permutation(order)
        if len(order):
            order = np.resize(order, self.total_size)  # repeats from the beginning, or cuts
        return iter(order[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order: the same for the same epoch and seed."""
        self.epoch = epoch
