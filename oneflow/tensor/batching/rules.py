"""Rules of ops whose signatures do not say how a call is made for all samples at once.

A rule of one table writes the op with others, for one sample; a rule of the other is given operands
with the samples in dim 0, and makes results that have them there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.dtype import int64
from oneflow.core.op import find_op, infer_types
from oneflow.core.operand import Attr, Attrs
from oneflow.ops import binary, unary
from oneflow.ops.cast import cast
from oneflow.ops.creation import arange
from oneflow.ops.gather import checked_index
from oneflow.ops.layer_norm import layer_norm, layer_norm_grad, rms_norm, rms_norm_grad
from oneflow.ops.matmul import matmul
from oneflow.ops.reduce import reduce_sum
from oneflow.tensor.batching.values import from_front, shaped, turned
from oneflow.tensor.tensor import Tensor

# ---- written with other ops ----------------------------------------------------------------------


def _rows(x: Tensor) -> Tensor:
    """A matrix of all rows of the last dim."""
    return shaped(x, (prod(x.meta.shape[:-1]), x.meta.shape[-1]))


def _linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    rows = matmul(_rows(x), w, transpose_b=True)
    return binary.add(shaped(rows, (*x.meta.shape[:-1], w.meta.shape[0])), b)


def _matmul_weight_grad(a: Tensor, d: Tensor, *, transpose: bool) -> Tensor:
    left, right = (d, a) if transpose else (a, d)
    return matmul(_rows(left), _rows(right), transpose_a=True)


def _sum_rows(x: Tensor) -> Tensor:
    return reduce_sum(x, dims=tuple(range(x.ndim - 1)))


def _square_sum(x: Tensor) -> Tensor:
    (wide,) = infer_types(find_op("square_sum"), (x.meta,), {})
    square = unary.square(cast(x, dtype=wide.dtype))
    return reduce_sum(square, dims=tuple(range(x.ndim)))


def _wider(x: Tensor, other: Tensor) -> Tensor:
    return cast(x, dtype=other.meta.dtype)


def _layer_norm(x: Tensor, *affine: Tensor, begin_axis: int, eps: float) -> tuple[Tensor, ...]:
    y, mean, inv_std = layer_norm(x, begin_axis=begin_axis, eps=eps)
    for t, op in zip(affine, (binary.mul, binary.add), strict=False):
        y = op(y, t)
    return y, mean, inv_std


def _layer_norm_grad(
    d_y: Tensor, x: Tensor, mean: Tensor, inv_std: Tensor, gamma: Tensor, *, begin_axis: int
) -> tuple[Tensor, ...]:
    statistics = (mean, inv_std)
    (d_x,) = layer_norm_grad(binary.mul(d_y, gamma), x, *statistics, begin_axis=begin_axis)
    column = (*mean.meta.shape, *(1,) * (x.ndim - begin_axis))
    centred = binary.sub(_wider(x, mean), shaped(mean, column))
    hat = binary.mul(centred, shaped(inv_std, column))
    wide, dims = _wider(d_y, mean), tuple(range(begin_axis))
    d_gamma = reduce_sum(binary.mul(wide, hat), dims=dims)
    return d_x, _wider(d_gamma, gamma), _wider(reduce_sum(wide, dims=dims), gamma)


def _rms_norm(x: Tensor, *affine: Tensor, begin_axis: int, eps: float) -> tuple[Tensor, ...]:
    y, inv_rms = rms_norm(x, begin_axis=begin_axis, eps=eps)
    for gamma in affine:
        y = binary.mul(y, gamma)
    return y, inv_rms


def _rms_norm_grad(
    d_y: Tensor, x: Tensor, inv_rms: Tensor, gamma: Tensor, *, begin_axis: int
) -> tuple[Tensor, ...]:
    (d_x,) = rms_norm_grad(binary.mul(d_y, gamma), x, inv_rms, begin_axis=begin_axis)
    column = (*inv_rms.meta.shape, *(1,) * (x.ndim - begin_axis))
    hat = binary.mul(_wider(x, inv_rms), shaped(inv_rms, column))
    d_gamma = reduce_sum(binary.mul(_wider(d_y, hat), hat), dims=tuple(range(begin_axis)))
    return d_x, _wider(d_gamma, gamma)


WRITTEN: dict[str, Callable[..., Any]] = {
    "layer_norm": _layer_norm,
    "layer_norm_grad": _layer_norm_grad,
    "linear": _linear,
    "matmul_weight_grad": _matmul_weight_grad,
    "rms_norm": _rms_norm,
    "rms_norm_grad": _rms_norm_grad,
    "square_sum": _square_sum,
    "sum_rows": _sum_rows,
}
"""`rule(*operands, **attrs)`: the results of the op, of one sample, made by other ops."""


# ---- of whole operands ---------------------------------------------------------------------------


def _channels(x: Tensor) -> Tensor:
    """(B, N, C, ...) as (N, B * C, ...)."""
    size, rows, channels, *rest = x.meta.shape
    return shaped(from_front(x, 1), (rows, size * channels, *rest))


def _filters(w: Tensor) -> Tensor:
    """(B, O, C, ...) as (B * O, C, ...)."""
    size, first, *rest = w.meta.shape
    return shaped(w, (size * first, *rest))


def _apart(x: Tensor, size: int) -> Tensor:
    """(N, B * C, ...) as (B, N, C, ...)."""
    rows, channels, *rest = x.meta.shape
    split = shaped(x, (rows, size, channels // size, *rest))
    return turned(split, (1, 0, *range(2, split.ndim)))


def _in_groups(name: str, a: Tensor, b: Tensor, groups: int, attrs: Attrs) -> Tensor:
    """A convolution with a group for each group of each sample."""
    made: Tensor = call(find_op(name), a, b, **{**attrs, "groups": groups})
    return made


def _conv(x: Tensor, w: Tensor, *, groups: int, **attrs: Attr) -> Tensor:
    size = x.meta.shape[0]
    return _apart(_in_groups("conv", _channels(x), _filters(w), size * groups, attrs), size)


def _conv_data_grad(d_out: Tensor, w: Tensor, *, groups: int, **attrs: Attr) -> Tensor:
    size = w.meta.shape[0]
    operands = _channels(d_out), _filters(w)
    return _apart(_in_groups("conv_data_grad", *operands, size * groups, attrs), size)


def _conv_filter_grad(d_out: Tensor, x: Tensor, *, groups: int, **attrs: Attr) -> Tensor:
    size = x.meta.shape[0]
    operands = _channels(d_out), _channels(x)
    made = _in_groups("conv_filter_grad", *operands, size * groups, attrs)
    first, *rest = made.meta.shape
    return shaped(made, (size, first // size, *rest))


def _own_positions(index: Tensor, size: int, dim: int) -> Tensor:
    """Positions of a dim in which those of all samples lie one after the other, `size` of each."""
    count = index.meta.shape[0]
    checked = checked_index(index, size=size, dim=dim, wraps=False)
    wide = cast(checked, dtype=int64)
    first: Tensor = arange(start=0, length=count, step=size, dtype=int64)
    return binary.add(wide, shaped(first, (count, *(1,) * (index.ndim - 1))))


def _gather(x: Tensor, index: Tensor, *, dim: int, **_: object) -> Tensor:
    count, *own = x.meta.shape
    size = own[dim]
    joined = shaped(from_front(x, dim), (*own[:dim], count * size, *own[dim + 1 :]))
    places = _own_positions(index, size, dim)
    made: Tensor = call(find_op("gather"), joined, places, dim=dim, size=count * size)
    return _front(made, dim)


def _gather_grad(d: Tensor, index: Tensor, *, dim: int, size: int, **_: object) -> Tensor:
    count = d.meta.shape[0]
    places = _own_positions(index, size, dim)
    made: Tensor = call(
        find_op("gather_grad"), from_front(d, dim), places, dim=dim, size=count * size
    )
    own = made.meta.shape
    return _front(shaped(made, (*own[:dim], count, size, *own[dim + 1 :])), dim)


def _front(x: Tensor, dim: int) -> Tensor:
    return turned(x, (dim, *(i for i in range(x.ndim) if i != dim)))


def _as_strided(
    x: Tensor, *, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Tensor:
    count, each = x.meta.shape[0], prod(x.meta.shape[1:])
    made: Tensor = call(
        find_op("as_strided"), x, size=(count, *size), stride=(each, *stride), offset=offset
    )
    return made


def _as_strided_grad(
    d: Tensor, *, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> Tensor:
    whole = (d.meta.shape[0], *shape)
    strides = (prod(shape), *stride)
    made: Tensor = call(find_op("as_strided_grad"), d, shape=whole, stride=strides, offset=offset)
    return made


def _as_strided_update(x: Tensor, part: Tensor, *, stride: tuple[int, ...], offset: int) -> Tensor:
    strides = (prod(x.meta.shape[1:]), *stride)
    made: Tensor = call(find_op("as_strided_update"), x, part, stride=strides, offset=offset)
    return made


def _roi_align(x: Tensor, boxes: Tensor, index: Tensor, **attrs: Attr) -> Tensor:
    """The images of all samples, and the boxes, as those of one."""
    count, images, *_ = x.meta.shape
    places = _in_line(_own_positions(index, images, 0))
    made: Tensor = call(
        find_op("roi_align"), _filters(x), _filters(boxes), _as(places, index), **attrs
    )
    first, *rest = made.meta.shape
    return shaped(made, (count, first // count, *rest))


def _roi_align_grad(
    d: Tensor, boxes: Tensor, index: Tensor, *, shape: tuple[int, ...], **attrs: Attr
) -> Tensor:
    count, (images, *own) = d.meta.shape[0], shape
    places = _in_line(_own_positions(index, images, 0))
    operands = _filters(d), _filters(boxes), _as(places, index)
    whole = (count * images, *own)
    made: Tensor = call(find_op("roi_align_grad"), *operands, shape=whole, **attrs)
    return shaped(made, (count, images, *made.meta.shape[1:]))


def _in_line(index: Tensor) -> Tensor:
    return shaped(index, (prod(index.meta.shape),))


def _as(index: Tensor, like: Tensor) -> Tensor:
    return cast(index, dtype=like.meta.dtype)


def _reshape(x: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """A reshape of no elements, of which signatures say nothing."""
    return shaped(x, (x.meta.shape[0], *shape))


OF_WHOLES: dict[str, Callable[..., Any]] = {
    "as_strided": _as_strided,
    "as_strided_grad": _as_strided_grad,
    "as_strided_update": _as_strided_update,
    "conv": _conv,
    "conv_data_grad": _conv_data_grad,
    "conv_filter_grad": _conv_filter_grad,
    "gather": _gather,
    "gather_grad": _gather_grad,
    "reshape": _reshape,
    "roi_align": _roi_align,
    "roi_align_grad": _roi_align_grad,
}
"""`rule(*wholes, **attrs)`: all operands, and all results, have the samples in dim 0."""


def results_of(made: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the result of a rule as a tuple."""
    return (made,) if isinstance(made, Tensor) else tuple(made)
