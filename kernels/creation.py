"""Kernels of oneflow/ops/creation.py."""

from __future__ import annotations

from oneflow.core.dtype import DType
from oneflow.core.operand import Number
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel
from oneflow.ops.conv import Sizes


@kernel("constant")
def constant(xp: ArrayModule, out: Array, *, shape: Sizes, dtype: DType, value: Number) -> None:
    out.fill(value)


@kernel("arange")
def arange(
    xp: ArrayModule,
    out: Array,
    *,
    start: Number,
    step: Number,
    length: int,
    dtype: DType,
    offset: int = 0,
) -> None:
    """Every element is rounded once, from its global position, so that shards agree with the
    whole."""
    exact = xp.arange(offset, offset + out.shape[0], dtype=xp.int64)
    xp.copyto(out, exact * step + start, casting="unsafe")


@kernel("eye")
def eye(
    xp: ArrayModule, out: Array, *, rows: int, columns: int, dtype: DType, offset: int = 0
) -> None:
    out.fill(0)
    height, width = out.shape
    row = max(
        0, -offset
    )  # local row i holds global column i + offset (counted from the shard's first)
    first_column = row + offset
    length = min(height - row, width - first_column)
    if length > 0:
        first = row * width + first_column
        out.reshape(-1)[first : first + (length - 1) * (width + 1) + 1 : width + 1] = 1
