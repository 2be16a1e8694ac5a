"""Functions of `torch` that its own layers are written with, and programs call now and then.

Each is a composition of our functions: `torch.native_layer_norm` is `nn.functional.layer_norm` with
its statistics, `torch.grid_sampler` is `grid_sample` with numbers in place of names.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.compat.torch.methods import empty_strided
from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DTypeLike, dtype_of
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.core.no_effect import without_effect
from oneflow.core.operand import DimLike, Number, TensorLike
from oneflow.functional import creation
from oneflow.functional.arithmetic import add, mul, sub
from oneflow.functional.dims import many_dims
from oneflow.functional.from_data import beside
from oneflow.functional.nn import activation as nn_activation
from oneflow.functional.nn import layers as nn_layers
from oneflow.functional.nn import loss as nn_loss
from oneflow.functional.nn import sampling as nn_sampling
from oneflow.functional.promotion import as_float, as_type
from oneflow.functional.reduction import mean, var
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import permute, reshape
from oneflow.nn.common_types import one_or_more
from oneflow.ops import unary
from oneflow.tensor.creation_like import Where, layout_of, number_of
from oneflow.tensor.tensor import Tensor, needs_data

if TYPE_CHECKING:
    from typing_extensions import Unpack

histogramdd_result = namedtuple("histogramdd_result", ("hist", "bin_edges"))

MODES = ("bilinear", "nearest", "bicubic")
PADDING_MODES = ("zeros", "border", "reflection")


# ---- normalization with its statistics -----------------------------------------------------------


def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`layer_norm`, with the mean of each row and the reciprocal of its standard deviation."""
    sizes = one_or_more(normalized_shape, "native_layer_norm: normalized_shape")
    out = _like(input, nn_layers.layer_norm(input, sizes, weight, bias, eps))
    dims = tuple(range(input.ndim - len(sizes), input.ndim))
    return out, *_statistics(input.detach(), weight, dims, eps, keepdim=True)


def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`group_norm`, with the mean of each group and the reciprocal of its standard deviation.

    N, C, HxW: the batch, the channels, and the product of the other dims of `input`.
    """
    given = {"N": N, "C": C, "HxW": HxW, "group": group}
    N, C, HxW, group = (number_of(v, k, "native_group_norm") for k, v in given.items())
    if input.meta.numel != N * C * HxW:
        raise ShapeError(f"native_group_norm: {input.meta} has not {N} x {C} x {HxW} elements")
    out = _like(input, nn_layers.group_norm(input, group, weight, bias, eps))
    groups = reshape(input, (N, group, C // group * HxW))
    return out, *_statistics(groups, weight, (2,), eps, keepdim=False)


def native_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """`batch_norm`, with the mean of each channel and the reciprocal of its standard deviation,
    which are empty outside of training.
    """
    momentum = number_of(momentum, "momentum", "native_batch_norm")
    out = nn_layers.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )
    if not training:
        none = creation.new_empty(input, (0,))
        return _like(input, out), none, none
    dims = tuple(d for d in range(input.ndim) if d != 1)
    return _like(input, out), *_statistics(input.detach(), weight, dims, eps, keepdim=False)


def _statistics(
    x: Tensor, weight: Tensor | None, dims: tuple[int, ...], eps: float, keepdim: bool
) -> tuple[Tensor, Tensor]:
    """The mean over `dims`, and the reciprocal of the standard deviation, in the weight's dtype."""
    if weight is not None:
        x = as_type(x, weight.meta.dtype)
    spread = var(x, dims, False, keepdim)
    return mean(x, dims, keepdim), unary.rsqrt(add(spread, eps))


def _like(input: Tensor, out: Tensor) -> Tensor:
    return as_type(out, input.meta.dtype)


# ---- gradients and masks -------------------------------------------------------------------------


def native_dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """`dropout`, and the bool mask of the elements that it keeps."""
    if train is False:
        return mul(input, 1), creation.ones_like(input, dtype=dtypes.bool_)
    kept = nn_activation.dropout(creation.ones_like(input), p)
    return mul(input, kept), as_type(kept, dtypes.bool_)


def _softmax_backward_data(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: DTypeLike
) -> Tensor:
    """The gradient of softmax along `dim`, given its result."""
    both = mul(grad_output, output)
    return _narrowed(sub(both, mul(output, total(both, dim, True))), input_dtype)


def _narrowed(gradient: Tensor, input_dtype: DTypeLike) -> Tensor:
    """A gradient in the dtype of the input, if that is narrower: softmax may give float32 of it."""
    dtype = dtype_of(input_dtype)
    is_narrower = dtype.bytes < gradient.meta.dtype.bytes
    return as_type(gradient, dtype) if is_narrower else gradient


def _log_softmax_backward_data(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: DTypeLike
) -> Tensor:
    """The gradient of log_softmax along `dim`, given its result."""
    share = mul(unary.exp(output), total(grad_output, dim, True))
    return _narrowed(sub(grad_output, share), input_dtype)


# ---- layers by other arguments -------------------------------------------------------------------


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: Number = 0) -> Tensor:
    """`pad` in its mode constant."""
    value = number_of(value, "value", "constant_pad_nd")
    return nn_layers.pad(input, one_or_more(pad, "constant_pad_nd: pad"), "constant", value)


def grid_sampler(
    input: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """`grid_sample` of images or volumes, its modes given by number.

    interpolation_mode: 0 bilinear, 1 nearest, 2 bicubic.  padding_mode: 0 zeros, 1 border,
    2 reflection.
    """
    if interpolation_mode not in range(3) or padding_mode not in range(3):
        raise ArgumentError(
            "grid_sampler: interpolation_mode and padding_mode are 0, 1 or 2, got "
            f"{interpolation_mode} and {padding_mode}"
        )
    return nn_sampling.grid_sample(
        input, grid, MODES[interpolation_mode], PADDING_MODES[padding_mode], align_corners
    )


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: object = None,
) -> Tensor:
    """`cross_entropy` of `linear(input, linear_weight, linear_bias)`.

    input: (N, features) or (features,).  linear_weight: (classes, ..., features); the
    dims between are those of the target.
    """
    if options is not None:
        without_effect("linear_cross_entropy(options=)", "the scores are computed at once")
    *sizes, features = linear_weight.meta.shape
    if len(sizes) > 1 and input.ndim < 2:
        raise ShapeError(
            f"linear_cross_entropy: linear_weight {linear_weight.meta} has several dims of scores "
            f"and needs an input (N, {features}), got {input.meta}"
        )
    if ignore_index is not None and target.meta.dtype.is_floating_point:
        raise ArgumentError(
            f"linear_cross_entropy: ignore_index names a class, but the target {target.meta} has "
            "probabilities"
        )
    label_smoothing = number_of(label_smoothing, "label_smoothing", "linear_cross_entropy")
    flat = None if linear_bias is None else reshape(linear_bias, (-1,))
    scores = nn_layers.linear(input, reshape(linear_weight, (-1, features)), flat)
    scores = reshape(scores, (*input.meta.shape[:-1], *sizes))
    ignored = -100 if ignore_index is None else ignore_index
    return nn_loss.cross_entropy(scores, target, weight, ignored, reduction, label_smoothing)


def rdiv(input: Tensor, other: TensorLike) -> Tensor:
    """other / input."""
    return mul(unary.reciprocal(as_float(input)), other)


# ---- memory --------------------------------------------------------------------------------------


def detach(input: Tensor) -> Tensor:
    """The tensor without its history, over the same memory."""
    return input.detach()


def empty_permuted(
    size: Sequence[int],
    physical_layout: Sequence[int],
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """Uninitialised memory in which the dims lie in the order of `physical_layout`."""
    order = [int(d) for d in physical_layout]
    if sorted(order) != list(range(len(size))):
        raise ShapeError(
            f"empty_permuted: physical_layout {order} must name each of {len(size)} dims once"
        )
    memory = creation.empty(tuple(size[d] for d in order), dtype=dtype, **where)
    made = permute(memory, tuple(order.index(d) for d in range(len(order)))).detach()
    made.requires_grad = requires_grad
    return made


def new_empty_strided(
    self: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: DTypeLike | None = None,
    requires_grad: bool = False,
    **where: Unpack[Where],
) -> Tensor:
    """`empty_strided` with the dtype and place of this tensor unless others are given."""
    place: dict[str, Any] = {**layout_of(self), **where}
    kind = self.meta.dtype if dtype is None else dtype
    return empty_strided(size, stride, dtype=kind, requires_grad=requires_grad, **place)


# ---- counts --------------------------------------------------------------------------------------


def histogramdd(
    input: Tensor,
    bins: int | Sequence[int] | Sequence[Tensor],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> histogramdd_result:
    """The weight of the points in each bin of a grid, and the edges of the bins along each dim.

    input: (..., number of coordinates).  bins: how many, of equal width, for all coordinates or for
    each, over `range` (low, high, low, high, ...); or the edges of each.
    """
    needs_data(input, "histogramdd()")
    if input.ndim < 2:
        raise ShapeError(f"histogramdd: input must have at least 2 dims, got {input.meta}")
    kind, count = input.meta.dtype.np, input.meta.shape[-1]
    points = input.numpy().reshape(-1, count)
    edges = [e.astype(kind) for e in _grid(points, bins, range)]
    heavy = None if weight is None else weight.numpy().reshape(-1).astype(np.float64)
    found, _ = np.histogramdd(
        points.astype(np.float64), [e.astype(np.float64) for e in edges], weights=heavy
    )
    if density:
        sides = np.ix_(*[np.diff(e.astype(np.float64)) for e in edges])
        found = found / found.sum() / math.prod(sides)
    return histogramdd_result(
        beside(input, found.astype(kind)), tuple(beside(input, e) for e in edges)
    )


def _grid(
    points: np.ndarray[Any, Any],
    bins: int | Sequence[int] | Sequence[Tensor],
    ends: Sequence[float] | None,
) -> list[np.ndarray[Any, Any]]:
    """The edges of the bins along each coordinate."""
    count = points.shape[1]
    counts: list[Any] = [bins] * count if isinstance(bins, int) else list(bins)
    if len(counts) != count or (ends is not None and len(ends) != 2 * count):
        raise ShapeError(
            f"histogramdd: {count} coordinates need as many bins and pairs of ends, got "
            f"{len(counts)} bins and range {ends}"
        )
    if all(isinstance(c, Tensor) for c in counts):
        given = [c.numpy() for c in counts]
        if not all((np.diff(edges) > 0).all() for edges in given):
            raise ArgumentError("histogramdd: the edges of bins must increase; sort them")
        return given
    found = []
    for i, parts in enumerate(counts):
        if ends is not None:
            low, high = float(ends[2 * i]), float(ends[2 * i + 1])
        elif len(points):
            low, high = float(points[:, i].min()), float(points[:, i].max())
        else:
            low, high = 0.0, 1.0
        if low == high:
            low, high = low - 0.5, high + 0.5
        found.append(np.linspace(low, high, int(parts) + 1))
    return found


def hash_tensor(
    input: Tensor, dim: DimLike = None, *, keepdim: bool = False, mode: int = 0
) -> Tensor:
    """The exclusive or of the bits of the elements over `dim`, as uint64.

    Floating-point elements count as float64, integers and bools as int64.  mode: 0.
    """
    needs_data(input, "hash_tensor()")
    if mode != 0:
        raise ArgumentError(f"hash_tensor: mode 0 is the exclusive or, the only one, got {mode}")
    is_float = input.meta.dtype.is_floating_point
    numbers = as_type(input, dtypes.float64 if is_float else dtypes.int64).numpy()
    dims = many_dims(dim, input.ndim, "hash_tensor")
    bits = np.ascontiguousarray(numbers).view(np.uint64).reshape(numbers.shape)
    xor: Any = np.bitwise_xor.reduce
    return beside(input, np.asarray(xor(bits, axis=dims, keepdims=keepdim)))
