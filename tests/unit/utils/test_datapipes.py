"""Data pipes and data sets made of others, beside PyTorch's of the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.utils.data as theirs
from torch.utils.data.datapipes import iter as their_iter

from oneflow.utils import data as ours
from oneflow.utils.data import datapipes as pipes

# PyTorch warns of lambdas where dill is not installed.
pytestmark = pytest.mark.filterwarnings("ignore:Local function is not supported")

Build = Callable[[Any, Any], Any]

STREAMS: dict[str, Build] = {
    "map": lambda p, _: p.map(lambda x: x * x),
    "filter": lambda p, _: p.filter(lambda x: x % 3 == 0),
    "batch": lambda p, _: p.batch(3),
    "batch of whole ones": lambda p, _: p.batch(3, drop_last=True),
    "unbatch": lambda p, _: p.batch(2).batch(2).unbatch(),
    "unbatch twice": lambda p, _: p.batch(2).batch(2).unbatch(2),
    "unbatch all": lambda p, _: p.batch(2).batch(2).unbatch(-1),
    "columns": lambda p, _: p.batch(2).map(lambda x: x + 1, input_col=0),
    "columns together": lambda p, _: p.batch(2).map(lambda a, b: a + b, input_col=[0, 1]),
    "a column more": lambda p, _: p.batch(2).map(lambda x: -x, input_col=0, output_col=-1),
    "filtered by a column": lambda p, _: p.batch(2).filter(lambda x: x > 3, input_col=1),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_gives_what_pytorchs_gives(name: str) -> None:
    build = STREAMS[name]
    own = build(pipes.IterableWrapper(range(10)), pipes.IterableWrapper)
    other = build(their_iter.IterableWrapper(range(10)), their_iter.IterableWrapper)
    assert list(own) == list(other)
    assert list(own) == list(other)  # a second pass begins anew


def test_shuffled_samples_are_all_there_and_follow_the_seed() -> None:
    pipe = pipes.IterableWrapper(range(100)).shuffle(buffer_size=10)
    first = list(pipe.set_seed(3))
    assert sorted(first) == list(range(100)) and first != list(range(100))
    assert list(pipe.set_seed(3)) == first and list(pipe.set_seed(4)) != first
    assert all(value - at < 10 for at, value in enumerate(first))  # no further than the buffer
    assert list(pipe.set_shuffle(False)) == list(range(100))


def test_own_pipes_join_in() -> None:
    @ours.functional_datapipe("every_other_of_this_test")
    class EveryOther(ours.IterDataPipe):
        def __init__(self, source: Any) -> None:
            self.source = source

        def __iter__(self) -> Iterator[Any]:
            return (x for i, x in enumerate(self.source) if i % 2 == 0)

    try:
        pipe = pipes.IterableWrapper(range(7)).every_other_of_this_test()
        assert list(pipe) == [0, 2, 4, 6]
        assert [b.tolist() for b in ours.DataLoader(pipe, 2)] == [[0, 2], [4, 6]]
        with pytest.raises(ValueError, match="registered already"):
            ours.functional_datapipe("every_other_of_this_test")(EveryOther)
    finally:
        del ours.IterDataPipe.functions["every_other_of_this_test"]
    with pytest.raises(AttributeError, match="every_other_of_this_test"):
        pipes.IterableWrapper([]).every_other_of_this_test()


def test_pipes_that_depend_on_chance_can_be_refused() -> None:
    @ours.non_deterministic
    class Anyhow(ours.IterDataPipe):
        pass

    @ours.non_deterministic(lambda source, lazily: lazily)
    class Perhaps(ours.IterDataPipe):
        def __init__(self, source: object, lazily: bool) -> None:
            self.lazily = lazily

    with ours.guaranteed_datapipes_determinism():
        with pytest.raises(TypeError, match="non-deterministic"):
            Anyhow()
        with pytest.raises(TypeError, match="non-deterministic"):
            Perhaps([], True)
        assert Perhaps([], False).lazily is False
    Anyhow()


class Reader(ours.Dataset[int]):
    """Samples i + 100; counts the calls that read several at once."""

    def __init__(self, gives: int = 0) -> None:
        self.calls, self.gives = 0, gives

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index + 100

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls += 1
        return [i + 100 for i in indices][self.gives :]


def test_data_sets_side_by_side() -> None:
    squares = [i * i for i in range(8)]
    for make in (lambda d: d.StackDataset(squares, "abcdefgh"),
                 lambda d: d.StackDataset(x=squares, y="abcdefgh")):  # fmt: skip
        own, other = make(ours), make(theirs)
        assert len(own) == len(other) == 8
        assert [own[i] for i in range(8)] == [other[i] for i in range(8)]
        assert own.__getitems__([3, 1]) == other.__getitems__([3, 1])
    with pytest.raises(ValueError, match="Size mismatch"):
        ours.StackDataset(squares, "abc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="either"):
        ours.StackDataset()


def test_a_data_set_that_reads_several_samples_is_asked_once_a_batch() -> None:
    reader = Reader()
    halves = ours.Subset(reader, range(0, 8, 2))
    assert [b.tolist() for b in ours.DataLoader(halves, 3)] == [[100, 102, 104], [106]]
    assert reader.calls == 2
    with pytest.raises(ValueError, match="gave 2 samples for 3 indices"):
        next(iter(ours.DataLoader(Reader(gives=1), 3)))


def test_a_data_set_may_make_batches_for_its_own_collate_fn() -> None:
    """Keras reads a whole batch at once, and collates it by a function that does nothing."""

    class Columns:
        def __len__(self) -> int:
            return 8

        def __getitems__(self, indices: list[int]) -> tuple[list[int], list[int]]:
            return indices, [-i for i in indices]

    found, wanted = (
        list(library.DataLoader(Columns(), 5, collate_fn=lambda batch: batch))
        for library in (ours, theirs)
    )
    assert found == wanted == [([0, 1, 2, 3, 4], [0, -1, -2, -3, -4]), ([5, 6, 7], [-5, -6, -7])]
