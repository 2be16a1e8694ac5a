"""Pooling as a loop over the positions of the window, each a strided view of all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, at
from oneflow.kernels.neighbours import (
    Neighbours,
    add_up,
    blend_dim,
    blend_work,
    has_work,
    neighbours,
    neighbours_of,
    resized,
)
from oneflow.kernels.registry import Workspace, compute_in_float32, fused_kernel, kernel
from oneflow.ops.conv import Sizes
from oneflow.ops.pool import AdaptiveAvgPool, AvgPool, AvgWindow, MaxPool, MaxWindow

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oneflow.kernels.native.planes import Window
    from oneflow.ops.pool import Cells, Way


compute_in_float32(
    "max_pool_grad",
    "avg_pool",
    "avg_pool_grad",
    "adaptive_avg_pool",
    "adaptive_avg_pool_grad",
    "resize",
    "resize_grad",
    "roi_align",
    "roi_align_grad",
)


def _undilated(window: AvgWindow) -> MaxWindow:
    """The window of an average, as one with a dilation."""
    ones = (1,) * len(window["kernel"])
    return MaxWindow(
        kernel=window["kernel"], stride=window["stride"], padding=window["padding"], dilation=ones
    )


def _padded_type(x: TensorType, positions: Sizes, window: MaxWindow) -> TensorType:
    """x with padding on both sides, and with the overhang of the last windows."""
    each = zip(
        x.shape[2:],
        positions,
        window["kernel"],
        window["stride"],
        window["padding"],
        window["dilation"],
        strict=True,
    )
    # Of each dim: x with its padding, and how far the windows reach from the start of the padding.
    sizes = [(size + 2 * p, (n - 1) * s + (k - 1) * d + 1) for size, n, k, s, p, d in each]
    return x.with_shape((*x.shape[:2], *map(max, sizes)))


def _window(padded: Array, offset: Sizes, positions: Sizes, window: MaxWindow) -> Array:
    """The elements that position `offset` of each window meets: a strided view."""
    cuts = [
        slice(o * d, o * d + (n - 1) * s + 1, s)
        for o, n, s, d in zip(offset, positions, window["stride"], window["dilation"], strict=True)
    ]
    return padded[at(slice(None), slice(None), *cuts)]


def _inside(padded: Array, spatial: Sizes, padding: Sizes) -> Array:
    cuts = [slice(p, p + size) for p, size in zip(padding, spatial, strict=True)]
    return padded[at(slice(None), slice(None), *cuts)]


def _first_positions(offset: Sizes, window: MaxWindow) -> list[int]:
    """The position of x, by dim, that position `offset` of the first window meets."""
    each = zip(offset, window["padding"], window["dilation"], strict=True)
    return [o * d - p for o, p, d in each]


def _source_index(
    xp: ArrayModule, offset: Sizes, positions: Sizes, spatial: Sizes, window: MaxWindow
) -> Array:
    """Flat spatial index that kernel position `offset` meets in each window; meaningless in the
    padding.
    """
    index: Array = xp.zeros((), dtype=xp.int64)
    firsts = _first_positions(offset, window)
    for first, n, size, s in zip(firsts, positions, spatial, window["stride"], strict=True):
        index = index[..., None] * size + (xp.arange(n) * s + first)
    return index


def _max_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    out, _ = MaxPool.infer(x, **attrs)
    window = cast("MaxWindow", attrs)
    return _padded_type(x, out.shape[2:], window), out.with_dtype(dtypes.bool_)


@kernel("max_pool", workspace=_max_workspace)
def max_pool(
    xp: ArrayModule,
    out: Array,
    indices: Array,
    x: Array,
    padded: Array,
    better: Array,
    *,
    ceil_mode: bool,
    **window: Unpack[MaxWindow],
) -> None:
    positions, spatial = out.shape[2:], x.shape[2:]
    padded[...] = -xp.inf
    _inside(padded, spatial, window["padding"])[...] = x
    out[...] = -xp.inf
    indices[...] = 0
    for offset in product(*map(range, window["kernel"])):
        values = _window(padded, offset, positions, window)
        xp.greater(values, out, out=better)
        xp.logical_or(better, xp.isnan(values), out=better)  # a NaN wins, as it should
        index = _source_index(xp, offset, positions, spatial, window)
        xp.copyto(out, values, where=better)
        xp.copyto(indices, xp.broadcast_to(index, indices.shape), where=better)


def _max_grad_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    d_out = types[0]
    window = cast("MaxWindow", attrs)
    x = d_out.with_shape((*d_out.shape[:2], *attrs["spatial"]))
    return _padded_type(x, d_out.shape[2:], window), d_out, d_out.with_dtype(dtypes.bool_)


@kernel("max_pool_grad", workspace=_max_grad_workspace)
def max_pool_grad(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    indices: Array,
    padded: Array,
    share: Array,
    chosen: Array,
    *,
    spatial: Sizes,
    **window: Unpack[MaxWindow],
) -> None:
    """Deterministic, without scattered additions: each kernel position takes the windows that chose
    it.
    """
    positions = d_out.shape[2:]
    padded[...] = 0
    for offset in product(*map(range, window["kernel"])):
        index = _source_index(xp, offset, positions, spatial, window)
        xp.equal(indices, index, out=chosen)
        _drop_padding(chosen, offset, spatial, window)
        share[...] = 0  # not d_out * chosen: an infinite gradient would make the others NaN
        xp.copyto(share, d_out, where=chosen)
        target = _window(padded, offset, positions, window)
        target += share
    d_x[...] = _inside(padded, spatial, window["padding"])


def _drop_padding(chosen: Array, offset: Sizes, spatial: Sizes, window: MaxWindow) -> None:
    """Clears windows where this kernel position lies in the padding: its flat index is another
    element's.
    """
    firsts = _first_positions(offset, window)
    for dim, (first, size, s) in enumerate(zip(firsts, spatial, window["stride"], strict=True), 2):
        begin = max(0, -(first // s))  # least i with i * s + first >= 0
        end = max(0, (size - 1 - first) // s + 1)
        before = (slice(None),) * dim
        chosen[at(*before, slice(0, begin))] = False
        chosen[at(*before, slice(end, None))] = False


def _avg_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    out = AvgPool.infer(x, **attrs)
    return (_padded_type(x, out.shape[2:], _undilated(cast("AvgWindow", attrs))),)


@kernel("avg_pool", workspace=_avg_workspace)
def avg_pool(
    xp: ArrayModule,
    out: Array,
    x: Array,
    padded: Array,
    **window: Unpack[AvgWindow],
) -> None:
    plain, positions, spatial = _undilated(window), out.shape[2:], x.shape[2:]
    padded[...] = 0
    _inside(padded, spatial, window["padding"])[...] = x
    out[...] = 0
    for offset in product(*map(range, window["kernel"])):
        out += _window(padded, offset, positions, plain)
    out /= _divisors(xp, out, spatial, window)


def _divisors(xp: ArrayModule, out: Array, spatial: Sizes, window: AvgWindow) -> Array:
    """Return the divisor of each window's sum, in the shape of the positions."""
    if window["divisor_override"]:
        fixed: Array = xp.asarray(window["divisor_override"], dtype=out.dtype)
        return fixed
    count: Array = xp.ones((), dtype=out.dtype)
    each = zip(
        out.shape[2:], spatial, window["kernel"], window["stride"], window["padding"], strict=True
    )
    for n, size, k, s, p in each:
        begin = xp.arange(n) * s - p
        end = xp.minimum(begin + k, size + p)
        if not window["count_include_pad"]:
            begin, end = xp.maximum(begin, 0), xp.minimum(end, size)
        count = count[..., None] * (end - begin).astype(out.dtype)
    return count


def _avg_grad_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    d_out = types[0]
    window = cast("AvgWindow", attrs)
    x = d_out.with_shape((*d_out.shape[:2], *attrs["spatial"]))
    return _padded_type(x, d_out.shape[2:], _undilated(window)), d_out


@kernel("avg_pool_grad", workspace=_avg_grad_workspace)
def avg_pool_grad(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    padded: Array,
    share: Array,
    *,
    spatial: Sizes,
    **window: Unpack[AvgWindow],
) -> None:
    plain = _undilated(window)
    xp.divide(d_out, _divisors(xp, d_out, spatial, window), out=share)
    padded[...] = 0
    for offset in product(*map(range, window["kernel"])):
        target = _window(padded, offset, d_out.shape[2:], plain)
        target += share
    d_x[...] = _inside(padded, spatial, window["padding"])


# ---- adaptive means: one dim after the other -----------------------------------------------------


@lru_cache(maxsize=256)
def _averaged(old: int, new: int, is_back: bool, dtype: np.dtype[Any]) -> Neighbours:
    """The elements of a dim that each window of an adaptive pooling averages."""
    table = np.zeros((old, new))
    for i in range(new):
        cut = slice(i * old // new, -(-(i + 1) * old // new))
        table[cut, i] = 1 / (cut.stop - cut.start)
    return neighbours_of(table.T if is_back else table, dtype)


Memory = Callable[[TensorType, int, int], tuple[TensorType, ...]]
"""Types of the memory of a pass over a dim, which then has another size."""


def _dims_work(x: TensorType, sizes: Sizes, memory: Memory) -> tuple[TensorType, ...]:
    """Types of the results of all dims but the last, and of the memory that the passes need."""
    found: list[TensorType] = []
    for dim, size in enumerate(sizes, 2):
        own = memory(x, dim, size)
        x = resized(x, dim, size)
        found += [*([x] if dim < x.ndim - 1 else []), *own]
    return tuple(found)


def _mean_work(memory: Memory) -> Workspace:
    return lambda types, attrs: _dims_work(
        types[0], AdaptiveAvgPool.infer(types[0], **attrs).shape[2:], memory
    )


def _share_work(memory: Memory) -> Workspace:
    return lambda types, attrs: _dims_work(types[0], attrs["spatial"], memory)


def _term(x: TensorType, dim: int, size: int) -> tuple[TensorType, ...]:
    return (resized(x, dim, size),)


def _dim_by_dim(xp: ArrayModule, out: Array, x: Array, work: tuple[Array, ...], *,
                is_back: bool, is_fused: bool = False) -> None:  # fmt: skip
    """Means over windows of all spatial dims, or (is_back) their shares."""
    spare = iter(work)
    for dim in range(2, x.ndim):
        sizes = x.shape[dim], out.shape[dim]
        means = _averaged(*(sizes[::-1] if is_back else sizes), is_back, x.dtype)
        target = next(spare) if dim < x.ndim - 1 else out
        if is_fused:
            blend_dim(target, x, dim, means, *([next(spare)] if has_work(x.shape, dim) else []))
        else:
            add_up(xp, target, x, next(spare), dim, means)
        x = target


@kernel("adaptive_avg_pool", workspace=_mean_work(_term))
def adaptive_avg_pool(
    xp: ArrayModule, out: Array, x: Array, *work: Array, output_size: Sizes
) -> None:
    _dim_by_dim(xp, out, x, work, is_back=False)


@kernel("adaptive_avg_pool_grad", workspace=_share_work(_term))
def adaptive_avg_pool_grad(
    xp: ArrayModule, d_x: Array, d_out: Array, *work: Array, spatial: Sizes
) -> None:
    _dim_by_dim(xp, d_x, d_out, work, is_back=True)


@fused_kernel("adaptive_avg_pool", workspace=_mean_work(blend_work))
def adaptive_avg_pool_fused(
    xp: ArrayModule, out: Array, x: Array, *work: Array, output_size: Sizes
) -> None:
    _dim_by_dim(xp, out, x, work, is_back=False, is_fused=True)


@fused_kernel("adaptive_avg_pool_grad", workspace=_share_work(blend_work))
def adaptive_avg_pool_grad_fused(
    xp: ArrayModule, d_x: Array, d_out: Array, *work: Array, spatial: Sizes
) -> None:
    _dim_by_dim(xp, d_x, d_out, work, is_back=True, is_fused=True)


# ---- one dim resized -----------------------------------------------------------------------------


def _forward(x: Array, out: Array, dim: int, way: Way) -> Neighbours:
    return neighbours(x.shape[dim], out.shape[dim], False, x.dtype, tuple(way.items()))


def _backward(d: Array, d_x: Array, dim: int, way: Way) -> Neighbours:
    return neighbours(d_x.shape[dim], d.shape[dim], True, d.dtype, tuple(way.items()))


def _terms(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    """One neighbour of all places."""
    return (resized(types[0], attrs["dim"], attrs["size"]),)


@kernel("resize", workspace=_terms)
def resize(
    xp: ArrayModule, out: Array, x: Array, term: Array, *, dim: int, size: int,
    **way: Unpack[Way],
) -> None:  # fmt: skip
    add_up(xp, out, x, term, dim, _forward(x, out, dim, way))


@kernel("resize_grad", workspace=_terms)
def resize_grad(
    xp: ArrayModule, d_x: Array, d: Array, term: Array, *, dim: int, size: int,
    **way: Unpack[Way],
) -> None:  # fmt: skip
    add_up(xp, d_x, d, term, dim, _backward(d, d_x, dim, way))


def _blend_work(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    return blend_work(types[0], attrs["dim"], attrs["size"])


@fused_kernel("resize", workspace=_blend_work)
def resize_fused(
    xp: ArrayModule, out: Array, x: Array, *work: Array, dim: int, size: int, **way: Unpack[Way]
) -> None:
    blend_dim(out, x, dim, _forward(x, out, dim, way), *work)


@fused_kernel("resize_grad", workspace=_blend_work)
def resize_grad_fused(
    xp: ArrayModule, d_x: Array, d: Array, *work: Array, dim: int, size: int, **way: Unpack[Way]
) -> None:
    blend_dim(d_x, d, dim, _backward(d, d_x, dim, way), *work)


# ---- float32 planes on a CPU: one visit, no padded copy ------------------------------------------

_LEAST_ELEMENTS = 8192


def _plain(window: MaxWindow) -> Window:
    """The window as the functions of planes take it."""
    sizes = (*window["kernel"], *window["stride"], *window["padding"], *window["dilation"])
    return cast("Window", sizes)


def _programs() -> ModuleType:
    """Machine code for planes; llvmlite takes a moment to import."""
    from oneflow.kernels.native import pool

    return pool


def _work(x: TensorType, out: TensorType, window: MaxWindow) -> tuple[TensorType, ...]:
    if 0 in (*x.shape, *out.shape):
        return ()
    return (x.with_shape(_programs().work_shape(x.shape, out.shape, _plain(window))),)


def _fused_max_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    if types[0].ndim != 4:
        return _max_workspace(types, attrs)
    return _work(types[0], MaxPool.infer(types[0], **attrs)[0], cast("MaxWindow", attrs))


@fused_kernel("max_pool", workspace=_fused_max_workspace, min_elements=_LEAST_ELEMENTS)
def max_pool_fused(
    xp: ArrayModule,
    out: Array,
    indices: Array,
    x: Array,
    *work: Array,
    ceil_mode: bool,
    **window: Unpack[MaxWindow],
) -> None:
    if x.ndim != 4:
        return max_pool(xp, out, indices, x, *work, ceil_mode=ceil_mode, **window)
    if work:
        _programs().max_pool(out, indices, np.ascontiguousarray(x), _plain(window), work[0])


def _fused_max_grad_workspace(
    types: tuple[TensorType, ...], attrs: Attrs
) -> tuple[TensorType, ...]:
    return () if types[0].ndim == 4 else _max_grad_workspace(types, attrs)


@fused_kernel("max_pool_grad", workspace=_fused_max_grad_workspace, min_elements=_LEAST_ELEMENTS)
def max_pool_grad_fused(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    indices: Array,
    *work: Array,
    spatial: Sizes,
    **window: Unpack[MaxWindow],
) -> None:
    if d_out.ndim != 4:
        return max_pool_grad(xp, d_x, d_out, indices, *work, spatial=spatial, **window)
    given = np.ascontiguousarray(d_out), np.ascontiguousarray(indices)
    _programs().max_pool_grad(d_x, *given, _plain(window))


def _divisor_matrix(out: Array, spatial: Sizes, window: AvgWindow) -> Array:
    divisors = _divisors(np, out, spatial, window)
    return np.ascontiguousarray(np.broadcast_to(divisors, out.shape[2:]))


def _fused_avg_workspace(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    if types[0].ndim != 4:
        return _avg_workspace(types, attrs)
    window = _undilated(cast("AvgWindow", attrs))
    return _work(types[0], AvgPool.infer(types[0], **attrs), window)


@fused_kernel("avg_pool", workspace=_fused_avg_workspace, min_elements=_LEAST_ELEMENTS)
def avg_pool_fused(
    xp: ArrayModule, out: Array, x: Array, *work: Array, **window: Unpack[AvgWindow]
) -> None:
    if x.ndim != 4:
        return avg_pool(xp, out, x, *work, **window)
    if work:
        divisors = _divisor_matrix(out, x.shape[2:], window)
        given = np.ascontiguousarray(x), divisors, _plain(_undilated(window)), work[0]
        _programs().avg_pool(out, *given)


def _fused_avg_grad_workspace(
    types: tuple[TensorType, ...], attrs: Attrs
) -> tuple[TensorType, ...]:
    d_out = types[0]
    if d_out.ndim != 4:
        return _avg_grad_workspace(types, attrs)
    x = d_out.with_shape((*d_out.shape[:2], *attrs["spatial"]))
    return _work(x, d_out, _undilated(cast("AvgWindow", attrs)))


@fused_kernel("avg_pool_grad", workspace=_fused_avg_grad_workspace, min_elements=_LEAST_ELEMENTS)
def avg_pool_grad_fused(
    xp: ArrayModule,
    d_x: Array,
    d_out: Array,
    *work: Array,
    spatial: Sizes,
    **window: Unpack[AvgWindow],
) -> None:
    if d_out.ndim != 4:
        return avg_pool_grad(xp, d_x, d_out, *work, spatial=spatial, **window)
    if not work:
        d_x[...] = 0
        return None
    divisors = _divisor_matrix(d_out, spatial, window)
    given = np.ascontiguousarray(d_out), divisors, _plain(_undilated(window)), work[0]
    _programs().avg_pool_grad(d_x, *given)


# ---- cells of boxes ------------------------------------------------------------------------------
#
# A cell's mean is separable, out = rows @ image @ columns^T. The points of a cell form a grid, so
# the share of pixel (y, x) in the mean of cell (i, j) is rows[i, y] * columns[j, x]. Both are zero
# but for a few neighbours: `Taps` holds these. A GPU reads point by point (pool_boxes_gpu.py).


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


def _box_programs() -> ModuleType:
    """Return the machine code; llvmlite takes a moment to import."""
    from oneflow.kernels.native import pool_boxes

    return pool_boxes


def _lines(x: TensorType, rows: int, width: int) -> tuple[TensorType, ...]:
    return (x.with_shape(_box_programs().lines_shape(rows, width)),)


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
    _box_programs().means(out, np.ascontiguousarray(x), np.ascontiguousarray(images), taps, lines)


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
    _box_programs().spread(
        d_x, np.ascontiguousarray(d_out), np.ascontiguousarray(images), taps, lines
    )
