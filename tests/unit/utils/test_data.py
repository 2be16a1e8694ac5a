"""Data sets, samplers and collation: orders and values, one process."""

from __future__ import annotations

from collections import namedtuple
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch.utils.data as theirs

from oneflow.core.dtype import bool_, float32, float64, int64
from oneflow.functional.random_state import Generator, manual_seed
from oneflow.tensor.tensor import wrap
from oneflow.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    get_worker_info,
    random_split,
)
from oneflow.utils.data.collate import collate


class Squares(Dataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return index * index


class Count(IterableDataset[int]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        return iter(range(self.size))

    def __len__(self) -> int:
        return self.size


Pair = namedtuple("Pair", "x y")


def values(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


def test_tensor_dataset_gives_rows_and_refuses_different_lengths() -> None:
    x = wrap(np.arange(6, dtype=np.float32).reshape(3, 2))
    y = wrap(np.array([5, 6, 7]))
    data = TensorDataset(x, y)
    assert len(data) == 3
    row, label = data[1]
    assert row.tolist() == [2.0, 3.0] and label.item() == 6
    with pytest.raises(ValueError, match="Size mismatch"):
        TensorDataset(x, wrap(np.zeros(2)))


def test_concat_subset_and_chain_find_the_right_sample() -> None:
    both = Squares(3) + Squares(4)
    assert isinstance(both, ConcatDataset) and len(both) == 7
    assert [both[i] for i in range(7)] == [0, 1, 4, 0, 1, 4, 9]
    assert both[-1] == 9
    with pytest.raises(IndexError, match="out of range"):
        both[7]
    assert [*Subset(both, [6, 0, 2])] == [9, 0, 4]
    chained = ChainDataset([Count(2), Count(3)])
    assert list(chained) == [0, 1, 0, 1, 2] and len(chained) == 5
    with pytest.raises(TypeError, match="ChainDataset"):
        ConcatDataset([Count(2)])


def test_random_split_covers_all_once_and_follows_the_seed() -> None:
    parts = random_split(Squares(10), [7, 3], Generator().manual_seed(3))
    again = random_split(Squares(10), [7, 3], Generator().manual_seed(3))
    assert [p.indices for p in parts] == [p.indices for p in again]
    assert sorted([*parts[0].indices, *parts[1].indices]) == list(range(10))
    assert [len(p) for p in random_split(Squares(10), [0.5, 0.25, 0.25])] == [6, 2, 2]
    with pytest.raises(ValueError, match="Sum of input lengths"):
        random_split(Squares(10), [7, 4])


def test_random_sampler_permutes_anew_and_repeats_under_a_seed() -> None:
    sampler = RandomSampler(range(20), generator=Generator().manual_seed(1))
    first, second = list(sampler), list(sampler)
    assert first != second and sorted(first) == sorted(second) == list(range(20))
    assert list(RandomSampler(range(20), generator=Generator().manual_seed(1))) == first
    assert len(list(RandomSampler(range(4), num_samples=10))) == 10
    drawn = list(RandomSampler(range(4), replacement=True, num_samples=100))
    assert len(drawn) == 100 and set(drawn) == {0, 1, 2, 3}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_draws_its_seed_when_it_is_made(workers: int) -> None:
    """A generator that is set before the first batch is where it was set to."""
    generator = Generator().manual_seed(5)
    loader = DataLoader(Squares(4), num_workers=workers, generator=generator)
    before = generator.position
    batches = iter(loader)
    drawn = generator.position
    assert drawn != before
    if not workers:
        assert len(list(batches)) == 4 and generator.position == drawn


def test_shuffling_follows_manual_seed() -> None:
    loader = DataLoader(Squares(8), batch_size=3, shuffle=True)
    manual_seed(5)
    first = values(loader)
    manual_seed(5)
    assert values(loader) == first
    assert sorted(chain(*first)) == [i * i for i in range(8)]


def test_subset_and_weighted_samplers_draw_what_they_may() -> None:
    assert sorted(SubsetRandomSampler([3, 1, 7])) == [1, 3, 7]
    drawn = list(WeightedRandomSampler([0, 1, 3], 4000, generator=Generator().manual_seed(0)))
    counts = np.bincount(drawn, minlength=3)
    # binomial with p = 3/4: standard deviation 27
    assert counts[0] == 0 and abs(counts[2] - 3000) < 150
    assert sorted(WeightedRandomSampler([1, 0, 2], 2, replacement=False)) == [0, 2]
    with pytest.raises(ValueError, match="without replacement"):
        WeightedRandomSampler([1, 0, 2], 3, replacement=False)


def test_batch_sampler_keeps_or_drops_the_rest() -> None:
    assert list(BatchSampler(SequentialSampler(range(5)), 2, False)) == [[0, 1], [2, 3], [4]]
    assert list(BatchSampler(SequentialSampler(range(5)), 2, True)) == [[0, 1], [2, 3]]
    assert len(BatchSampler(SequentialSampler(range(5)), 2, False)) == 3
    with pytest.raises(ValueError, match="batch_size"):
        BatchSampler(range(3), 0, False)


@pytest.mark.parametrize("shuffle", [False, True])
def test_distributed_shares_are_disjoint_equally_long_and_change_by_epoch(shuffle: bool) -> None:
    shares = [DistributedSampler(range(10), 4, rank, shuffle, seed=2) for rank in range(4)]
    orders = [list(s) for s in shares]
    assert [len(o) for o in orders] == [len(s) for s in shares] == [3] * 4
    assert {*chain(*orders)} == set(range(10))
    dropped = [list(DistributedSampler(range(10), 4, r, shuffle, drop_last=True)) for r in range(4)]
    assert [len(o) for o in dropped] == [2] * 4 and len(set(chain(*dropped))) == 8
    if shuffle:
        for share in shares:
            share.set_epoch(1)
        assert [list(s) for s in shares] != orders
    else:
        assert orders[1] == [1, 5, 9]
    with pytest.raises(ValueError, match="Invalid rank 4"):
        DistributedSampler(range(10), 4, 4)


def test_distributed_sampler_repeats_a_data_set_smaller_than_the_world() -> None:
    assert [list(DistributedSampler(range(2), 5, r, False)) for r in range(5)] == [
        [0],
        [1],
        [0],
        [1],
        [0],
    ]


Point = namedtuple("Point", "x y")


def test_collate_stacks_and_keeps_containers() -> None:
    batch = default_collate([{"a": 1, "b": Point(2.0, "p")}, {"a": 3, "b": Point(4.0, "q")}])
    assert batch["a"].dtype is int64 and batch["a"].tolist() == [1, 3]
    assert (
        isinstance(batch["b"], Point)
        and batch["b"].x.dtype is float64
        and batch["b"].y == ("p", "q")
    )
    rows = default_collate([(np.ones(3, np.float32), True), (np.zeros(3, np.float32), False)])
    assert rows[0].shape == (2, 3) and rows[0].dtype is float32 and rows[1].dtype is bool_
    tensors = default_collate([wrap(np.full((2,), i)) for i in range(3)])
    assert tensors.tolist() == [[0, 0], [1, 1], [2, 2]]
    with pytest.raises(ValueError, match="equal size"):
        default_collate([[1], [1, 2]])
    with pytest.raises(TypeError, match="found object"):
        default_collate([object()])


def test_loader_batches_in_order() -> None:
    loader = DataLoader(Squares(5), batch_size=2)
    assert values(loader) == [[0, 1], [4, 9], [16]] and len(loader) == 3
    assert values(DataLoader(Squares(5), batch_size=2, drop_last=True)) == [[0, 1], [4, 9]]
    assert list(DataLoader(Squares(3), batch_size=None)) == [0, 1, 4]
    assert list(DataLoader(Squares(3), batch_sampler=[[2, 0], [1]], collate_fn=list)) == [
        [4, 0],
        [1],
    ]
    assert values(DataLoader(Squares(4), sampler=[3, 2, 0], batch_size=2)) == [[9, 4], [0]]
    assert get_worker_info() is None


def test_loader_reads_streams() -> None:
    assert values(DataLoader(Count(5), batch_size=2)) == [[0, 1], [2, 3], [4]]
    loader = DataLoader(Count(5), batch_size=2, drop_last=True)
    assert values(loader) == [[0, 1], [2, 3]] and len(loader) == 2
    assert list(DataLoader(Count(3), batch_size=None)) == [0, 1, 2]


def test_loader_refuses_arguments_that_exclude_each_other() -> None:
    for bad in (
        {"shuffle": True, "sampler": [0]},
        {"batch_sampler": [[0]], "batch_size": 2},
        {"prefetch_factor": 3},
        {"persistent_workers": True},
        {"num_workers": -1},
        {"batch_size": None, "drop_last": True},
    ):
        with pytest.raises(ValueError):
            DataLoader(Squares(3), **bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="its own order"):
        DataLoader(Count(3), shuffle=True)


def test_loaders_and_samplers_name_their_items_in_annotations() -> None:
    class Own(Sampler[list[int]]):
        pass

    assert issubclass(Own, Sampler)
    assert DataLoader[int].__origin__ is DataLoader


class Bag(dict[str, Any]):
    """A mapping that knows more than its items."""

    note = ""


def bag(note: str, **items: Any) -> Bag:
    made = Bag(items)
    made.note = note
    return made


SAMPLES: dict[str, list[Any]] = {
    "numbers": [1, 2, 3],
    "floats": [1.5, 2.5],
    "bools": [True, False],
    "scalars": [np.float32(1.5), np.float32(2)],
    "texts": ["a", "b"],
    "arrays": [np.arange(3), np.arange(3) + 1],
    "arrays without dims": [np.array(2), np.array(3)],
    "tuples": [(1, "a"), (2, "b")],
    "lists": [[1, 2.0], [3, 4.0]],
    "dicts": [{"x": 1, "y": [2]}, {"x": 3, "y": [4]}],
    "named": [Pair(1, "a"), Pair(2, "b")],
    "special dicts": [bag("n", x=1), bag("m", x=2)],
}


def plain(value: Any) -> Any:
    """A batch without tensors; kinds of containers stay visible."""
    if hasattr(value, "tolist"):
        return (str(value.dtype).split(".")[-1], value.tolist())
    if isinstance(value, Bag):
        return ("Bag", value.note, {k: plain(v) for k, v in value.items()})
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return (type(value).__name__, *map(plain, value))
    return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", SAMPLES)
def test_batches_are_those_of_pytorch(name: str) -> None:
    samples = SAMPLES[name]
    assert plain(default_collate(samples)) == plain(theirs.default_collate(samples))
    assert plain(default_convert(samples)) == plain(theirs.default_convert(samples))


def test_a_row_of_the_table_counts_for_its_type() -> None:
    class Range:
        def __init__(self, low: int, high: int) -> None:
            self.low, self.high = low, high

    def hull(batch: list[Range], *, collate_fn_map: object = None) -> tuple[int, int]:
        return min(r.low for r in batch), max(r.high for r in batch)

    samples = [{"r": Range(3, 5)}, {"r": Range(1, 4)}]
    with pytest.raises(TypeError, match="found Range"):
        default_collate(samples)
    assert collate(samples, collate_fn_map={Range: hull}) == {"r": (1, 5)}


def test_arguments_that_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="multiprocessing_context"):
        DataLoader(Squares(3), multiprocessing_context="fork")
    with pytest.raises(ValueError, match="equal size"):
        default_collate([[1, 2], [3]])
    with pytest.raises(ValueError, match="equal size"):
        default_collate([np.zeros(2), np.zeros(3)])


def test_fractions_that_do_not_divide_leave_the_rest_to_the_first() -> None:
    for fractions in ([0.5, 0.5], [0.3, 0.3, 0.4], [0.9, 0.1]):
        own = random_split(Squares(11), fractions)
        other = theirs.random_split(range(11), fractions)  # type: ignore[arg-type]
        assert [len(part) for part in own] == [len(part) for part in other]
        assert sorted(chain(*(part.indices for part in own))) == list(range(11))
