"""Convolutions over 1, 2 or 3 spatial dims, and their two gradients, which are closed under
differentiation.
"""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, register
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.softmax import check_float

Sizes = tuple[int, ...]


def window_count(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """How many positions a window of `kernel` has along a dim of `size`."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def check_spatial(who: str, x: TensorType, **attrs: Sizes) -> int:
    """Number of spatial dims of x (N, C, ...). Raises ShapeError unless each attr has one number
    for each.
    """
    spatial = x.ndim - 2
    if spatial not in (1, 2, 3):
        raise ShapeError(f"{who}: needs (N, C, ...) with 1 to 3 spatial dims, got {x}")
    for key, value in attrs.items():
        if len(value) != spatial:
            raise ShapeError(f"{who}: {key} {value} must have {spatial} numbers for {x}")
    return spatial


@register
class Conv(Op):
    """out[n, o] = sum over c and window of x[n, c] * w[o, c] (a cross-correlation, as usual).

    x: (N, C, *spatial).  w: (O, C / groups, *kernel).  out: (N, O, *positions).
    stride, padding, dilation: one number per spatial dim.  groups divides C and O.
    """

    name = "conv"

    @staticmethod
    def infer(
        x: TensorType,
        w: TensorType,
        *,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        groups: int = 1,
    ) -> TensorType:
        check_float("conv", x, w)
        spatial = check_spatial("conv", x, stride=stride, padding=padding, dilation=dilation)
        if w.ndim != x.ndim or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
            raise ShapeError(
                f"conv: w {w} with {groups} groups does not fit x {x}; it needs shape "
                f"(out, {x.shape[1]} / groups, kernel of {spatial} dims), groups dividing both"
            )
        sizes = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
        positions = tuple(window_count(*s) for s in sizes)
        if min(positions) < 1:
            raise ShapeError(f"conv: the kernel of w {w} is larger than the padded x {x}")
        return x.with_shape((x.shape[0], w.shape[0], *positions))

    @staticmethod
    def sbp(x: TensorType, w: TensorType, *, groups: int = 1, **_: Any) -> list[SbpSignature]:
        always = [signature("S0 B -> S0"), signature("P B -> P"), signature("B P -> P")]
        channels = [signature("B S0 -> S1"), signature("S1 S1 -> P")]
        return always + (channels if groups == 1 else [])

    @staticmethod
    def grad(d_out: Any, x: Any, w: Any, out: Any, **attrs: Any) -> tuple[Any, ...]:
        return (
            lambda: conv_data_grad(d_out, w, spatial=x.type.shape[2:], **attrs),
            lambda: conv_filter_grad(d_out, x, kernel=w.type.shape[2:], **attrs),
        )


@register
class ConvDataGrad(Op):
    """d_x of conv: (N, C, *spatial) of d_out (N, O, *positions) and w. Also the transposed
    convolution.
    """

    name = "conv_data_grad"

    @staticmethod
    def infer(
        d_out: TensorType,
        w: TensorType,
        *,
        spatial: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        groups: int = 1,
    ) -> TensorType:
        check_float("conv_data_grad", d_out, w)
        check_spatial("conv_data_grad", d_out, spatial=spatial, stride=stride, padding=padding)
        if d_out.ndim != w.ndim or d_out.shape[1] != w.shape[0]:
            raise ShapeError(f"conv_data_grad: d_out {d_out} does not fit w {w}")
        sizes = zip(spatial, w.shape[2:], stride, padding, dilation, strict=True)
        if tuple(window_count(*s) for s in sizes) != d_out.shape[2:]:
            raise ShapeError(f"conv_data_grad: spatial {spatial} does not give d_out {d_out}")
        return d_out.with_shape((d_out.shape[0], w.shape[1] * groups, *spatial))

    @staticmethod
    def sbp(d_out: TensorType, w: TensorType, *, groups: int = 1, **_: Any) -> list[SbpSignature]:
        always = [signature("S0 B -> S0"), signature("P B -> P"), signature("B P -> P")]
        channels = [signature("S1 S0 -> P"), signature("B S1 -> S1")]
        return always + (channels if groups == 1 else [])

    @staticmethod
    def grad(
        dd: Any, d_out: Any, w: Any, d_x: Any, *, spatial: Sizes, **attrs: Any
    ) -> tuple[Any, ...]:
        return (
            lambda: conv(dd, w, **attrs),
            lambda: conv_filter_grad(d_out, dd, kernel=w.type.shape[2:], **attrs),
        )


@register
class ConvFilterGrad(Op):
    """d_w of conv: (O, C / groups, *kernel) of d_out (N, O, *positions) and x (N, C, *spatial)."""

    name = "conv_filter_grad"

    @staticmethod
    def infer(
        d_out: TensorType,
        x: TensorType,
        *,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        groups: int = 1,
    ) -> TensorType:
        check_float("conv_filter_grad", d_out, x)
        check_spatial("conv_filter_grad", x, kernel=kernel, stride=stride, padding=padding)
        return x.with_shape((d_out.shape[1], x.shape[1] // groups, *kernel))

    @staticmethod
    def sbp(d_out: TensorType, x: TensorType, *, groups: int = 1, **_: Any) -> list[SbpSignature]:
        always = [signature("S0 S0 -> P"), signature("P B -> P"), signature("B P -> P")]
        channels = [signature("S1 B -> S0"), signature("B S1 -> S1")]
        return always + (channels if groups == 1 else [])

    @staticmethod
    def grad(
        dd: Any, d_out: Any, x: Any, d_w: Any, *, kernel: Sizes, **attrs: Any
    ) -> tuple[Any, ...]:
        return (
            lambda: conv(x, dd, **attrs),
            lambda: conv_data_grad(d_out, dd, spatial=x.type.shape[2:], **attrs),
        )


def conv(x: Any, w: Any, *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int = 1) -> Any:
    """See Conv."""
    return call(Conv, x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)


def conv_data_grad(
    d_out: Any,
    w: Any,
    *,
    spatial: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int = 1,
) -> Any:
    """See ConvDataGrad."""
    return call(
        ConvDataGrad,
        d_out,
        w,
        spatial=spatial,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )


def conv_filter_grad(
    d_out: Any,
    x: Any,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int = 1,
) -> Any:
    """See ConvFilterGrad."""
    return call(
        ConvFilterGrad,
        d_out,
        x,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
    )
