"""Pooling over 1, 2 or 3 spatial dims: maximum, average, and average to a given output size."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.dtype import int64
from oneflow.core.errors import ShapeError
from oneflow.core.op import Attr, Op, register
from oneflow.core.sbp import PARTIAL, SbpSignature, Split, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float
from oneflow.ops.conv import Sizes, check_spatial


def pooled_size(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> int:
    """Number of windows along a dim; with ceil_mode the last may overhang."""
    span = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding else count


def _pooled(
    who: str,
    x: TensorType,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
) -> TensorType:
    require_float(who, x)
    check_spatial(who, x, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    for k, p in zip(kernel, padding, strict=True):
        if p > k // 2:
            raise ShapeError(f"{who}: pad should be smaller than half of kernel size, got {p}, {k}")
    sizes = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    positions = tuple(pooled_size(*s, ceil_mode) for s in sizes)
    if min(positions) < 1:
        raise ShapeError(f"{who}: the kernel {kernel} is larger than the padded {x}")
    return x.with_shape((*x.shape[:2], *positions))


def _sample_signatures(num_inputs: int, num_outputs: int, linear: bool) -> list[SbpSignature]:
    """Split over samples or channels, alike everywhere."""
    result = [SbpSignature((Split(i),) * num_inputs, (Split(i),) * num_outputs) for i in (0, 1)]
    if linear:
        result.append(SbpSignature((PARTIAL,) * num_inputs, (PARTIAL,) * num_outputs))
    return result


@register
class MaxPool(Op):
    """Maximum of each window of x (N, C, *spatial), padded with -inf.

    Outputs: the maxima, and int64 indices of the first maximum in the flattened spatial dims.
    """

    name = "max_pool"
    num_outputs = 2

    @staticmethod
    def infer(
        x: TensorType,
        *,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
        ceil_mode: bool = False,
    ) -> tuple[TensorType, TensorType]:
        out = _pooled("max_pool", x, kernel, stride, padding, dilation, ceil_mode)
        return out, out.with_dtype(int64)

    @staticmethod
    def sbp(x: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return _sample_signatures(1, 2, linear=False)

    @staticmethod
    def grad(
        d_out: Any, d_indices: Any, x: Any, out: Any, indices: Any, *, ceil_mode: bool, **attrs: Any
    ) -> tuple[Any, ...]:
        if d_out is None:
            return (None,)
        return (lambda: max_pool_grad(d_out, indices, spatial=x.type.shape[2:], **attrs),)


@register
class MaxPoolGrad(Op):
    """d_x: each d_out is added where its window's maximum came from.   d_out, indices: as of
    max_pool.
    """

    name = "max_pool_grad"

    @staticmethod
    def infer(
        d_out: TensorType,
        indices: TensorType,
        *,
        spatial: Sizes,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        dilation: Sizes,
    ) -> TensorType:
        return d_out.with_shape((*d_out.shape[:2], *spatial))

    @staticmethod
    def sbp(d_out: TensorType, indices: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return [*_sample_signatures(2, 1, linear=False), signature("P B -> P")]


@register
class AvgPool(Op):
    """Average of each window of x (N, C, *spatial), padded with zeros.

    The divisor is divisor_override if not 0, else the window's elements inside the padded x, or
    inside x itself if not count_include_pad.
    """

    name = "avg_pool"

    @staticmethod
    def infer(
        x: TensorType,
        *,
        kernel: Sizes,
        stride: Sizes,
        padding: Sizes,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int = 0,
    ) -> TensorType:
        return _pooled("avg_pool", x, kernel, stride, padding, (1,) * len(kernel), ceil_mode)

    @staticmethod
    def sbp(x: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return _sample_signatures(1, 1, linear=True)

    @staticmethod
    def grad(d_out: Any, x: Any, out: Any, **attrs: Any) -> tuple[Any, ...]:
        return (lambda: avg_pool_grad(d_out, spatial=x.type.shape[2:], **attrs),)


@register
class AvgPoolGrad(Op):
    """d_x: each d_out, divided as in avg_pool, is added to its whole window."""

    name = "avg_pool_grad"

    @staticmethod
    def infer(d_out: TensorType, *, spatial: Sizes, **attrs: Attr) -> TensorType:
        return d_out.with_shape((*d_out.shape[:2], *spatial))

    @staticmethod
    def sbp(d_out: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return _sample_signatures(1, 1, linear=True)

    @staticmethod
    def grad(dd: Any, d_out: Any, d_x: Any, *, spatial: Sizes, **attrs: Any) -> tuple[Any, ...]:
        return (lambda: avg_pool(dd, **attrs),)


@register
class AdaptiveAvgPool(Op):
    """Averages x (N, C, *spatial) to `output_size`: window i of a dim is
    [i size / n, (i + 1) size / n), rounded outward.
    """

    name = "adaptive_avg_pool"

    @staticmethod
    def infer(x: TensorType, *, output_size: Sizes) -> TensorType:
        require_float("adaptive_avg_pool", x)
        check_spatial("adaptive_avg_pool", x, output_size=output_size)
        return x.with_shape((*x.shape[:2], *output_size))

    @staticmethod
    def sbp(x: TensorType, *, output_size: Sizes) -> list[SbpSignature]:
        return _sample_signatures(1, 1, linear=True)

    @staticmethod
    def grad(d_out: Any, x: Any, out: Any, *, output_size: Sizes) -> tuple[Any, ...]:
        return (lambda: adaptive_avg_pool_grad(d_out, spatial=x.type.shape[2:]),)


@register
class AdaptiveAvgPoolGrad(Op):
    """d_x: each d_out is spread evenly over its window."""

    name = "adaptive_avg_pool_grad"

    @staticmethod
    def infer(d_out: TensorType, *, spatial: Sizes) -> TensorType:
        return d_out.with_shape((*d_out.shape[:2], *spatial))

    @staticmethod
    def sbp(d_out: TensorType, *, spatial: Sizes) -> list[SbpSignature]:
        return _sample_signatures(1, 1, linear=True)

    @staticmethod
    def grad(dd: Any, d_out: Any, d_x: Any, *, spatial: Sizes) -> tuple[Any, ...]:
        return (lambda: adaptive_avg_pool(dd, output_size=d_out.type.shape[2:]),)


def max_pool(
    x: Any,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool = False,
) -> Any:
    """See MaxPool. Returns (maxima, indices)."""
    return call(
        MaxPool,
        x,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        ceil_mode=ceil_mode,
    )


def max_pool_grad(
    d_out: Any,
    indices: Any,
    *,
    spatial: Sizes,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
) -> Any:
    """See MaxPoolGrad."""
    return call(
        MaxPoolGrad,
        d_out,
        indices,
        spatial=spatial,
        kernel=kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
    )


def avg_pool(
    x: Any,
    *,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int = 0,
) -> Any:
    """See AvgPool."""
    return call(
        AvgPool,
        x,
        kernel=kernel,
        stride=stride,
        padding=padding,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        divisor_override=divisor_override,
    )


def avg_pool_grad(d_out: Any, *, spatial: Sizes, **attrs: Attr) -> Any:
    """See AvgPoolGrad; attrs: those of avg_pool."""
    return call(AvgPoolGrad, d_out, spatial=spatial, **attrs)


def adaptive_avg_pool(x: Any, *, output_size: Sizes) -> Any:
    """See AdaptiveAvgPool."""
    return call(AdaptiveAvgPool, x, output_size=output_size)


def adaptive_avg_pool_grad(d_out: Any, *, spatial: Sizes) -> Any:
    """See AdaptiveAvgPoolGrad."""
    return call(AdaptiveAvgPoolGrad, d_out, spatial=spatial)
