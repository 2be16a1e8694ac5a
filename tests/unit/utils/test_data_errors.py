"""A pass over a loader goes on after an error, and asks a stream for its iterator once."""

from __future__ import annotations

import itertools
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from oneflow.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)


class Rows(Dataset[int]):
    """Sample i is i; those in `bad` raise `error`."""

    def __init__(self, bad: tuple[int, ...], error: type[Exception] = KeyError) -> None:
        self.bad, self.error = bad, error

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise self.error(f"sample {index}")
        return index


class Stream(IterableDataset[int]):
    """0 to 8, of which those in `bad` raise; its own iterator, which counts how often it began."""

    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        self.bad, self.began = bad, 0

    def __iter__(self) -> Iterator[int]:
        self.began += 1
        self.at = -1
        return self

    def __next__(self) -> int:
        self.at += 1
        if self.at >= 9:
            raise StopIteration
        if self.at in self.bad:
            raise KeyError(f"sample {self.at}")
        return self.at * 10 + self.began


def outcomes(loader: DataLoader, most: int = 30) -> list[Any]:
    """Batches and names of errors, until the end or `most` of them."""
    found: list[Any] = []
    batches = iter(loader)
    while len(found) < most:
        try:
            batch = next(batches)
        except StopIteration as error:
            if not error.args:
                return found
            found.append("StopIteration")
        except Exception as error:
            found.append(type(error).__name__)
        else:
            found.append(batch.tolist() if hasattr(batch, "tolist") else batch)
    return found


class Refusing(Exception):
    """An error whose constructor wants two arguments."""

    def __init__(self, one: str, two: str = "") -> None:
        super().__init__(one, two)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("error", "workers"),
    [
        *itertools.product(
            (KeyError, ValueError, RuntimeError, IndexError, StopIteration, Refusing), (0, 1)
        ),
        (KeyError, 2),
        (StopIteration, 2),
    ],
)
def test_a_bad_sample_is_the_error_of_its_batch(
    error: type[Exception], workers: int, persistent: bool
) -> None:
    if persistent and not workers:
        return
    loader = DataLoader(
        Rows((3, 4, 8), error), 2, num_workers=workers, persistent_workers=persistent
    )
    name = error.__name__
    for _ in range(2):
        assert outcomes(loader) == [[0, 1], name, name, [6, 7], name]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_without_batches(workers: int) -> None:
    loader = DataLoader(Rows((1, 2)), None, num_workers=workers)
    assert outcomes(loader) == [0, "KeyError", "KeyError", 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_collation_is_the_error_of_its_batch(workers: int) -> None:
    def collate(samples: list[int]) -> list[int]:
        if 4 in samples:
            raise ValueError("4")
        return samples

    loader = DataLoader(Rows(()), 3, num_workers=workers, collate_fn=collate)
    assert outcomes(loader) == [[0, 1, 2], "ValueError", [6, 7, 8]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("bad", [(), (2,), (0, 8)])
def test_a_stream_begins_once_a_pass_and_goes_on_after_a_bad_sample(
    bad: tuple[int, ...], drop_last: bool, workers: int
) -> None:
    """A batch of which a sample raises is lost, as in PyTorch; the one after it follows."""
    loader = DataLoader(Stream(bad), 2, drop_last=drop_last, num_workers=workers)
    values = [10 * i + 1 for i in range(9)]
    at, expected = iter(range(9)), list[Any]()
    while True:
        batch: list[Any] = []
        for i in itertools.islice(at, 2):
            batch.append(values[i])
            if i in bad:
                batch = ["error"]
                break
        if not batch or (len(batch) < 2 and drop_last and batch != ["error"]):
            break
        expected.append("KeyError" if batch == ["error"] else batch)
    assert outcomes(loader) == expected


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_begins_anew_with_each_pass(workers: int) -> None:
    loader = DataLoader(Stream(), None, num_workers=workers, persistent_workers=workers > 0)
    for began in (1, 2):
        assert outcomes(loader) == [10 * i + began for i in range(9)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_sampler_comes_in_its_turn(workers: int) -> None:
    class Sampler:
        def __init__(self) -> None:
            self.at = -1

        def __iter__(self) -> Sampler:
            return self

        def __next__(self) -> int:
            self.at += 1
            if self.at == 4:
                raise StopIteration
            if self.at == 2:
                raise KeyError("index 2")
            return self.at

    loader = DataLoader(Rows(()), None, sampler=Sampler(), num_workers=workers)
    assert outcomes(loader) == [0, 1, "KeyError", 3]


def refuse(worker_id: int) -> None:
    raise OSError(f"no disk for {worker_id}")


def test_no_sample_is_read_by_a_worker_whose_init_function_raises() -> None:
    loader = DataLoader(Rows(()), 3, num_workers=2, worker_init_fn=refuse)
    assert outcomes(loader) == ["OSError"] * 3


class Slow(Rows):
    def __getitem__(self, index: int) -> int:
        if index == 0:
            threading.Event().wait(1.5)
        return index


def test_a_batch_that_takes_too_long_is_not_lost() -> None:
    loader = DataLoader(Slow(()), 3, num_workers=1, timeout=0.5)
    found = outcomes(loader)
    late = [f for f in found if f == "RuntimeError"]
    assert late and found[len(late) :] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


class Deadly(Rows):
    def __getitem__(self, index: int) -> int:
        if index == 3:
            import os

            os._exit(1)
        return index


def test_a_pass_whose_worker_died_has_no_end() -> None:
    """An end would say that there was no more data."""
    found = outcomes(DataLoader(Deadly(()), 3, num_workers=2), most=6)
    assert found[-3:] == ["RuntimeError"] * 3


def test_an_error_of_a_class_that_cannot_be_sent_is_told() -> None:
    class Local(Exception):
        pass

    batches = iter(DataLoader(Rows((0,), Local), 3, num_workers=1))
    with pytest.raises(RuntimeError, match=r"(?s)Local.*sample 0"):
        next(batches)
    assert next(batches).tolist() == [3, 4, 5]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_made_again_from_its_attributes(workers: int) -> None:
    first = DataLoader(Rows(()), 3, num_workers=workers)
    names = (
        "batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout",
        "worker_init_fn", "multiprocessing_context", "generator", "prefetch_factor",
        "persistent_workers", "pin_memory_device", "in_order",
    )  # fmt: skip
    again = DataLoader(first.dataset, **{name: getattr(first, name) for name in names})
    assert outcomes(again) == outcomes(first)
    assert first.prefetch_factor == (2 if workers else None)


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(100), replacement=True, num_samples=10**10),
        RandomSampler(range(100), num_samples=10**10),
        WeightedRandomSampler([1.0, 2.0, 0.0], 10**10),
    ],
    ids=["random", "permuted", "weighted"],
)
def test_ten_billion_draws_need_little_memory(sampler: Any) -> None:
    tracemalloc.start()
    try:
        batches = iter(BatchSampler(sampler, 3, False))
        drawn = [next(batches) for _ in range(4000)]
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert len(sampler) == 10**10 and {len(batch) for batch in drawn} == {3}
    if isinstance(sampler, WeightedRandomSampler):
        assert {i for batch in drawn for i in batch} == {0, 1}


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "2"])
def test_counts_are_positive_integers(value: Any) -> None:
    with pytest.raises(ValueError, match="num_samples should be a positive integer value"):
        RandomSampler(range(3), True, value)
    with pytest.raises(ValueError, match="num_samples should be a positive integer value"):
        WeightedRandomSampler([1.0], value)
    with pytest.raises(ValueError, match="batch_size should be a positive integer value"):
        BatchSampler(range(3), value, False)
