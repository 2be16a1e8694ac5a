"""RoIAlign on a CPU: a cell's mean is separable, out = rows @ image @ columns^T.

The points of a cell form a grid, so the share of pixel (y, x) in the mean of cell (i, j) is
rows[i, y] * columns[j, x]. Both are zero but for a few neighbours: `Taps` holds these. A GPU reads
point by point instead (pool_boxes_gpu.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import compute_in_float32, fused_kernel, kernel

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oneflow.ops.pool import Cells

compute_in_float32("roi_align", "roi_align_grad")


@dataclass(frozen=True)
class Taps:
    """The pixels along one dim that the cells of boxes read.

    first, count: (R, cells), int64; count is 0 for cells that read nothing. share: (R, cells, K),
    of the pixels from `first` on; 0 from `count` on.
    """

    first: Array
    count: Array
    share: Array

    def of(self, dtype: Any) -> Taps:
        """Return the same, with shares of a dtype."""
        return replace(self, share=self.share.astype(dtype, copy=False))

    def spans(self) -> tuple[Array, Array]:
        """Return the first pixel of each box and the number of its pixels, (R,) each."""
        low = np.where(self.count > 0, self.first, np.iinfo(np.int64).max).min(1)
        high = (self.first + self.count).max(1)
        is_read = self.count.any(1)
        return np.where(is_read, low, 0), np.where(is_read, high - low, 0)

    def matrix(self, r: int, low: int, size: int) -> Array:
        """Return the shares of the pixels low .. low + size - 1 in the cells of box r."""
        found = np.zeros((self.first.shape[1], size), self.share.dtype)
        for i, (first, count) in enumerate(zip(self.first[r], self.count[r], strict=True)):
            found[i, first - low : first - low + count] = self.share[r, i, :count]
        return found


def taps_of(boxes: Array, dim: int, cells: int, size: int, how: Cells) -> Taps:
    """Return the taps along a dim of `size` pixels. dim: 0 for y, 1 for x."""
    number = boxes.dtype.type
    shift = number(0.5 if how["aligned"] else 0.0)
    begin = boxes[:, 1 - dim] * number(how["scale"]) - shift
    length = boxes[:, 3 - dim] * number(how["scale"]) - shift - begin
    if not how["aligned"]:
        length = np.maximum(length, 1)
    side = length / number(cells)
    ratio = how["sampling_ratio"]
    points = np.full_like(side, ratio) if ratio > 0 else np.maximum(np.ceil(side), 0)
    most = int(points.max(initial=0))
    number_of = np.arange(most, dtype=boxes.dtype)
    within = (number_of + number(0.5)) * (side / np.maximum(points, 1))[:, None]
    corners = begin[:, None] + np.arange(cells, dtype=boxes.dtype) * side[:, None]
    place = corners[:, :, None] + within[:, None, :]
    is_read = (place >= -1) & (place <= size) & (number_of < points[:, None])[:, None, :]
    place = np.where(is_read, np.clip(place, 0, size - 1), 0)
    low = place.astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    first = np.where(is_read, low, size).min(axis=2, initial=size)
    count = np.where(is_read, high + 1, 0).max(axis=2, initial=0) - first
    count = np.maximum(count, 0)
    first = np.where(count > 0, first, 0)
    share = np.zeros((*count.shape, max(int(count.max(initial=0)), 1)), boxes.dtype)
    rows, columns, which = np.nonzero(is_read)
    gap = (place - low)[rows, columns, which]
    one = number(1) / points[rows]
    from_first = first[rows, columns]
    for pixel, weight in ((low, (1 - gap) * one), (high, gap * one)):
        np.add.at(share, (rows, columns, pixel[rows, columns, which] - from_first), weight)
    return Taps(first, count, share)


def _both(cells: Array, x: Array, boxes: Array, how: Cells) -> list[Taps]:
    """Return the taps of y and of x. cells: (R, C, rows, columns); x: (N, C, H, W)."""
    sides = zip((0, 1), cells.shape[2:], x.shape[2:], strict=True)
    return [taps_of(boxes, *side, how).of(x.dtype) for side in sides]


def _one_by_one(taps: list[Taps]) -> Iterator[tuple[int, Array, Array, tuple[slice, slice]]]:
    """Yield every box: its number, its matrices of rows and columns, and its pixels."""
    (tops, heights), (lefts, widths) = (t.spans() for t in taps)
    for r in range(len(tops)):
        y, x, high, wide = (int(a[r]) for a in (tops, lefts, heights, widths))
        sides = taps[0].matrix(r, y, high), taps[1].matrix(r, x, wide)
        yield r, *sides, (slice(y, y + high), slice(x, x + wide))


@kernel("roi_align", device="cpu")
def roi_align(
    xp: ArrayModule,
    out: Array,
    x: Array,
    boxes: Array,
    images: Array,
    *,
    size: tuple[int, int],
    **cells: Unpack[Cells],
) -> None:
    for r, rows, columns, (ys, xs) in _one_by_one(_both(out, x, boxes, cells)):
        out[r] = rows @ x[images[r]][:, ys, xs] @ columns.T


@kernel("roi_align_grad", device="cpu")
def roi_align_grad(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    boxes: Array,
    images: Array,
    *,
    shape: tuple[int, int, int],
    **cells: Unpack[Cells],
) -> None:
    d_x[...] = 0
    for r, rows, columns, (ys, xs) in _one_by_one(_both(d_out, d_x, boxes, cells)):
        d_x[images[r]][:, ys, xs] += rows.T @ d_out[r] @ columns


# ---- float32 on a CPU ----------------------------------------------------------------------------


def _programs() -> ModuleType:
    """Return the machine code; llvmlite takes a moment to import."""
    from oneflow.kernels.expressions import pool_boxes

    return pool_boxes


def _lines(x: TensorType, rows: int, width: int) -> tuple[TensorType, ...]:
    return (x.with_shape(_programs().lines_shape(rows, width)),)


def _mean_lines(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    return _lines(types[0], attrs["size"][0], types[0].shape[3])


@fused_kernel("roi_align", workspace=_mean_lines)
def roi_align_fused(
    xp: ArrayModule,
    out: Array,
    x: Array,
    boxes: Array,
    images: Array,
    lines: Array,
    *,
    size: tuple[int, int],
    **cells: Unpack[Cells],
) -> None:
    taps = _both(out, x, boxes, cells)
    _programs().means(out, np.ascontiguousarray(x), np.ascontiguousarray(images), taps, lines)


def _spread_lines(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    return _lines(types[0], types[0].shape[2], attrs["shape"][2])


@fused_kernel("roi_align_grad", workspace=_spread_lines)
def roi_align_grad_fused(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    boxes: Array,
    images: Array,
    lines: Array,
    *,
    shape: tuple[int, int, int],
    **cells: Unpack[Cells],
) -> None:
    taps = _both(d_out, d_x, boxes, cells)
    _programs().spread(d_x, np.ascontiguousarray(d_out), np.ascontiguousarray(images), taps, lines)
