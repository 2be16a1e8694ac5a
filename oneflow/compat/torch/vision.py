"""Ops of torchvision's C++ library, under the names and orders in which it calls them."""

from __future__ import annotations

import math

from oneflow import surfaces
from oneflow.core.dtype import int32
from oneflow.core.errors import ShapeError
from oneflow.functional.nn.sampling import deform_conv2d as _deform_conv2d
from oneflow.functional.nn.sampling import nms as nms
from oneflow.functional.nn.sampling import roi_align as roi_align
from oneflow.tensor.tensor import Tensor


def _cuda_version() -> int:
    """Return -1: torchvision's library, which would be built for a version of CUDA, is not used."""
    return -1


# ---- cells with whole borders --------------------------------------------------------------------


def roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Return the largest elements of the cells of boxes, (R, C, height, width), and zeros in place
    of their positions.
    """
    sides = (pooled_height, pooled_width), tuple(input.shape[2:])
    found = [
        _largest(input[image], *_bounds(corners, spatial_scale, sides, more=1))
        for image, corners in _boxes(rois)
    ]
    return _of_boxes(found, input, (input.shape[1], pooled_height, pooled_width))


def _largest(x: Tensor, rows: Cells, columns: Cells) -> Tensor:
    """Return the largest elements of the cells of one box, (C, rows, columns); 0 of empty cells."""
    channels, _, width = x.shape
    empty = x.new_zeros((channels, width))
    lines = _stack([x[:, a:b].max(1).values if b > a else empty for a, b in rows], 1)
    empty = x.new_zeros((channels, len(rows)))
    return _stack([lines[..., a:b].max(2).values if b > a else empty for a, b in columns], 2)


def ps_roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Return the means of the cells of boxes, each of the channel of its own place in the box,
    (R, C / (height * width), height, width), and zeros in place of these channels.

    The last row and the last column of the image count as outside, as in torchvision's forward
    pass; its backward pass gives them a gradient, this one does not.
    """
    size = (pooled_height, pooled_width)
    channels = _channels_of("ps_roi_pool", input, size)
    x = input.reshape(input.shape[0], channels, *size, *input.shape[2:])
    sides = size, tuple(n - 1 for n in input.shape[2:])
    found = []
    for image, corners in _boxes(rois):
        rows, columns = _bounds(corners, spatial_scale, sides)
        down, across = (
            input.new_tensor([_shares(cell, n) for cell in cells])
            for cells, n in zip((rows, columns), input.shape[2:], strict=True)
        )
        read = x[image] * down[:, None, :, None] * across[None, :, None, :]
        found.append(read.sum((-2, -1)))
    return _of_boxes(found, input, (channels, *size))


def ps_roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> tuple[Tensor, Tensor]:
    """Return the means of points in the cells of boxes, each of the channel of its own place in the
    box, (R, C / (height * width), height, width), and zeros in place of these channels.
    """
    size = (pooled_height, pooled_width)
    channels = _channels_of("ps_roi_align", input, size)
    every = roi_align(input, rois, spatial_scale, *size, sampling_ratio, True)
    placed = every.reshape(every.shape[0], channels, *size, *size)
    own = placed.diagonal(0, 2, 4).diagonal(0, 2, 3)
    return own, _zeros(own)


Cells = list[tuple[int, int]]
"""(first, behind the last) pixel of each cell along a side of a box."""

_Sizes = tuple[int, ...]


def _boxes(rois: Tensor) -> list[tuple[int, list[float]]]:
    """Return the image and the corners of each box. rois: (R, 5)."""
    return [(int(image), corners) for image, *corners in rois.tolist()]


def _bounds(
    corners: list[float], scale: float, sides: tuple[_Sizes, _Sizes], more: int = 0
) -> tuple[Cells, Cells]:
    """Return the cells of a box, (rows, columns). sides: numbers of cells, and pixels of the image
    along y and x. more: pixels of a box beyond the distance of its corners.
    """
    left, top, right, bottom = (_rounded(v * scale) for v in corners)
    found = []
    for begin, end, count, limit in zip((top, left), (bottom, right), *sides, strict=True):
        step = max(end - begin + more, 1) / count
        cells = []
        for at in range(count):
            low, high = int(at * step) + begin, math.ceil((at + 1) * step) + begin
            cells.append((min(max(low, 0), limit), min(max(high, 0), limit)))
        found.append(cells)
    rows, columns = found
    return rows, columns


def _rounded(value: float) -> int:
    """Round half away from zero, as C does."""
    return int(value + 0.5) if value >= 0 else -int(0.5 - value)


def _shares(cell: tuple[int, int], size: int) -> list[float]:
    """Return the share of each pixel of a side in the mean of a cell."""
    begin, end = cell
    return [1 / (end - begin) if begin <= at < end else 0.0 for at in range(size)]


def _channels_of(name: str, input: Tensor, size: _Sizes) -> int:
    """Return the channels of the result. Raises ShapeError."""
    count = math.prod(size)
    if input.ndim != 4 or int(input.shape[1]) % count:
        raise ShapeError(
            f"torchvision.ops.{name}: needs (N, C, H, W) with a multiple of {count} channels for "
            f"{size[0]} x {size[1]} cells, got {input.meta}"
        )
    return int(input.shape[1]) // count


def _of_boxes(found: list[Tensor], input: Tensor, shape: _Sizes) -> tuple[Tensor, Tensor]:
    out = _stack(found, 0) if found else input.new_zeros((0, *shape))
    return out, _zeros(out)


def _stack(parts: list[Tensor], dim: int) -> Tensor:
    made: Tensor = surfaces.find("flow", "stack")(parts, dim)
    return made


def _zeros(like: Tensor) -> Tensor:
    made: Tensor = surfaces.find("flow", "zeros_like")(like, dtype=int32)
    return made


def deform_conv2d(
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> Tensor:
    """Return a convolution that reads each element of a window off its place."""
    return _deform_conv2d(
        input,
        offset,
        weight,
        bias,
        (stride_h, stride_w),
        (pad_h, pad_w),
        (dilation_h, dilation_w),
        mask if use_mask else None,
    )
