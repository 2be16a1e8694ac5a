"""Pools by powers, and maxima of windows whose places are drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from oneflow.core.dtype import int64
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.concat_split import cat
from oneflow.functional.creation import rand
from oneflow.functional.dims import Size, spatial_sizes
from oneflow.functional.from_data import beside
from oneflow.functional.gather_scatter import gather
from oneflow.functional.nn.convolution_and_pool import avg_pool1d, avg_pool2d, avg_pool3d
from oneflow.functional.nn.window_dims import batched, over_dims, unbatched, window_strides
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import max as largest
from oneflow.functional.shaping import expand, permute, reshape
from oneflow.ops.unary import floor, full_like, piecewise_linear, relu
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.tensor import Tensor

_AVERAGES = (avg_pool1d, avg_pool2d, avg_pool3d)


def _lp_pool(
    ndim: int,
    input: Tensor,
    norm_type: float | Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(sum of x^norm_type)^(1 / norm_type) of each window of (N, C, SPATIAL); NaN where the sum is
    negative and has no such root.
    """
    kernel = spatial_sizes(kernel_size, ndim)
    strides = window_strides(stride, kernel)
    mean = _AVERAGES[ndim - 1](input**norm_type, kernel, strides, 0, ceil_mode)
    total = mean.sign() * relu(mean.abs()) * math.prod(kernel)  # without a slope at zero
    found: Tensor = total ** (1.0 / norm_type)
    return found


lp_pool1d = over_dims(1, _lp_pool)
lp_pool2d = over_dims(2, _lp_pool)
lp_pool3d = over_dims(3, _lp_pool)


def _fractional_max_pool(
    ndim: int,
    input: Tensor,
    kernel_size: Size,
    output_size: Size | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """Maxima of (N, C, SPATIAL) over windows a drawn step apart, between 1 and 2 times the mean.

    output_size: number of windows; or output_ratio: as a part of the input's size.
    return_indices: also where they are, as an index into the flattened spatial dims.
    _random_samples: (N, C, number of spatial dims) in [0, 1), in place of drawn ones.
    Graham, "Fractional max-pooling", 2014.
    """
    x, single = batched(ndim, input)
    spatial, kernel = x.meta.shape[2:], spatial_sizes(kernel_size, ndim)
    counts = _counts(ndim, spatial, output_size, output_ratio)
    for size, k, count in zip(spatial, kernel, counts, strict=True):
        if not 0 < count <= size - k + 1:
            raise ShapeError(
                f"fractional_max_pool{ndim}d: {count} windows of {k} do not fit {size} positions "
                f"of {input.meta}"
            )
    lead = x.meta.shape[:2]
    drawn = _random_samples
    if drawn is None:
        where = layout_of(x, no_partial=True, ndim=3)
        drawn = rand((*lead, ndim), dtype=x.meta.dtype, **where)
    drawn = drawn[: lead[0]]  # a tensor without a batch takes the first sample's
    flat: Tensor | None = None
    for d, (size, k, count) in enumerate(zip(spatial, kernel, counts, strict=True)):
        # planes are drawn for width before height, volumes in the order of their dims
        sample = drawn[..., ndim - 1 - d if ndim == 2 else d]
        starts = _starts(sample, size, k, count)
        places = reshape(starts, (*lead, count, 1)) + beside(x, np.arange(k))
        if flat is None:
            flat = places
        else:
            ones = (1,) * (2 * d)
            flat = reshape(flat, (*flat.meta.shape, 1, 1)) * size
            flat = flat + reshape(places, (*lead, *ones, count, k))
    assert flat is not None
    order = (*range(2, 2 + 2 * ndim, 2), *range(3, 3 + 2 * ndim, 2))
    shape = (*lead, math.prod(counts), math.prod(kernel))
    index = reshape(permute(flat, 0, 1, *order), shape)
    rows = reshape(x, (*lead, math.prod(spatial)))
    windows = reshape(gather(rows, 2, reshape(index, (*lead, shape[2] * shape[3]))), shape)
    values, chosen = largest(windows, 3)
    values = piecewise_linear(unbatched(reshape(values, (*lead, *counts)), single))
    if not return_indices:
        return values
    found = gather(index, 3, reshape(chosen, (*chosen.meta.shape, 1)))
    return values, unbatched(reshape(found, (*lead, *counts)), single)


def _counts(
    ndim: int,
    spatial: tuple[int, ...],
    output_size: Size | None,
    output_ratio: float | Sequence[float] | None,
) -> tuple[int, ...]:
    """Number of windows of each dim."""
    if output_size is not None:
        return spatial_sizes(output_size, ndim)
    if output_ratio is None:
        raise ArgumentError(
            f"fractional_max_pool{ndim}d: give output_size or output_ratio, a part of the size"
        )
    ratios = (output_ratio,) * ndim if isinstance(output_ratio, float | int) else output_ratio
    return tuple(int(n * r) for n, r in zip(spatial, ratios, strict=True))


def _starts(sample: Tensor, size: int, kernel: int, count: int) -> Tensor:
    """Starts of the windows of one dim: int64 (N, C, count); the last window ends at the end."""
    wide = reshape(sample, (*sample.meta.shape, 1))
    last = full_like(as_type(wide, int64), value=size - kernel)
    if count == 1:
        return last
    step = (size - kernel) / (count - 1)
    positions = beside(sample, np.arange(count - 1, dtype=sample.meta.dtype.np))
    lead = (*sample.meta.shape, count - 1)
    moved = floor((expand(wide, lead) + positions) * step) - floor(wide * step)
    joined: Tensor = cat([as_type(moved, int64), last], dim=-1)
    return joined


fractional_max_pool2d = over_dims(2, _fractional_max_pool)
fractional_max_pool3d = over_dims(3, _fractional_max_pool)


def _fractional_max_pool_with_indices(
    ndim: int,
    input: Tensor,
    kernel_size: Size,
    output_size: Size | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """`fractional_max_pool` of (N, C, SPATIAL), and where the maxima are."""
    return _fractional_max_pool(
        ndim, input, kernel_size, output_size, output_ratio, True, _random_samples
    )


fractional_max_pool2d_with_indices, fractional_max_pool3d_with_indices = (
    over_dims(ndim, _fractional_max_pool_with_indices, "fractional_max_pool{}d_with_indices")
    for ndim in (2, 3)
)
