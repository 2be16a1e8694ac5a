"""Reads a part of an array that lies in a file, and no other byte."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.io.files import Readable
from oneflow.kernels.array import Array

_MANY_RUNS = 4096
_PAGE_NBYTES = 4096
_JOINED_NBYTES = 1 << 20


def read_box(
    source: Readable,
    offset: int,
    shape: Sequence[int],
    wanted: Sequence[slice],
    target: Array,
) -> None:
    """Fills `target` with a part of an array that lies at `offset`, and reads no other byte.

    shape: of the whole array in the source, in C order.  wanted: of the part, one slice a dim.
    target: of the part's shape and the array's dtype, may be strided.
    Of very many short runs that share pages of the file, the bytes between them are read as well:
    the system fetches whole pages anyway, and a call for each run would take far longer.
    """
    if not target.size:
        return
    split = target.ndim - _num_whole_dims(shape, target)
    strides = [math.prod(shape[d + 1 :]) * target.dtype.itemsize for d in range(len(shape))]
    base = offset + sum(s.start * n for s, n in zip(wanted, strides, strict=True))
    run_nbytes = math.prod(target.shape[split:]) * target.dtype.itemsize
    joins = 0
    if split and math.prod(target.shape[:split]) >= _MANY_RUNS:
        joins = int(strides[split - 1] - run_nbytes < _PAGE_NBYTES)
    for at in np.ndindex(target.shape[: split - joins]):
        index: Any = (*at, ...)  # the Ellipsis makes it a view of a 0-d array too
        start = base + sum(i * n for i, n in zip(at, strides, strict=False))
        if joins:
            _read_rows(source, start, strides[split - 1], target[index])
        else:
            source.read_into(start, _as_bytes(target[index]))


def _read_rows(source: Readable, start: int, stride: int, target: Array) -> None:
    """Fills the rows of `target`, contiguous in the source and `stride` bytes apart there."""
    row = math.prod(target.shape[1:]) * target.dtype.itemsize
    step = max(1, _JOINED_NBYTES // stride)
    tail = np.empty((1, *target.shape[1:]), target.dtype).strides[1:]
    for first in range(0, len(target), step):
        rows = target[first : first + step]
        nbytes = (len(rows) - 1) * stride + row
        found: Array = np.empty(nbytes // target.dtype.itemsize, target.dtype)
        source.read_into(start + first * stride, _as_bytes(found))
        spread = np.lib.stride_tricks.as_strided(found, rows.shape, (stride, *tail))
        np.copyto(rows, spread)


def _num_whole_dims(shape: Sequence[int], target: Array) -> int:
    """Return the number of last dims that make one contiguous run, both in the source and in the
    target.
    """
    count, run = 0, target.dtype.itemsize
    for dim in reversed(range(target.ndim)):
        if target.shape[dim] > 1 and target.strides[dim] != run:
            break
        count += 1
        run *= target.shape[dim]
        if target.shape[dim] != shape[dim]:
            break
    return count


def _as_bytes(run: Array) -> memoryview:
    flat: Any = run.reshape(-1).view(np.uint8)
    return memoryview(flat)
