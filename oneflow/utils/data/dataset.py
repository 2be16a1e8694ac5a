"""The sources of samples: by index (`Dataset`) or one after another (`IterableDataset`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import accumulate, chain
from typing import Any, Generic, TypeVar, cast

import numpy as np

from oneflow.core.operand import Index
from oneflow.functional.random_state import Generator, host_seed
from oneflow.tensor.tensor import Tensor

T = TypeVar("T", covariant=True)


class Dataset(Generic[T]):
    """A map from 0 ... len - 1 to samples; subclasses define `__getitem__`, and `__len__` where it
    is known.
    """

    def __getitem__(self, index: Any) -> T:
        raise NotImplementedError(f"{type(self).__name__} must define __getitem__(index)")

    def __add__(self, other: Dataset[Any]) -> ConcatDataset:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T]):
    """A stream of samples; subclasses define `__iter__`. Workers each iterate a copy: see
    `get_worker_info`.
    """

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError(f"{type(self).__name__} must define __iter__()")

    def __add__(self, other: Dataset[Any]) -> Any:
        return ChainDataset([self, other])


def length(dataset: object) -> int:
    """`len(dataset)`. Raises TypeError for one that does not know it."""
    return len(cast(Sized, dataset))


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is the tuple of row i of each tensor. Raises ValueError unless all have equally many
    rows.
    """

    def __init__(self, *tensors: Tensor) -> None:
        lengths = [len(t) for t in tensors]
        if len(set(lengths)) > 1:
            raise ValueError(f"Size mismatch between tensors: they have {lengths} rows")
        self.tensors = tensors

    def __getitem__(self, index: Index) -> tuple[Tensor, ...]:
        return tuple(tensor[index] for tensor in self.tensors)

    def __len__(self) -> int:
        return len(self.tensors[0]) if self.tensors else 0


class StackDataset(Dataset[Any]):
    """Samples of several data sets together: tuples of them, or dicts if they are given by name.

    Raises ValueError unless there is a data set, and all have equally many samples.
    """

    def __init__(self, *args: Dataset[Any], **kwargs: Dataset[Any]) -> None:
        if bool(args) == bool(kwargs):
            raise ValueError("StackDataset: give data sets either by position or by name")
        self.datasets: tuple[Any, ...] | dict[str, Any] = args or kwargs
        sizes = {length(data) for data in self._all()}
        if len(sizes) > 1:
            raise ValueError(f"Size mismatch between datasets: they have {sorted(sizes)} samples")
        self._length = sizes.pop()

    def _all(self) -> Sequence[Any]:
        return list(self.datasets.values()) if isinstance(self.datasets, dict) else self.datasets

    def _sample(self, parts: Sequence[Any]) -> Any:
        if isinstance(self.datasets, dict):
            return dict(zip(self.datasets, parts, strict=True))
        return tuple(parts)

    def __getitem__(self, index: int) -> Any:
        return self._sample([data[index] for data in self._all()])

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """The samples at several indices, read at once by those data sets that can."""
        columns = [read_several(data, indices) for data in self._all()]
        return [self._sample(parts) for parts in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return self._length


def read_several(dataset: Dataset[T], indices: Sequence[Any]) -> Sequence[T]:
    """The samples at `indices`. Raises ValueError if a data set that reads them at once gives
    another number.
    """
    several = getattr(dataset, "__getitems__", None)
    if several is None:
        return [dataset[i] for i in indices]
    samples: Sequence[T] = several(indices)
    if len(samples) != len(indices):
        raise ValueError(
            f"{type(dataset).__name__}.__getitems__ gave {len(samples)} samples for "
            f"{len(indices)} indices"
        )
    return samples


class ConcatDataset(Dataset[Any]):
    """One data set after another."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("datasets should not be an empty iterable")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise TypeError("ConcatDataset does not support IterableDataset; use ChainDataset")
        self.cumulative_sizes = list(accumulate(map(length, self.datasets)))

    @property
    def cummulative_sizes(self) -> list[int]:
        """`cumulative_sizes` under its older spelling."""
        return self.cumulative_sizes

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range for a data set of {len(self)} samples")
        index %= len(self)
        which = bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]


class ChainDataset(IterableDataset[Any]):
    """One stream after another."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = list(datasets)
        if not all(isinstance(d, IterableDataset) for d in self.datasets):
            raise TypeError("ChainDataset only supports IterableDataset")

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(cast("list[IterableDataset[Any]]", self.datasets))

    def __len__(self) -> int:
        return sum(map(length, self.datasets))


class Subset(Dataset[Any]):
    """The samples of `dataset` at `indices`."""

    def __init__(self, dataset: Dataset[Any], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: int | list[int]) -> Any:
        if isinstance(index, list):
            return self.dataset[[self.indices[i] for i in index]]
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """The samples at several indices, read at once if the data set can."""
        return read_several(self.dataset, [self.indices[i] for i in indices])

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Dataset[Any], lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset]:
    """Cuts a data set at random into parts of the given lengths, or fractions that add up to 1.

    Samples that fractions leave over are dealt out one by one to the first parts. Raises
    ValueError.
    """
    total = length(dataset)
    sizes = list(lengths)
    if abs(sum(sizes) - 1.0) < 1e-9 and all(0 <= size <= 1 for size in sizes):
        sizes = [int(total * size) for size in sizes]
        for i in range(total - int(sum(sizes))):
            sizes[i % len(sizes)] += 1
    if sum(sizes) != total:
        raise ValueError(
            f"Sum of input lengths {sum(sizes)} does not equal the length of the input dataset "
            f"{total}!"
        )
    order = np.random.default_rng(host_seed(generator)).permutation(total).tolist()
    ends = list(accumulate(int(size) for size in sizes))
    return [
        Subset(dataset, order[end - int(size) : end]) for size, end in zip(sizes, ends, strict=True)
    ]
