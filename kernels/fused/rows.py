"""Loops over the ids and rows of tables, compiled by numba."""

from __future__ import annotations

import numpy as np

from oneflow.core.jit import compiled
from oneflow.kernels.array import Array

_TABLE = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_A, _B, _C, _HALF = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)
_ONE = np.uint64(1)


def _mixed(key: np.int64, table: np.int32) -> np.uint64:
    """64 well-mixed bits of an id and its table: splitmix64's last steps (Steele, Lea and Flood,
    OOPSLA 2014)."""
    x = np.uint64(key) ^ ((np.uint64(table) + _ONE) * _TABLE)
    x = (x ^ (x >> _A)) * _FIRST
    x = (x ^ (x >> _B)) * _SECOND
    bits: np.uint64 = x ^ (x >> _C)
    return bits


mixed = compiled(_mixed, inline="always")


def _number(
    keys: Array,
    tables: Array,
    is_padding: bool,
    padding: int,
    first: int,
    last: int,
    num_buckets: int,
    slots: Array,
    found: Array,
    found_tables: Array,
    found_buckets: Array,
    inverse: Array,
) -> int:
    """Give equal ids of one table one number, from 0 in the order in which they first come.

    keys: int64[n].  tables: int32[n], or of fewer elements, which repeat.  slots: int32[2^k],
    zeros, at least 2n.  inverse: int64[n], written: the number, or -1 for padding and for ids whose
    bucket is not first .. last - 1.  found..: int64, int32 and int32 [n], written: id, table and
    bucket of each number.  Returns how many numbers there are.
    """
    count, columns = 0, tables.shape[0]
    mask = np.uint64(slots.shape[0] - 1)
    column = 0
    for i in range(keys.shape[0]):
        key, table = keys[i], tables[column]
        column += 1
        if column == columns:
            column = 0
        inverse[i] = -1
        if is_padding and key == padding:
            continue
        bits = mixed(key, table)
        bucket = np.int64(((bits >> _HALF) * np.uint64(num_buckets)) >> _HALF)
        if bucket < first or bucket >= last:
            continue
        at = bits & mask
        while True:
            number = slots[at]
            if number == 0:
                found[count], found_tables[count], found_buckets[count] = key, table, bucket
                count += 1
                slots[at] = count
                inverse[i] = count - 1
                break
            if found[number - 1] == key and found_tables[number - 1] == table:
                inverse[i] = number - 1
                break
            at = (at + _ONE) & mask
    return count


number = compiled(_number, nogil=True)


def _pick(lines: Array, inverse: Array, out: Array) -> None:
    """out[i] = the first columns of lines[inverse[i]], or zeros where inverse[i] is -1."""
    for i in range(inverse.shape[0]):
        row = inverse[i]
        if row < 0:
            for j in range(out.shape[1]):
                out[i, j] = 0
        else:
            for j in range(out.shape[1]):
                out[i, j] = lines[row, j]


pick = compiled(_pick, nogil=True)


def _sum_rows(d: Array, inverse: Array, sums: Array) -> None:
    """sums[inverse[i]] += d[i] in order, where inverse[i] is not -1."""
    for i in range(inverse.shape[0]):
        row = inverse[i]
        if row >= 0:
            for j in range(d.shape[1]):
                sums[row, j] += d[i, j]


sum_rows = compiled(_sum_rows, nogil=True)


def _add_squares(sums: Array, buckets: Array, first: int, squares: Array) -> None:
    """squares[buckets[i] - first] += the sum of squares of row i, in float64."""
    for i in range(sums.shape[0]):
        total = 0.0
        for j in range(sums.shape[1]):
            total += np.float64(sums[i, j]) * np.float64(sums[i, j])
        squares[buckets[i] - first] += total


add_squares = compiled(_add_squares, nogil=True)


def _to_owners(
    owner_of: Array,
    buckets: Array,
    found: Array,
    found_tables: Array,
    numbers: Array,
    sizes: Array,
    keys: Array,
    tables: Array,
    inverse: Array,
) -> None:
    """Group distinct ids by the owner of their bucket, in order; sizes[i] = ids of owner i.

    numbers: of each id of the batch, as `number` writes them; inverse: of each its place in `keys`
    and `tables`, or -1. Elements beyond the ids in these are 0.
    """
    count = found.shape[0]
    sizes[:] = 0
    for i in range(count):
        sizes[owner_of[buckets[i]]] += 1
    following = np.empty(sizes.shape[0], np.int64)
    total = 0
    for i in range(sizes.shape[0]):
        following[i] = total
        total += sizes[i]
    places = np.empty(count, np.int64)
    for i in range(count):
        owner = owner_of[buckets[i]]
        place = following[owner]
        following[owner] = place + 1
        places[i] = place
        keys[place], tables[place] = found[i], found_tables[i]
    keys[count:] = 0
    tables[count:] = 0
    for i in range(numbers.shape[0]):
        inverse[i] = places[numbers[i]] if numbers[i] >= 0 else -1


to_owners = compiled(_to_owners, nogil=True)
