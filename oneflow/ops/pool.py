"""Pooling over 1, 2 or 3 spatial dims: maximum, average, and average to a given output size;
RoIAlign, which averages the cells of boxes (He et al., arXiv:1703.06870); resizing of one dim."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypedDict

from oneflow.core.dtype import int64
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_dim, require_float, require_shape
from oneflow.ops.conv import Sizes, check_spatial
from oneflow.ops.gather import dim_gather
from oneflow.ops.shape import reshape
from oneflow.ops.where import flat_in_first

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Window(TypedDict):
    """One number per spatial dim each."""

    kernel: Sizes
    stride: Sizes
    padding: Sizes


class MaxWindow(Window):
    """The attrs of max_pool and its gradient."""

    dilation: Sizes


class AvgWindow(Window, total=False):
    """The attrs of avg_pool and its gradient.

    The divisor is divisor_override if not 0, else the number of the window's elements inside the
    padded x, or inside x itself if not count_include_pad.
    """

    ceil_mode: bool
    count_include_pad: bool
    divisor_override: int


def pooled_size(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int:
    """Number of windows along a dim; with ceil_mode the last may overhang."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _pooled(
    who: str,
    x: Operand,
    ceil_mode: bool,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
) -> TensorType:
    """The type of the maxima or means. Raises ShapeError or DTypeError."""
    require_float(who, x)
    check_spatial(who, x, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    for k, p in zip(kernel, padding, strict=True):
        if p > k // 2:
            raise ShapeError(f"{who}: pad should be smaller than half of kernel size, got {p}, {k}")
    sizes = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    positions = tuple(pooled_size(*s, ceil_mode) for s in sizes)
    if min(positions) < 1:
        raise ShapeError(f"{who}: the kernel {kernel} is larger than the padded {x}")
    return x.meta.with_shape((*x.shape[:2], *positions))


def _unpooled(d_out: Operand, spatial: Sizes) -> TensorType:
    """The type of d_x."""
    return d_out.meta.with_shape((*d_out.shape[:2], *spatial))


def _by_samples(num_inputs: int, num_outputs: int = 1) -> list[SbpSignature]:
    """Split over samples or channels, alike everywhere."""
    return [SbpSignature((Split(i),) * num_inputs, (Split(i),) * num_outputs) for i in (0, 1)]


_AVG_DEFAULTS = {"ceil_mode": False, "count_include_pad": True, "divisor_override": 0}


class _Linear(Op):
    """The common part of all poolings of one tensor that are linear in it."""

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return [*_by_samples(1), SbpSignature((PARTIAL,), (PARTIAL,))]


class MaxPool(Op):
    """Maximum of each window of x (N, C, *spatial), padded with -inf.

    Outputs: the maxima, and int64 indices of the first maximum in the flattened spatial dims.
    """

    name = "max_pool"
    precision = "either"

    @staticmethod
    def infer(
        x: Operand, *, ceil_mode: bool = False, **window: Unpack[MaxWindow]
    ) -> tuple[TensorType, TensorType]:
        out = _pooled("max_pool", x, ceil_mode, **window)
        return out, out.with_dtype(int64)

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return _by_samples(1, 2)

    @staticmethod
    def grad(
        d_out: Tensor | None,
        d_indices: Tensor | None,
        x: Tensor,
        out: Tensor,
        indices: Tensor,
        *,
        ceil_mode: bool,
        **window: Unpack[MaxWindow],
    ) -> Gradients:
        if d_out is None:
            return (None,)
        return (lambda: max_pool_grad(d_out, indices, spatial=x.meta.shape[2:], **window),)

    @staticmethod
    def recorded_grad(
        d_out: Tensor | None,
        d_indices: Tensor | None,
        x: Tensor,
        out: Tensor,
        indices: Tensor,
        *,
        ceil_mode: bool,
        **window: Unpack[MaxWindow],
    ) -> Gradients:
        found = MaxPool.grad(d_out, d_indices, x, out, indices, ceil_mode=ceil_mode, **window)
        return flat_in_first(found, x)


max_pool = declare(MaxPool)


class MaxPoolGrad(Op):
    """The gradient of max_pool.

    d_x: each d_out is added where its window's maximum came from. d_out, indices: as of max_pool.
    """

    name = "max_pool_grad"

    @staticmethod
    def infer(
        d_out: Operand, indices: Operand, *, spatial: Sizes, **window: Unpack[MaxWindow]
    ) -> TensorType:
        require_shape("max_pool_grad", d_out.shape, indices=indices)
        return _unpooled(d_out, spatial)

    @staticmethod
    def sbp(d_out: TensorType, indices: TensorType, **_: object) -> list[SbpSignature]:
        return [*_by_samples(2), signature("P B -> P")]

    @staticmethod
    def grad(dd: Tensor, d_out: Tensor, indices: Tensor, d_x: Tensor, **_: object) -> Gradients:
        def at_maxima() -> Tensor:
            lead = d_out.meta.shape[:2]
            rows = reshape(dd, shape=(*lead, math.prod(dd.meta.shape[2:])))
            places = reshape(indices, shape=(*lead, math.prod(indices.meta.shape[2:])))
            found: Tensor = reshape(dim_gather(rows, places, dim=2), shape=d_out.meta.shape)
            return found

        return at_maxima, None


max_pool_grad = declare(MaxPoolGrad)


class AvgPool(_Linear):
    """Average of each window of x (N, C, *spatial), padded with zeros."""

    name = "avg_pool"
    precision = "follow"
    defaults = _AVG_DEFAULTS

    @staticmethod
    def infer(x: Operand, **window: Unpack[AvgWindow]) -> TensorType:
        kernel, stride, padding = window["kernel"], window["stride"], window["padding"]
        ones = (1,) * len(kernel)
        return _pooled(
            "avg_pool",
            x,
            window["ceil_mode"],
            kernel=kernel,
            stride=stride,
            padding=padding,
            dilation=ones,
        )

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor, **window: Unpack[AvgWindow]) -> Gradients:
        return (lambda: avg_pool_grad(d_out, spatial=x.meta.shape[2:], **window),)

    @staticmethod
    def recorded_grad(
        d_out: Tensor, x: Tensor, out: Tensor, **window: Unpack[AvgWindow]
    ) -> Gradients:
        return flat_in_first(AvgPool.grad(d_out, x, out, **window), x)


avg_pool = declare(AvgPool)


class AvgPoolGrad(_Linear):
    """d_x: each d_out, divided as in avg_pool, is added to its whole window."""

    name = "avg_pool_grad"
    defaults = _AVG_DEFAULTS

    @staticmethod
    def infer(d_out: Operand, *, spatial: Sizes, **window: Unpack[AvgWindow]) -> TensorType:
        made = AvgPool.infer(_unpooled(d_out, spatial), **window)
        require_shape("avg_pool_grad", made.shape, d_out=d_out)
        return _unpooled(d_out, spatial)

    @staticmethod
    def grad(
        dd: Tensor, d_out: Tensor, d_x: Tensor, *, spatial: Sizes, **window: Unpack[AvgWindow]
    ) -> Gradients:
        return (lambda: avg_pool(dd, **window),)


avg_pool_grad = declare(AvgPoolGrad)


class AdaptiveAvgPool(_Linear):
    """Averages x (N, C, *spatial) to `output_size`: window i of a dim is
    [i size / n, (i + 1) size / n), rounded outward.
    """

    name = "adaptive_avg_pool"
    precision = "follow"

    @staticmethod
    def infer(x: Operand, *, output_size: Sizes) -> TensorType:
        require_float("adaptive_avg_pool", x)
        check_spatial("adaptive_avg_pool", x, output_size=output_size)
        return _unpooled(x, output_size)

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor, **_: object) -> Gradients:
        return (lambda: adaptive_avg_pool_grad(d_out, spatial=x.meta.shape[2:]),)

    @staticmethod
    def recorded_grad(d_out: Tensor, x: Tensor, out: Tensor, **attrs: object) -> Gradients:
        return flat_in_first(AdaptiveAvgPool.grad(d_out, x, out, **attrs), x)


adaptive_avg_pool = declare(AdaptiveAvgPool)


class AdaptiveAvgPoolGrad(_Linear):
    """d_x: each d_out is spread evenly over its window."""

    name = "adaptive_avg_pool_grad"

    @staticmethod
    def infer(d_out: Operand, *, spatial: Sizes) -> TensorType:
        check_spatial("adaptive_avg_pool_grad", d_out, spatial=spatial)
        return _unpooled(d_out, spatial)

    @staticmethod
    def grad(dd: Tensor, d_out: Tensor, d_x: Tensor, **_: object) -> Gradients:
        return (lambda: adaptive_avg_pool(dd, output_size=d_out.meta.shape[2:]),)


adaptive_avg_pool_grad = declare(AdaptiveAvgPoolGrad)


# ---- cells of boxes ------------------------------------------------------------------------------


class Cells(TypedDict):
    """The attrs that cut boxes into cells, and place the points of a cell.

    scale: pixels of the image per unit of the boxes. sampling_ratio: points along a side of a cell;
    0: as many as the side has pixels. aligned: the middle of a pixel lies at its index plus 1/2.
    """

    scale: float
    sampling_ratio: int
    aligned: bool


def _check_boxes(name: str, boxes: Operand, images: Operand) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4 or images.shape != boxes.shape[:1]:
        raise ShapeError(
            f"{name}: needs boxes (R, 4: x1, y1, x2, y2) and their images (R,), got {boxes.meta}, "
            f"{images.meta}"
        )
    require_float(name, boxes)
    if images.dtype is not int64:
        raise DTypeError(f"{name}: the images of the boxes must be int64, got {images.meta}")


class RoiAlign(Op):
    """out[r, c, i, j] = the mean of x[images[r], c] over the points of cell (i, j) of box r, each
    interpolated between its four pixels; points outside of the image by more than a pixel are 0.

    x: (N, C, H, W); boxes: (R, 4: x1, y1, x2, y2), which get no gradient; images: (R,), int64; out:
    (R, C, *size).
    """

    name = "roi_align"
    precision = "follow"
    stays_wide = (1,)

    @staticmethod
    def infer(
        x: Operand,
        boxes: Operand,
        images: Operand,
        *,
        size: tuple[int, int],
        **cells: Unpack[Cells],
    ) -> TensorType:
        require_float("roi_align", x)
        if x.ndim != 4 or min(size) < 1 or min(x.shape[2:]) < 1:
            raise ShapeError(
                f"roi_align: needs images (N, C, H, W) with pixels and at least one cell, got "
                f"{x.meta} and {size} cells"
            )
        _check_boxes("roi_align", boxes, images)
        return x.meta.with_shape((boxes.shape[0], x.shape[1], *size))

    @staticmethod
    def positions(x: TensorType, *_: TensorType, **__: object) -> dict[int, range]:
        return {2: range(x.shape[0])}

    @staticmethod
    def sbp(x: TensorType, *_: TensorType, **__: object) -> list[SbpSignature]:
        return [
            SbpSignature((Split(1), BROADCAST, BROADCAST), (Split(1),)),
            SbpSignature((BROADCAST, Split(0), Split(0)), (Split(0),)),
            signature("P B B -> P"),
        ]

    @staticmethod
    def grad(
        d_out: Tensor,
        x: Tensor,
        boxes: Tensor,
        images: Tensor,
        out: Tensor,
        *,
        size: tuple[int, int],
        **cells: Unpack[Cells],
    ) -> Gradients:
        batch, _, height, width = x.meta.shape
        shape = (batch, height, width)
        return (lambda: roi_align_grad(d_out, boxes, images, shape=shape, **cells)), None, None


roi_align = declare(RoiAlign)


class RoiAlignGrad(Op):
    """d_x (N, C, H, W): each d_out (R, C, rows, columns) is spread over the pixels that `roi_align`
    reads. shape: N, H, W."""

    name = "roi_align_grad"

    @staticmethod
    def infer(
        d_out: Operand,
        boxes: Operand,
        images: Operand,
        *,
        shape: tuple[int, int, int],
        **cells: Unpack[Cells],
    ) -> TensorType:
        _check_boxes("roi_align_grad", boxes, images)
        if d_out.ndim != 4 or d_out.shape[0] != boxes.shape[0]:
            raise ShapeError(
                f"roi_align_grad: needs (R, C, rows, columns) and boxes (R, 4), got {d_out.meta}, "
                f"{boxes.meta}"
            )
        batch, *spatial = shape
        return d_out.meta.with_shape((batch, d_out.shape[1], *spatial))

    @staticmethod
    def positions(*_: TensorType, shape: tuple[int, int, int], **__: object) -> dict[int, range]:
        return {2: range(shape[0])}

    @staticmethod
    def sbp(d_out: TensorType, *_: TensorType, **__: object) -> list[SbpSignature]:
        return [
            SbpSignature((Split(1), BROADCAST, BROADCAST), (Split(1),)),
            SbpSignature((Split(0), Split(0), Split(0)), (PARTIAL,)),
            signature("P B B -> P"),
        ]

    @staticmethod
    def grad(
        dd: Tensor,
        d_out: Tensor,
        boxes: Tensor,
        images: Tensor,
        d_x: Tensor,
        *,
        shape: tuple[int, int, int],
        **cells: Unpack[Cells],
    ) -> Gradients:
        size = (d_out.meta.shape[2], d_out.meta.shape[3])
        return (lambda: roi_align(dd, boxes, images, size=size, **cells)), None, None


roi_align_grad = declare(RoiAlignGrad)


# ---- one dim resized -----------------------------------------------------------------------------


class Way(TypedDict):
    """The way in which a dim is resized.

    mode: nearest, nearest-exact, linear or cubic. factor: of the sizes, or 0 for that of the sizes
    themselves. antialias: where the result is smaller, weights reach over all that a place stands
    for.
    """

    mode: str
    factor: float
    align_corners: bool
    antialias: bool


class _AlongDim(Op):
    """The common part of both directions."""

    precision = "follow"

    @staticmethod
    def sbp(x: TensorType, *, dim: int, **_: object) -> list[SbpSignature]:
        others = [i for i in range(x.ndim) if i != dim]
        return [
            *(SbpSignature((Split(i),), (Split(i),)) for i in others),
            SbpSignature((PARTIAL,), (PARTIAL,)),
        ]


def _resized(name: str, x: Operand, dim: int, size: int) -> TensorType:
    require_float(name, x)
    require_dim(name, x, dim)
    return x.meta.with_shape((*x.shape[:dim], size, *x.shape[dim + 1 :]))


class Resize(_AlongDim):
    """out: x with `size` places along `dim`, each a weighted sum of neighbours in x."""

    name = "resize"

    @staticmethod
    def infer(x: Operand, *, dim: int, size: int, **way: Unpack[Way]) -> TensorType:
        return _resized("resize", x, dim, size)

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, out: Tensor, *, dim: int, size: int, **way: Unpack[Way]
    ) -> Gradients:
        return (lambda: resize_grad(d, dim=dim, size=x.meta.shape[dim], **way),)


resize = declare(Resize)


class ResizeGrad(_AlongDim):
    """d_x, with `size` places along `dim`: each d is added to the places that `resize` reads, by
    its weights."""

    name = "resize_grad"

    @staticmethod
    def infer(d: Operand, *, dim: int, size: int, **way: Unpack[Way]) -> TensorType:
        return _resized("resize_grad", d, dim, size)

    @staticmethod
    def grad(
        dd: Tensor, d: Tensor, d_x: Tensor, *, dim: int, size: int, **way: Unpack[Way]
    ) -> Gradients:
        return (lambda: resize(dd, dim=dim, size=d.meta.shape[dim], **way),)


resize_grad = declare(ResizeGrad)
