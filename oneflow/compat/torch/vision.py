"""Ops of torchvision's C++ library, under the names and orders in which it calls them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

from oneflow import surfaces
from oneflow.core.errors import OneFlowError
from oneflow.functional.nn_sampling import deform_conv2d as _deform_conv2d
from oneflow.functional.nn_sampling import nms as nms
from oneflow.functional.nn_sampling import roi_align as roi_align
from oneflow.tensor.tensor import Tensor


def _cuda_version() -> int:
    """Return -1: torchvision's library, which would be built for a version of CUDA, is not used."""
    return -1


def roi_pool(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor]:
    """Return the largest elements of the cells of boxes, (R, C, height, width), and zeros in place
    of their positions.
    """
    found = [
        _largest(input, [float(v) for v in box], spatial_scale, pooled_height, pooled_width)
        for box in rois.tolist()
    ]
    shape = (0, input.shape[1], pooled_height, pooled_width)
    out = surfaces.find("flow", "stack")(found) if found else input.new_zeros(shape)
    return out, surfaces.find("flow", "zeros_like")(out, dtype=surfaces.find("flow", "int32"))


def _largest(x: Tensor, box: list[float], scale: float, rows: int, columns: int) -> Tensor:
    """Return the largest elements of the cells of one box."""
    image = x[int(box[0])]
    left, top, right, bottom = (_rounded(v * scale) for v in box[1:])
    ys = _bounds(top, bottom, rows, int(x.shape[2]))
    xs = _bounds(left, right, columns, int(x.shape[3]))
    stack: Callable[..., Tensor] = surfaces.find("flow", "stack")
    cells = [
        stack(
            [
                image[:, y0:y1, x0:x1].amax((1, 2)) if y1 > y0 and x1 > x0 else image[:, 0, 0] * 0
                for x0, x1 in xs
            ],
            -1,
        )
        for y0, y1 in ys
    ]
    return stack(cells, -2)


def _rounded(value: float) -> int:
    """Round half away from zero, as C does."""
    return int(value + 0.5) if value >= 0 else -int(0.5 - value)


def _bounds(begin: int, end: int, count: int, limit: int) -> list[tuple[int, int]]:
    """Return (first, behind the last) pixel of each cell."""
    size = max(end - begin + 1, 1)
    step = size / count
    found = []
    for at in range(count):
        low = int(at * step) + begin
        high = math.ceil((at + 1) * step) + begin
        found.append((min(max(low, 0), limit), min(max(high, 0), limit)))
    return found


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


def _refusing(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        raise OneFlowError(f"torchvision.{name}: not there; {instead}")

    return refuse


ps_roi_align = _refusing("ops.ps_roi_align", "use roi_align")
ps_roi_pool = _refusing("ops.ps_roi_pool", "use roi_pool")
