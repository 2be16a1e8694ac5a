"""x[...] and x[...] = value against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import oneflow as flow

INDICES: tuple[Any, ...] = (
    0,
    (slice(None), 1),
    (Ellipsis, 2),
    (None, 0),
    (slice(None), slice(0, 3, 2)),
    [0, 1],
    ([0, 1], [2, 0]),
    (0, [2, 0]),
    (slice(None), [0, 2], [1, 3]),
    ([0, 1], slice(None), [1, 3]),
    (-1, -1, -1),
    (slice(None), slice(None), [[0, 1], [2, 3]]),
    (slice(None), slice(None, None, -1)),
    (slice(1, 1),),
    (Ellipsis, None),
    (np.array([True, False]),),
    range(1),
    (range(2), [2, 0]),
    (slice(None), range(2, 0, -1)),
    (0, range(0)),
)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_reading_and_writing(index: Any) -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    x = flow.tensor(array)
    np.testing.assert_array_equal(x[index].numpy(), array[index])
    x[index] = 7.0
    array[index] = 7.0
    np.testing.assert_array_equal(x.numpy(), array)
    value = np.random.default_rng(0).random(array[index].shape)
    x[index] = flow.tensor(value)
    array[index] = value
    np.testing.assert_array_equal(x.numpy(), array)


BOOLS: tuple[Any, ...] = (
    True,
    False,
    (True, 1),
    (1, True),
    (Ellipsis, True),
    (True, [0, 1]),
    (slice(None), False),
)


@pytest.mark.parametrize("index", BOOLS, ids=str)
@pytest.mark.parametrize("as_tensor", [False, True])
def test_bools_stand_for_a_dim_of_one_or_none(index: Any, as_tensor: bool) -> None:
    array = np.arange(6.0).reshape(2, 3)
    x = flow.tensor(array)
    items = index if isinstance(index, tuple) else (index,)
    ours = tuple(flow.tensor(i) if as_tensor and isinstance(i, bool) else i for i in items)
    np.testing.assert_array_equal(x[ours].numpy(), array[index])
    x[ours] = 7.0
    array[index] = 7.0
    np.testing.assert_array_equal(x.numpy(), array)


def test_a_list_of_more_than_numbers_is_a_tuple() -> None:
    x = flow.arange(6).reshape(2, 3)
    assert x[[[0, 1], [1, 0]]].tolist() == [1, 3]
    assert x[[slice(0, 1), 1]].tolist() == [1]
    assert x[[flow.tensor([0, 1]), flow.tensor([2, 0])]].tolist() == [2, 3]
    assert x[[None, 1]].tolist() == [[3, 4, 5]]
    x[[[0, 1], [1, 0]]] = 9
    assert x.tolist() == [[0, 9, 2], [9, 4, 5]]


def test_a_second_ellipsis_stands_for_nothing() -> None:
    x = flow.arange(6).reshape(2, 3)
    assert x[..., ...].tolist() == x.tolist()


def test_masks() -> None:
    array = np.arange(6.0).reshape(2, 3)
    x = flow.tensor(array)
    np.testing.assert_array_equal(x[x > 2].numpy(), array[array > 2])
    x[x > 2] = 0
    assert x.tolist() == [[0, 1, 2], [0, 0, 0]]


def test_index_out_of_range_names_the_tensor() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        flow.ones(2)[5]
    with pytest.raises(IndexError, match="too many indices"):
        flow.ones(2)[0, 0]
    with pytest.raises(IndexError, match="must be integers or bool"):
        flow.ones(2)[flow.ones(1)]


def test_a_slice_is_a_view() -> None:
    x = flow.zeros(3, 2)
    x[1].add_(1)
    x[:, 0].fill_(5)
    assert x.tolist() == [[5, 0], [5, 1], [5, 0]]


def test_a_mask_takes_what_numpy_takes() -> None:
    mask = np.array([True, False, True, False])
    for value in (np.float32(2), np.array([5.0, 6.0]), [7.0, 8.0], True):
        ours, theirs = flow.zeros(4), np.zeros(4, np.float32)
        ours[flow.tensor(mask)] = value
        theirs[mask] = value
        assert ours.tolist() == theirs.tolist()


def test_a_slice_of_step_zero_is_refused() -> None:
    class Sliced(flow.nn.Graph):
        def build(self, x: flow.Tensor) -> flow.Tensor:
            return x[::0]

    x = flow.arange(6)
    whole = x.to_global(flow.placement("cpu", [0]), flow.sbp.broadcast)
    calls = [lambda: x[1:4:0], lambda: x.__setitem__(slice(0, 2, 0), 1), lambda: whole[::0]]
    for call in [*calls, lambda: Sliced()(x)]:
        for kind in (RuntimeError, ValueError):
            with pytest.raises(kind, match="slice step cannot be zero"):
                call()
