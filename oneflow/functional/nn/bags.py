"""Rows of a table, looked up and put together: bags of embeddings."""

from __future__ import annotations

import math

import numpy as np

from oneflow.core.dtype import int64
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.arithmetic import eq
from oneflow.functional.concat_split import cat
from oneflow.functional.creation import full, zeros
from oneflow.functional.elementwise import clamp, pick
from oneflow.functional.from_data import beside
from oneflow.functional.gather_scatter import as_index, index_add, within
from oneflow.functional.index_update import index_reduce
from oneflow.functional.nn.layers import embedding
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import amax
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import reshape, unsqueeze
from oneflow.functional.sort_and_search import searchsorted
from oneflow.ops.unary import full_like, logical_not
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import Tensor


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The sum, mean or maximum of the rows of `weight` that each bag of integers names.

    input: (bags, length), or (all,) with offsets: where each bag begins; include_last_offset: and
    where the last ends. per_sample_weights: factors of the rows, as input, for sums.
    padding_idx: an integer that counts for nothing. max_norm, norm_type: as in `embedding`.
    Returns (bags, columns); a bag of nothing gives zeros. Raises ShapeError, ValueError.
    """
    if mode not in ("sum", "mean", "max"):
        raise ArgumentError(f"embedding_bag: mode must be sum, mean or max, got {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise ArgumentError("embedding_bag: per_sample_weights are for the mode 'sum'")
    if (input.ndim, offsets is None) not in ((2, True), (1, False)):
        raise ShapeError(
            f"embedding_bag: needs (bags, length) without offsets or (all,) with them, got "
            f"{input.meta} and {'no offsets' if offsets is None else offsets.meta}"
        )
    index = as_index(input)
    rows = embedding(index, weight, None, max_norm, norm_type, scale_grad_by_freq, sparse)
    counted = full_like(as_type(index, rows.meta.dtype), value=1.0)
    if padding_idx is not None:
        is_padding = eq(index, padding_idx % weight.meta.shape[0])
        counted = pick(is_padding, 0.0, counted)
        rows = pick(unsqueeze(is_padding, -1), 0.0, rows)  # whatever they hold
    if per_sample_weights is not None:
        if per_sample_weights.meta.shape != input.meta.shape:
            raise ShapeError(
                f"embedding_bag: per_sample_weights {per_sample_weights.meta} must have the shape "
                f"of {input.meta}"
            )
        counted = counted * per_sample_weights
    if offsets is None:
        return _of_rows(rows, counted, mode)
    count = offsets.meta.shape[0] - include_last_offset
    ends = within(as_type(offsets, int64), index.meta.shape[0] + 1)
    begin = cat([within(ends[:1], 1), ends[1:count]], 0)
    places = beside(index, np.arange(index.meta.shape[0]))
    bags = searchsorted(begin, places, right=True) - 1
    return _of_bags(rows, counted, bags, count, mode)


def _of_rows(rows: Tensor, counted: Tensor, mode: str) -> Tensor:
    """Bags of one length: (bags, length, columns)."""
    wide = unsqueeze(counted, -1)
    if mode == "max":
        is_none = logical_not(total(wide, 1) > 0)
        return pick(is_none, 0.0, amax(pick(wide > 0, rows, -math.inf), 1))
    summed = total(rows * wide, 1)
    return summed if mode == "sum" else summed / clamp(total(wide, 1), min=1.0)


def _of_bags(rows: Tensor, counted: Tensor, bags: Tensor, count: int, mode: str) -> Tensor:
    """Bags of any length.  rows: (all, columns).  bags: (all,), the bag of each."""
    where = layout_of(rows, no_partial=True)
    wide = unsqueeze(counted, -1)
    blank = zeros((count, rows.meta.shape[1]), dtype=rows.meta.dtype, **where)
    if mode == "max":
        seen = pick(wide > 0, rows, -math.inf)
        least = full(blank.meta.shape, -math.inf, dtype=rows.meta.dtype, **where)
        found = index_reduce(least, 0, bags, seen, "amax")
        return pick(found > -math.inf, found, 0.0)
    summed = index_add(blank, 0, bags, rows * wide)
    if mode == "sum":
        return summed
    where = layout_of(rows, no_partial=True, ndim=1)
    lengths = index_add(zeros((count,), dtype=rows.meta.dtype, **where), 0, bags, counted)
    return summed / clamp(reshape(lengths, (count, 1)), min=1.0)
