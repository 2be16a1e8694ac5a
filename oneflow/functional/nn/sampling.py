"""Tensors read at places that are computed: grid_sample, deformable convolution, boxes of images.

Everything here is made of gathers and products, so it has gradients of every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from oneflow.core.dtype import float32, float64, int64
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.arithmetic import add, div, fmod, mul, sub
from oneflow.functional.dims import Size, spatial_sizes
from oneflow.functional.elementwise import clamp, masked_fill, pick
from oneflow.functional.from_data import beside
from oneflow.functional.linalg.products import matmul
from oneflow.functional.promotion import as_type
from oneflow.functional.shaping import expand, reshape, unsqueeze
from oneflow.kernels.cubic import cubic_weights
from oneflow.ops import gather as gather_ops
from oneflow.ops import pool, unary
from oneflow.tensor.tensor import KEEP_SHAPE, Tensor, needs_data

Places = list[Tensor]
"""Coordinates of points, by dim: tensors of one shape (N, P)."""


def _taken(x: Tensor, sizes: Sequence[int], places: Places, is_inside: Tensor | None) -> Tensor:
    """x (N, C, prod(sizes)) at whole places, as (N, C, P). is_inside: where not, 0 is read."""
    flat = places[0]
    for size, place in zip(sizes[1:], places[1:], strict=True):
        flat = add(mul(flat, size), place)
    index = expand(unsqueeze(as_type(flat, int64), 1), (*x.meta.shape[:2], flat.meta.shape[-1]))
    values = gather_ops.dim_gather(x, index, dim=2)
    if is_inside is None:
        return values
    return mul(values, unsqueeze(as_type(is_inside, x.meta.dtype), 1))


def _inside(places: Places, sizes: Sequence[int]) -> Tensor:
    """Whether points lie in the dims."""
    found = [(p >= 0) & (p <= n - 1) for p, n in zip(places, sizes, strict=True)]
    result = found[0]
    for more in found[1:]:
        result = result & more
    return result


def _bounded(places: Places, sizes: Sequence[int]) -> Places:
    """Places of elements; NaN is read at 0, and its weight is NaN."""
    bounded = [clamp(p, 0, n - 1) for p, n in zip(places, sizes, strict=True)]
    return [masked_fill(p, unary.isnan(p), 0.0) for p in bounded]


def _linear(x: Tensor, sizes: Sequence[int], places: Places, zeros: bool) -> Tensor:
    """Linear interpolation between the corners around each point. zeros: outside x is 0."""
    first: Places = [unary.floor(p.detach()) for p in places]
    gaps = [sub(p, f) for p, f in zip(places, first, strict=True)]
    total: Tensor | None = None
    for corner in product((0, 1), repeat=len(sizes)):
        here = [add(f, c) if c else f for f, c in zip(first, corner, strict=True)]
        weight: Tensor | None = None
        for gap, c in zip(gaps, corner, strict=True):
            share = gap if c else sub(1, gap)
            weight = share if weight is None else mul(weight, share)
        assert weight is not None
        is_inside = _inside(here, sizes) if zeros else None
        values = _taken(x, sizes, _bounded(here, sizes), is_inside)
        part = mul(values, unsqueeze(weight, 1))
        total = part if total is None else add(total, part)
    assert total is not None
    return total


# ---- grids ---------------------------------------------------------------------------------------


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The places that an affine map (N, 2, 3) or (N, 3, 4) reads for images of `size`: (N, H, W, 2)
    or (N, D, H, W, 3), from -1 to 1.
    """
    spatial = [int(n) for n in size[2:]]
    count = len(spatial)
    if count not in (2, 3) or theta.meta.shape != (size[0], count, count + 1):
        raise ShapeError(
            f"affine_grid: expected a batch of {count}x{count + 1} affine matrices of shape "
            f"{[size[0], count, count + 1]} for size {list(size)}, got {theta.meta}"
        )
    if min(size) < 1:
        raise ShapeError(f"affine_grid: expected non-zero, positive output size, got {list(size)}")
    lines = []
    for n in spatial:
        line = np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)
        lines.append(line if align_corners else line * (n - 1) / n)
    grids = np.meshgrid(*lines, indexing="ij")
    base = np.stack([*grids[::-1], np.ones(spatial)], axis=-1).reshape(-1, count + 1)
    table = as_type(beside(theta, base), theta.meta.dtype)
    out = matmul(table, theta.transpose(1, 2))
    return reshape(out, (int(size[0]), *spatial, count))


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """`input` (N, C, spatial) read at grid (N, out, 2 or 3), whose last dim runs from x to z, from
    -1 to 1.

    mode: bilinear, nearest or bicubic (2 dims).  padding_mode: zeros, border or reflection.
    """
    count = input.ndim - 2
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ArgumentError(f"grid_sample: mode is bilinear, nearest or bicubic, got {mode!r}")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ArgumentError(
            f"grid_sample: padding_mode is zeros, border or reflection, got {padding_mode!r}"
        )
    if (
        count not in (2, 3)
        or grid.ndim != input.ndim
        or grid.meta.shape[-1] != count
        or grid.meta.shape[0] != input.meta.shape[0]
        or 0 in input.meta.shape[2:]
        or grid.meta.dtype is not input.meta.dtype
    ):
        raise ShapeError(
            f"grid_sample: the grid {grid.meta} does not fit {input.meta}; it needs the same batch "
            "and dtype and a last dim of 2 for images, of 3 for volumes"
        )
    if mode == "bicubic" and count != 2:
        raise ShapeError(f"grid_sample: bicubic interpolation only supports 4D input, {input.meta}")
    sizes = input.meta.shape[2:]
    out, batch = grid.meta.shape[1:-1], input.meta.shape[0]
    x = reshape(input, (*input.meta.shape[:2], -1 if input.meta.numel else 0))
    corners = bool(align_corners)
    flat = reshape(grid, (batch, -1 if grid.meta.numel else 0, count))
    places = [_unnormalized(flat[..., count - 1 - d], n, corners) for d, n in enumerate(sizes)]
    if mode == "bicubic":
        values = _cubic(x, sizes, places, padding_mode, corners)
    else:
        placed = [_padded(p, n, padding_mode, corners) for p, n in zip(places, sizes, strict=True)]
        if mode == "nearest":
            placed = [unary.round(p.detach()) for p in placed]
            values = _at_whole(x, sizes, placed, padding_mode == "zeros")
        else:
            values = _linear(x, sizes, placed, padding_mode == "zeros")
    return reshape(values, (*input.meta.shape[:2], *out))


def _at_whole(x: Tensor, sizes: Sequence[int], places: Places, zeros: bool) -> Tensor:
    is_inside = _inside(places, sizes) if zeros else None
    return _taken(x, sizes, _bounded(places, sizes), is_inside)


def _unnormalized(place: Tensor, size: int, corners: bool) -> Tensor:
    """Turn -1 .. 1 into positions of a dim."""
    if corners:
        return mul(add(place, 1), (size - 1) / 2)
    return div(sub(mul(add(place, 1), size), 1), 2)


def _padded(place: Tensor, size: int, padding_mode: str, corners: bool) -> Tensor:
    if padding_mode == "zeros":
        return place
    if padding_mode == "reflection":
        place = _reflected(place, size, corners)
    return clamp(place, 0, size - 1)


def _reflected(place: Tensor, size: int, corners: bool) -> Tensor:
    """Positions mirrored at the borders until they lie between them."""
    low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
    if span == 0:
        return mul(place, 0.0)
    gap = unary.abs(sub(place, low))
    rest = fmod(gap, span)
    turns = unary.floor(div(gap.detach(), span))
    is_odd = fmod(turns, 2.0) == 1
    return add(pick(is_odd, sub(span, rest), rest), low)


def _cubic(
    x: Tensor, sizes: Sequence[int], places: Places, padding_mode: str, corners: bool
) -> Tensor:
    """Cubic interpolation among the sixteen neighbours of each point."""
    first: Places = [unary.floor(p.detach()) for p in places]
    weights = [cubic_weights(sub(p, f)) for p, f in zip(places, first, strict=True)]
    total: Tensor | None = None
    for (dy, wy), (dx, wx) in product(*weights):
        here = [add(first[0], dy), add(first[1], dx)]
        here = [_padded(p, n, padding_mode, corners) for p, n in zip(here, sizes, strict=True)]
        part = mul(_at_whole(x, sizes, here, padding_mode == "zeros"), unsqueeze(mul(wy, wx), 1))
        total = part if total is None else add(total, part)
    assert total is not None
    return total


# ---- deformable convolution ----------------------------------------------------------------------


def deform_conv2d(
    input: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = (1, 1),
    padding: Size = (0, 0),
    dilation: Size = (1, 1),
    mask: Tensor | None = None,
) -> Tensor:
    """A convolution of (N, C, H, W) with (O, C / groups, KH, KW) that reads every element of a
    window off its place: offset (N, 2 * G * KH * KW, OH, OW), y before x; mask (N, G * KH * KW, OH,
    OW) scales the elements read.
    """
    strides, pads, dilations = (spatial_sizes(v, 2) for v in (stride, padding, dilation))
    for what, x in (("input", input), ("offset", offset), ("weight", weight)):
        if x.ndim != 4:
            raise ShapeError(f"deform_conv2d: the {what} must have 4 dims, got {x.meta}")
    if min(*strides, *dilations) < 1 or min(pads) < 0:
        raise ArgumentError(
            f"deform_conv2d: stride {strides} and dilation {dilations} must be positive, and "
            f"padding {pads} not negative"
        )
    n, channels, *sizes = input.meta.shape
    out_channels, per_group, *window = weight.meta.shape
    each = zip(sizes, window, strides, pads, dilations, strict=True)
    out = tuple((size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in each)
    area, count = window[0] * window[1], out[0] * out[1]
    parts = offset.meta.shape[1] // (2 * area)
    if offset.meta.shape != (n, 2 * parts * area, *out) or not parts or channels % parts:
        raise ShapeError(
            f"deform_conv2d: offset {offset.meta} does not fit {input.meta} with {weight.meta}; it "
            f"needs 2 * {area} channels for each part of the channels, and spatial dims {out}"
        )
    moved = reshape(offset, (n * parts, area, 2, count))
    places = []
    for dim in (0, 1):
        steps = np.arange(out[dim]) * strides[dim] - pads[dim]
        inner = np.arange(window[dim]) * dilations[dim]
        grid = inner[:, None] + steps
        shape = (window[0], 1, out[0], 1) if dim == 0 else (1, window[1], 1, out[1])
        spread = np.broadcast_to(grid.reshape(shape), (*window, *out)).reshape(area, count)
        base = as_type(beside(input, spread.astype(np.float64)), offset.meta.dtype)
        places.append(reshape(add(moved[:, :, dim], base), (n * parts, area * count)))
    x = reshape(input, (n * parts, channels // parts, sizes[0] * sizes[1]))
    read = reshape(_linear(x, sizes, places, True), (n, parts, channels // parts, area, count))
    if mask is not None:
        read = mul(read, reshape(mask, (n, parts, 1, area, count)))
    groups = channels // max(per_group, 1)
    if groups * per_group != channels or not groups or out_channels % groups:
        raise ShapeError(f"deform_conv2d: weight {weight.meta} does not fit {input.meta}")
    columns = reshape(read, (n, groups, per_group * area, count))
    table = reshape(weight, (groups, out_channels // groups, per_group * area))
    result = reshape(matmul(table, columns), (n, out_channels, *out))
    return result if bias is None else add(result, reshape(bias, (1, -1, 1, 1)))


# ---- boxes ---------------------------------------------------------------------------------------


def roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_h: int,
    pooled_w: int,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Means of points in the cells of boxes: (R, C, pooled_h, pooled_w).

    rois: (R, 5): image, x1, y1, x2, y2.  sampling_ratio: points along a side of a cell; -1: as many
    as pixels.  aligned: pixels have their middle at whole places plus 1/2.
    """
    if rois.ndim != 2 or rois.meta.shape[1] != 5 or input.ndim != 4:
        raise ShapeError(f"roi_align: needs (N, C, H, W) and (R, 5), got {input.meta}, {rois.meta}")
    boxes = rois.detach()
    return pool.roi_align(
        input,
        as_type(boxes[:, 1:], float64 if input.meta.dtype is float64 else float32),
        as_type(boxes[:, 0], int64),
        size=(int(pooled_h), int(pooled_w)),
        scale=float(spatial_scale),
        sampling_ratio=max(int(sampling_ratio), 0),
        aligned=bool(aligned),
    )


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float = 0.5) -> Tensor:
    """The places of boxes (R, 4: x1, y1, x2, y2) of which no better one overlaps more than
    iou_threshold, best first.
    """
    needs_data(boxes, "nms()", KEEP_SHAPE)
    if boxes.ndim != 2 or boxes.meta.shape[1] != 4 or scores.meta.shape != boxes.meta.shape[:1]:
        raise ShapeError(
            f"nms: needs boxes (R, 4) and scores (R,), got {boxes.meta}, {scores.meta}"
        )
    corners, values = boxes.numpy(), scores.numpy()
    order = np.argsort(-values, kind="stable")
    low, high = corners[order, :2], corners[order, 2:]
    area = np.prod(high - low, axis=1)
    is_kept = np.ones(len(order), bool)
    for i in range(len(order)):
        if is_kept[i]:
            sides = np.minimum(high[i], high[i + 1 :]) - np.maximum(low[i], low[i + 1 :])
            shared = np.prod(np.maximum(sides, 0), axis=1)
            joined = area[i] + area[i + 1 :] - shared
            with np.errstate(invalid="ignore"):  # two boxes without area share no part: 0 / 0
                is_kept[i + 1 :] &= ~(shared / joined > iou_threshold)
    return beside(boxes, order[is_kept].astype(np.int64))
