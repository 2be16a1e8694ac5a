"""Maxima to a given output size, and functions that take maxima back to their places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.core.errors import ShapeError
from oneflow.functional.creation import zeros
from oneflow.functional.dims import Size, spatial_sizes
from oneflow.functional.from_data import beside
from oneflow.functional.gather_scatter import gather, scatter
from oneflow.functional.nn.window_dims import (
    adaptive_sizes,
    batched,
    over_dims,
    unbatched,
    window_strides,
)
from oneflow.functional.reduction import max as largest
from oneflow.functional.shaping import expand, permute, reshape
from oneflow.ops import gather as gather_ops
from oneflow.ops.unary import piecewise_linear
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import Tensor


def _windows(size: int, count: int) -> np.ndarray[Any, Any]:
    """(count, widest): the positions of each window; short ones repeat their last."""
    starts = np.arange(count) * size // count
    stops = -(-(np.arange(count) + 1) * size // count)
    widest = int((stops - starts).max()) if count else 1
    found: np.ndarray[Any, Any] = np.minimum(
        starts[:, None] + np.arange(widest), stops[:, None] - 1
    )
    return found


def _adaptive_max_pool(
    ndim: int,
    input: Tensor,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
) -> Any:
    """The largest of windows of (N, C, SPATIAL) chosen so that the result has `output_size`
    positions.  return_indices: also where they are, as an index into the flattened spatial dims.
    """
    x, single = batched(ndim, input)
    if x.ndim != ndim + 2 or 0 in x.meta.shape[2 if single else 1 :]:
        raise ShapeError(f"adaptive_max_pool{ndim}d: cannot pool {input.meta}")
    spatial = x.meta.shape[2:]
    many = adaptive_sizes(f"adaptive_max_pool{ndim}d", output_size, ndim)
    counts = [n if w is None else int(w) for w, n in zip(many, spatial, strict=True)]
    tables = [_windows(n, c) for n, c in zip(spatial, counts, strict=True)]
    flat = np.zeros((), np.int64)
    for size, table in zip(spatial, tables, strict=True):
        flat = flat[..., None, None] * size + table
    order = (*range(0, 2 * ndim, 2), *range(1, 2 * ndim, 2))
    places = beside(x, flat.transpose(order).reshape(math.prod(counts), -1).astype(np.int64))
    for dim, table in reversed(list(enumerate(tables, 2))):
        x = gather_ops.gather(x, beside(x, table.astype(np.int64)), dim=dim)
    x = permute(x, 0, 1, *(2 + d for d in order))
    shape = x.meta.shape[:2]
    x = reshape(x, (*shape, math.prod(counts), places.meta.shape[1]))
    values, chosen = largest(x, 3)
    values = piecewise_linear(unbatched(reshape(values, (*shape, *counts)), single))
    if not return_indices:
        return values
    wide = expand(places, x.meta.shape)
    indices = gather(wide, 3, reshape(chosen, (*chosen.meta.shape, 1)))
    return values, unbatched(reshape(indices, (*shape, *counts)), single)


adaptive_max_pool1d = over_dims(1, _adaptive_max_pool)
adaptive_max_pool2d = over_dims(2, _adaptive_max_pool)
adaptive_max_pool3d = over_dims(3, _adaptive_max_pool)


def _adaptive_max_pool_with_indices(
    ndim: int,
    input: Tensor,
    output_size: int | Sequence[int | None],
    return_indices: bool = False,
) -> Any:
    """The largest of evenly spread parts of (N, C, SPATIAL), and where they are."""
    return _adaptive_max_pool(ndim, input, output_size, True)


(
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d_with_indices,
) = (
    over_dims(ndim, _adaptive_max_pool_with_indices, "adaptive_max_pool{}d_with_indices")
    for ndim in (1, 2, 3)
)


def _max_unpool(
    ndim: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Zeros of (N, C, SPATIAL) with the values at the places that a max pool has returned."""
    if input.meta.shape != indices.meta.shape:
        raise ShapeError(
            f"max_unpool{ndim}d: {input.meta} and the indices {indices.meta} must have one shape"
        )
    kernel = spatial_sizes(kernel_size, ndim)
    strides, pads = window_strides(stride, kernel), spatial_sizes(padding, ndim)
    shape = input.meta.shape
    lead, old = shape[: len(shape) - ndim], shape[len(shape) - ndim :]
    usual = tuple(
        (n - 1) * s - 2 * p + k for n, s, p, k in zip(old, strides, pads, kernel, strict=True)
    )
    size = usual if output_size is None else tuple(map(int, output_size))[-ndim:]
    if any(abs(a - b) >= s for a, b, s in zip(size, usual, strides, strict=True)):
        raise ShapeError(
            f"max_unpool{ndim}d: invalid output_size {list(size)}: each dim must be less than the "
            f"stride {strides} away from {list(usual)}"
        )
    where = layout_of(input, no_partial=True, ndim=len(lead) + 1)
    blank = zeros((*lead, math.prod(size)), dtype=input.meta.dtype, **where)
    many = math.prod(old)
    flat = scatter(blank, -1, reshape(indices, (*lead, many)), reshape(input, (*lead, many)))
    return reshape(flat, (*lead, *size))


max_unpool1d = over_dims(1, _max_unpool)
max_unpool2d = over_dims(2, _max_unpool)
max_unpool3d = over_dims(3, _max_unpool)
