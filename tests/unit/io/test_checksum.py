"""The checksum that does not depend on how a tensor is cut, and exact reads of boxes."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oneflow.core.errors import CheckpointError
from oneflow.io.boxes import read_box
from oneflow.io.checksum import _BLOCK, MODULUS, checksum
from oneflow.io.files import Memory

DTYPES = [np.bool_, np.int8, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex128]


def random(shape: tuple[int, ...], dtype: Any) -> Any:
    numbers = np.random.default_rng(0).standard_normal(shape) * 9
    return numbers.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_add_up(dtype: Any) -> None:
    x = random((7, 300, 70), dtype)
    total = 0
    for rows, columns, depths in itertools.product(
        ((0, 5), (5, 7)), ((0, 1), (1, 300)), ((0, 33), (33, 70))
    ):
        cell = x[slice(*rows), slice(*columns), slice(*depths)]
        total += checksum(cell, (rows[0], columns[0], depths[0]))
    assert total % MODULUS == checksum(x, (0, 0, 0))


def test_long_dims_and_views() -> None:
    x = random((3 * _BLOCK + 5,), np.float32)
    cuts = [0, 10, _BLOCK - 1, 2 * _BLOCK + 3, len(x)]
    parts = [checksum(x[a:b], (a,)) for a, b in itertools.pairwise(cuts)]
    assert sum(parts) % MODULUS == checksum(x, (0,))
    matrix = random((300, 500), np.float64)
    assert checksum(matrix.T, (0, 0)) == checksum(np.ascontiguousarray(matrix.T), (0, 0))


def test_it_follows_the_formula() -> None:
    """Against Python integers: the sum of words times the weights of their coordinates."""
    from oneflow.io.checksum import _weights

    x = random((3, 4), np.float32)
    words = x.view(np.uint32)
    expected = sum(
        int(words[i, j]) * int(_weights(0, i, i + 1)[0]) * int(_weights(1, j, j + 1)[0])
        for i in range(3)
        for j in range(4)
    )
    assert checksum(x, (0, 0)) == expected % MODULUS
    assert all(w % 2 for w in _weights(0, 0, 100).tolist())


def test_every_flip_and_swap_is_seen() -> None:
    x = random((4, 6), np.float64)
    good = checksum(x, (0, 0))
    for index, bit in itertools.product(range(x.nbytes), range(8)):
        y = x.copy()
        y.view(np.uint8).reshape(-1)[index] ^= 1 << bit
        assert checksum(y, (0, 0)) != good
    assert checksum(-x, (0, 0)) != good  # all highest bits at once
    assert checksum(x[::-1], (0, 0)) != good and checksum(x[:, ::-1], (0, 0)) != good


def test_small_ones() -> None:
    assert checksum(np.zeros((0, 3)), (0, 0)) == 0
    assert checksum(np.array(2.5), ()) != checksum(np.array(2.75), ())
    assert 0 <= checksum(np.array(-1.0, np.float32), ()) < MODULUS


@pytest.mark.parametrize("dtype", [np.int8, np.float32, ml_dtypes.bfloat16, np.complex128])
def test_boxes_are_read_exactly(dtype: Any) -> None:
    whole = random((4, 5, 6), dtype)
    source = _Counting(b"x" * 11 + whole.tobytes())
    for rows, columns, depths in itertools.product(
        ((0, 4), (1, 3), (2, 2)), ((0, 5), (4, 5)), ((0, 6), (2, 5))
    ):
        wanted = tuple(slice(*bounds) for bounds in (rows, columns, depths))
        expected = whole[wanted]
        for target in (np.empty(expected.shape, dtype), _strided(expected.shape, dtype)):
            source.nbytes_read = 0
            read_box(source, 11, whole.shape, wanted, target)
            np.testing.assert_array_equal(target, expected)
            assert source.nbytes_read == expected.nbytes
    point = np.empty((), dtype)
    read_box(source, 11, (), (), point)
    assert point == whole[0, 0, 0]


def test_whole_rows_are_one_read() -> None:
    whole = random((40, 8), np.float32)
    source = _Counting(whole.tobytes())
    read_box(source, 0, whole.shape, (slice(3, 30), slice(0, 8)), np.empty((27, 8), np.float32))
    assert source.num_reads == 1


def test_many_short_runs_are_joined() -> None:
    whole = random((3, 5000, 40), np.int64)
    source = _Counting(b"x" * 8 + whole.tobytes())
    wanted = (slice(1, 3), slice(2, 4900), slice(7, 9))
    for target in (np.empty((2, 4898, 2), np.int64), np.empty((2, 4898, 5), np.int64)[..., 1:3]):
        source.num_reads = 0
        read_box(source, 8, whole.shape, wanted, target)
        np.testing.assert_array_equal(target, whole[wanted])
        assert source.num_reads < 10


def test_too_few_bytes_are_an_error() -> None:
    with pytest.raises(CheckpointError, match="too few"):
        read_box(Memory(b"abc", "it"), 0, (4,), (slice(0, 4),), np.empty(4, np.int8))


def _strided(shape: tuple[int, ...], dtype: Any) -> Any:
    return np.empty((*shape[:-1], shape[-1] * 2), dtype)[..., ::2]


class _Counting(Memory):
    def __init__(self, data: bytes) -> None:
        super().__init__(data, "memory")
        self.nbytes_read = self.num_reads = 0

    def read_into(self, offset: int, target: memoryview) -> None:
        self.nbytes_read += target.nbytes
        self.num_reads += 1
        super().read_into(offset, target)
