"""Convolutions over 1, 2 or 3 spatial dims, and their two gradients, which are closed under
differentiation.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, TypedDict

from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float, require_shape

if TYPE_CHECKING:
    from typing_extensions import Unpack

Sizes = tuple[int, ...]


class Geometry(TypedDict):
    """The attrs of all three ops. groups divides the channels of both sides; the others have one
    number per spatial dim.
    """

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int


def window_count(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Number of positions that a window of `kernel` has along a dim of `size`."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def check_spatial(who: str, x: Operand, **attrs: Sizes) -> int:
    """Number of spatial dims of x (N, C, ...). Raises ShapeError unless each attr has one number
    for each.
    """
    spatial = x.ndim - 2
    if spatial not in (1, 2, 3):
        raise ShapeError(f"{who}: needs (N, C, ...) with 1 to 3 spatial dims, got {x}")
    for key, value in attrs.items():
        if len(value) != spatial:
            raise ShapeError(f"{who}: {key} {value} must have {spatial} numbers for {x}")
        least = 0 if key == "padding" else 1
        if min(value) < least and key != "spatial":
            raise ShapeError(f"{who}: {key} {value} must be at least {least} for {x}")
    return spatial


def _positions(spatial: Sizes, kernel: Sizes, geometry: Geometry) -> Sizes:
    windows = (geometry[key] for key in ("stride", "padding", "dilation"))
    return tuple(window_count(*sizes) for sizes in zip(spatial, kernel, *windows, strict=True))


def _signatures(channels: tuple[str, str], groups: int) -> list[SbpSignature]:
    """channels: the two ways to split them; with groups, a group would lie on two ranks."""
    always = ("P B -> P", "B P -> P")
    return [signature(text) for text in (*always, *(channels if groups == 1 else ()))]


class Conv(Op):
    """out[n, o] = sum over c and window of x[n, c] * w[o, c] (a cross-correlation, as usual).

    x: (N, C, *spatial).  w: (O, C / groups, *kernel).  out: (N, O, *positions).
    """

    name = "conv"
    precision = "lower"

    @staticmethod
    def infer(x: Operand, w: Operand, **geometry: Unpack[Geometry]) -> TensorType:
        require_float("conv", x, w)
        groups = geometry["groups"]
        spatial = _check_geometry("conv", x, geometry)
        if w.ndim != x.ndim or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ShapeError(
                f"conv: w {w} with {groups} groups does not fit x {x}; it needs shape "
                f"(out, {x.shape[1]} / groups, kernel of {spatial} dims), groups dividing both"
            )
        positions = _positions(x.shape[2:], w.shape[2:], geometry)
        if min(positions) < 1:
            raise ShapeError(f"conv: the kernel of w {w} is larger than the padded x {x}")
        return x.meta.with_shape((x.shape[0], w.shape[0], *positions))

    @staticmethod
    def flops(x: TensorType, w: TensorType, **geometry: Unpack[Geometry]) -> int:
        positions = _positions(x.shape[2:], w.shape[2:], geometry)
        return 2 * x.shape[0] * prod(positions) * w.numel

    @staticmethod
    def sbp(x: TensorType, w: TensorType, *, groups: int, **_: object) -> list[SbpSignature]:
        return [signature("S0 B -> S0"), *_signatures(("B S0 -> S1", "S1 S1 -> P"), groups)]

    @staticmethod
    def grad(
        d_out: Tensor, x: Tensor, w: Tensor, out: Tensor, **geometry: Unpack[Geometry]
    ) -> Gradients:
        return (
            lambda: conv_data_grad(d_out, w, spatial=x.meta.shape[2:], **geometry),
            lambda: conv_filter_grad(d_out, x, kernel=w.meta.shape[2:], **geometry),
        )


conv = declare(Conv)


class ConvDataGrad(Op):
    """The gradient of conv for its data, which is also the transposed convolution.

    d_x of conv: (N, C, *spatial) of d_out (N, O, *positions) and w. Also the transposed
    convolution.
    """

    name = "conv_data_grad"
    precision = "lower"

    @staticmethod
    def infer(
        d_out: Operand, w: Operand, *, spatial: Sizes, **geometry: Unpack[Geometry]
    ) -> TensorType:
        require_float("conv_data_grad", d_out, w)
        _check_geometry("conv_data_grad", d_out, geometry, spatial=spatial)
        if d_out.ndim != w.ndim or d_out.shape[1] != w.shape[0]:
            raise ShapeError(f"conv_data_grad: d_out {d_out} does not fit w {w}")
        if _positions(spatial, w.shape[2:], geometry) != d_out.shape[2:]:
            raise ShapeError(f"conv_data_grad: spatial {spatial} does not give d_out {d_out}")
        channels = w.shape[1] * geometry["groups"]
        return d_out.meta.with_shape((d_out.shape[0], channels, *spatial))

    @staticmethod
    def flops(d_out: TensorType, w: TensorType, **_: object) -> int:
        return 2 * d_out.shape[0] * prod(d_out.shape[2:]) * w.numel

    @staticmethod
    def sbp(d_out: TensorType, w: TensorType, *, groups: int, **_: object) -> list[SbpSignature]:
        return [signature("S0 B -> S0"), *_signatures(("S1 S0 -> P", "B S1 -> S1"), groups)]

    @staticmethod
    def grad(
        dd: Tensor,
        d_out: Tensor,
        w: Tensor,
        d_x: Tensor,
        *,
        spatial: Sizes,
        **geometry: Unpack[Geometry],
    ) -> Gradients:
        return (
            lambda: conv(dd, w, **geometry),
            lambda: conv_filter_grad(d_out, dd, kernel=w.meta.shape[2:], **geometry),
        )


conv_data_grad = declare(ConvDataGrad)


class ConvFilterGrad(Op):
    """d_w of conv: (O, C / groups, *kernel) of d_out (N, O, *positions) and x (N, C, *spatial)."""

    name = "conv_filter_grad"
    precision = "lower"

    @staticmethod
    def infer(
        d_out: Operand, x: Operand, *, kernel: Sizes, **geometry: Unpack[Geometry]
    ) -> TensorType:
        require_float("conv_filter_grad", d_out, x)
        _check_geometry("conv_filter_grad", x, geometry, kernel=kernel)
        positions = _positions(x.shape[2:], kernel, geometry)
        require_shape("conv_filter_grad", (x.shape[0], *d_out.shape[1:2], *positions), d_out=d_out)
        return x.meta.with_shape((d_out.shape[1], x.shape[1] // geometry["groups"], *kernel))

    @staticmethod
    def flops(
        d_out: TensorType, x: TensorType, *, kernel: Sizes, **geometry: Unpack[Geometry]
    ) -> int:
        return 2 * d_out.numel * (x.shape[1] // geometry["groups"]) * prod(kernel)

    @staticmethod
    def sbp(d_out: TensorType, x: TensorType, *, groups: int, **_: object) -> list[SbpSignature]:
        return [signature("S0 S0 -> P"), *_signatures(("S1 B -> S0", "B S1 -> S1"), groups)]

    @staticmethod
    def grad(
        dd: Tensor,
        d_out: Tensor,
        x: Tensor,
        d_w: Tensor,
        *,
        kernel: Sizes,
        **geometry: Unpack[Geometry],
    ) -> Gradients:
        return (
            lambda: conv(x, dd, **geometry),
            lambda: conv_data_grad(d_out, dd, spatial=x.meta.shape[2:], **geometry),
        )


conv_filter_grad = declare(ConvFilterGrad)


def _check_geometry(who: str, x: Operand, geometry: Geometry, **more: Sizes) -> int:
    """Number of spatial dims. Raises ShapeError unless each attr has one number for each."""
    windows = {key: geometry[key] for key in ("stride", "padding", "dilation")}
    return check_spatial(who, x, **more, **windows)
