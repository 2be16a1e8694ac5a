"""Layers as functions: linear, normalisation, embedding, padding, resizing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import cast

from oneflow.core.dtype import float32, promote
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.metrics import METRICS
from oneflow.core.operand import Number
from oneflow.functional.arithmetic import add, div, eq, mul, sub
from oneflow.functional.concat_split import cat
from oneflow.functional.creation import zeros
from oneflow.functional.elementwise import clamp, pick
from oneflow.functional.gather_scatter import as_index, index_add
from oneflow.functional.linalg.products import matmul
from oneflow.functional.promotion import NARROW, as_type, together
from oneflow.functional.reduction import mean, norm, var, widened
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import (
    broadcast_tensors,
    expand,
    flip,
    pad_with,
    permute,
    reshape,
    unsqueeze,
)
from oneflow.functional.strides import unfold_dim
from oneflow.ops import batch_norm as batch_norm_ops
from oneflow.ops import gather as gather_ops
from oneflow.ops import layer_norm as norm_ops
from oneflow.ops import matmul as matmul_ops
from oneflow.ops import slicing, unary
from oneflow.ops.compare import logical_and
from oneflow.ops.unary import full_like, piecewise_linear, reciprocal
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.layout import finfo
from oneflow.tensor.tensor import Tensor
from oneflow.tensor.views import apart


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input @ weight^T + bias.  input: (..., in).  weight: (out, in).  bias: (out,)."""
    if input.meta.shape[-1:] != weight.meta.shape[-1:]:
        raise ShapeError(
            f"linear: input {input.meta} and weight {weight.meta} differ in their last dim"
        )
    if bias is None or weight.ndim < 2:
        out = matmul(input, weight, transpose_b=weight.ndim == 2)
        return out if bias is None else add(out, bias)
    if input.ndim < 2:
        rows = matmul_ops.linear(unsqueeze(input, 0), weight, bias)
        return reshape(rows, weight.meta.shape[:1])
    return matmul_ops.linear(input, weight, bias)


# ---- normalisation -------------------------------------------------------------------------------


def _begin_axis(x: Tensor, normalized_shape: int | Sequence[int], who: str) -> int:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    begin = x.ndim - len(shape)
    if begin < 0 or x.meta.shape[begin:] != shape:
        raise ShapeError(
            f"{who}: normalized_shape {list(shape)} must be the last dims of the input {x.meta}"
        )
    return begin


def _as_input(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`function` of half floats and wider parameters: computed in float32, and rounded to the dtype
    of the input, as in PyTorch."""

    @wraps(function)
    def apply(input: Tensor, *args: object, **keywords: object) -> Tensor:
        kind = input.meta.dtype
        given = (*args, *keywords.values())
        if kind not in NARROW or all(x.meta.dtype is kind for x in given if isinstance(x, Tensor)):
            return function(input, *args, **keywords)
        return as_type(function(as_type(input, float32), *args, **keywords), kind)

    return apply


@_as_input
def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 over the last dims, then scaled by weight and moved by bias."""
    begin = _begin_axis(input, normalized_shape, "layer_norm")
    if weight is None:
        out = norm_ops.layer_norm(input, begin_axis=begin, eps=float(eps))[0]
        return out if bias is None else add(out, bias)
    affine = (weight,) if bias is None else (weight, bias)
    return norm_ops.layer_norm(input, *affine, begin_axis=begin, eps=float(eps))[0]


@_as_input
def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int] | None = None,
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Divided by the root of the mean square over the last dims, then scaled by weight.

    eps: added to the mean square; None for the distance of 1 from the next number of the dtype in
    which the mean is computed, float32 at least.
    """
    if eps is None:
        eps = finfo(promote(input.meta.dtype, float32)).eps
    if normalized_shape is None:
        normalized_shape = input.meta.shape[-1:] if weight is None else weight.meta.shape
    begin = _begin_axis(input, normalized_shape, "rms_norm")
    if weight is None:
        return norm_ops.rms_norm(input, begin_axis=begin, eps=float(eps))[0]
    both = together(input, weight)
    return norm_ops.rms_norm(*both, begin_axis=begin, eps=float(eps))[0]


@_as_input
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 over each group of channels of (N, C, ...)."""
    shape = input.meta.shape
    if len(shape) < 2:
        raise ShapeError(f"group_norm: expected at least 2 dimensions, got {input.meta}")
    if shape[1] % num_groups:
        raise ShapeError(
            f"group_norm: {num_groups} groups do not divide the channels of {input.meta}"
        )
    rows = reshape(input, (shape[0], num_groups, input.meta.numel // max(shape[0] * num_groups, 1)))
    out = reshape(norm_ops.layer_norm(rows, begin_axis=2, eps=float(eps))[0], shape)
    column = (1, -1, *(1,) * (len(shape) - 2))
    out = out if weight is None else mul(out, reshape(weight, column))
    return out if bias is None else add(out, reshape(bias, column))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    num_batches: Tensor | None = None,
) -> Tensor:
    """Mean 0 and variance 1 per channel of (N, C, ...): of the batch in training, else the running
    ones.

    num_batches: int64[], how many there were; if given, training counts on, and the running
    statistics are the mean over all batches, and the momentum does not count.
    """
    running = None if running_mean is None or running_var is None else (running_mean, running_var)
    affine = _affine(weight, bias)
    if not input.meta.numel:
        return _of_nothing(input, affine)
    return batch_norm_ops.batch_norm(
        input,
        running,
        affine,
        training=bool(training),
        momentum=float(momentum),
        eps=float(eps),
        batches=num_batches,
    )


def _affine(weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Both of a scale and a shift: where one is missing, the one that changes nothing."""
    if weight is None and bias is None:
        return None
    if weight is None:
        return full_like(cast(Tensor, bias).detach(), value=1.0), cast(Tensor, bias)
    return weight, full_like(weight.detach(), value=0.0) if bias is None else bias


def _of_nothing(x: Tensor, affine: tuple[Tensor, Tensor] | None) -> Tensor:
    """No elements, with a history: gradients are zeros."""
    for parameter in affine or ():
        x = add(x, mul(total(parameter), 0.0))
    return add(x, 0.0)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 over each channel of each sample.

    running_mean, running_var: (C,), moved towards the mean over the samples by `momentum`; without
    use_input_stats they are the statistics.
    """
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if running_mean is not None and running_var is not None:
        _track_instances(input, running_mean, running_var, momentum)
    return group_norm(input, input.meta.shape[1], weight, bias, eps)


def _track_instances(x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> None:
    with no_grad():
        places = tuple(range(2, x.ndim))
        for running, found in (
            (running_mean, mean(mean(x, places), 0)),
            (running_var, mean(var(x, places), 0)),
        ):
            running.copy_(add(mul(running, 1 - momentum), mul(found, momentum)))


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float | Tensor = 1e-12) -> Tensor:
    """Divided by the p-norm along `dim` (at least eps)."""
    return div(input, clamp(norm(input, p, dim, True), min=eps))


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along `dim`; other dims are broadcast."""
    x1, x2 = broadcast_tensors(*together(x1, x2))
    if not x1.meta.dtype.is_floating_point:
        raise DTypeError(
            "cosine_similarity: expected common dtype to be floating point, yet common dtype is "
            f"{x1.meta.dtype}"
        )
    a, b = widened(x1), widened(x2)
    lengths = mul(clamp(norm(a, 2, dim), min=eps), clamp(norm(b, 2, dim), min=eps))
    return as_type(div(total(mul(a, b), dim), lengths), x1.meta.dtype)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last dim."""
    return norm(add(sub(x1, x2), eps), p, -1, keepdim)


# ---- positions -----------------------------------------------------------------------------------


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Row input[...] of `weight` for each integer.

    padding_idx: this row gets no gradient.  max_norm: rows that are read and are longer are first
    shortened to it, in place.  scale_grad_by_freq: the gradient of a row is divided by the number
    of times that it is read.
    """
    if weight.ndim != 2:
        raise ShapeError(f"embedding: 'weight' must be 2-D, got {weight.meta}")
    index = as_index(input)
    if max_norm is not None:
        _shorten_rows(weight, _times_read(index, weight), max_norm, norm_type)
    out = gather_ops.gather(weight, index, dim=0)
    if out.value is None:  # a graph's are counted by its actors
        METRICS.looked_up(index._array.size if index.is_global else index.meta.numel)
    if scale_grad_by_freq and out.requires_grad:
        share = reciprocal(gather_ops.gather(_times_read(index, weight), index, dim=0))
        out.register_hook(lambda d: mul(d, as_type(unsqueeze(share, -1), d.meta.dtype)))
        out = reshape(out, out.meta.shape)  # its users' own hooks see the gradient as it comes
    if padding_idx is None or not weight.requires_grad:
        return out
    row = padding_idx % weight.meta.shape[0]
    return pick(unsqueeze(eq(index, row), -1), out.detach(), out)


def _times_read(index: Tensor, weight: Tensor) -> Tensor:
    """The number of times that each row of `weight` is read, float32[rows]."""
    flat = reshape(index, (-1,))
    ones = full_like(as_type(flat, float32), value=1.0)
    where = layout_of(weight.detach(), no_partial=True, ndim=1)
    return index_add(zeros(weight.meta.shape[:1], dtype=float32, **where), 0, flat, ones)


def _shorten_rows(weight: Tensor, times: Tensor, max_norm: float, norm_type: float) -> None:
    with no_grad():
        lengths = norm(weight, norm_type, 1, True)
        is_long = logical_and(unsqueeze(times > 0, -1), lengths > max_norm)
        weight.copy_(pick(is_long, mul(weight, div(max_norm, add(lengths, 1e-7))), weight))


def pixel_shuffle(
    input: Tensor, upscale_factor: int, w_upscale_factor: int | None = None
) -> Tensor:
    """(..., C r s, H, W) -> (..., C, H r, W s); r: upscale_factor; s: w_upscale_factor, or r."""
    rows = int(upscale_factor)
    columns = rows if w_upscale_factor is None else int(w_upscale_factor)
    if input.ndim < 3:
        raise ShapeError(
            "pixel_shuffle expects input to have at least 3 dimensions, but got input with "
            f"{input.ndim} dimension(s): {input.meta}"
        )
    if min(rows, columns) < 1:
        raise ShapeError(
            f"pixel_shuffle expects a positive upscale_factor, but got {min(rows, columns)}"
        )
    *lead, c, h, w = input.meta.shape
    if c % (rows * columns):
        raise ShapeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square "
            f"of upscale_factor, but input.size(-3)={c} is not divisible by {rows * columns}"
        )
    n, channels = len(lead), c // (rows * columns)
    x = reshape(input, (*lead, channels, rows, columns, h, w))
    x = x.permute(*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return apart(reshape(x, (*lead, channels, h * rows, w * columns)), input)


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Number = 0) -> Tensor:
    """The tensor with its ends padded.

    pad: (before, after) of the last dim, then of the one before it, ... mode: constant, reflect,
    replicate, circular. Negative pads cut off (constant mode).
    """
    pads = [int(p) for p in pad]
    if len(pads) % 2 or len(pads) > 2 * input.ndim:
        raise ShapeError(f"pad: {pads} must be pairs, at most one for each dim of {input.meta}")
    if mode != "constant":
        x = input
        for k in range(len(pads) // 2):
            x = _pad_by_index(x, x.ndim - 1 - k, pads[2 * k], pads[2 * k + 1], mode)
        return apart(x, input)
    full = [0] * (2 * input.ndim)
    for k in range(len(pads) // 2):
        at = input.ndim - 1 - k
        full[2 * at], full[2 * at + 1] = pads[2 * k], pads[2 * k + 1]
    return pad_with(_cut(input, full), tuple(max(p, 0) for p in full), value)


def _cut(x: Tensor, pads: list[int]) -> Tensor:
    if min(pads, default=0) >= 0:
        return x
    starts = tuple(max(-p, 0) for p in pads[::2])
    stops = tuple(n - max(-p, 0) for p, n in zip(pads[1::2], x.meta.shape, strict=True))
    return slicing.slice(x, starts=starts, stops=stops, steps=(1,) * x.ndim)


def _pad_by_index(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    """Parts of the tensor itself put around it; negative pads cut off."""
    if before < 0 or after < 0:
        # A circle is closed by what is left; the other modes look at what is cut off.
        cut = max(-before, 0), max(-after, 0)
        before, after = max(before, 0), max(after, 0)
        if mode == "circular":
            x = x.narrow(dim, cut[0], x.meta.shape[dim] - sum(cut))
            return _pad_by_index(x, dim, before, after, mode)
        x = _pad_by_index(x, dim, before, after, mode)
        return x.narrow(dim, cut[0], x.meta.shape[dim] - sum(cut))
    size = x.meta.shape[dim]
    if not before and not after:
        return x
    if mode == "replicate":
        first = x.narrow(dim, 0, 1)
        last = x.narrow(dim, size - 1, 1)
        shape = x.meta.shape
        left = expand(first, (*shape[:dim], before, *shape[dim + 1 :]))
        right = expand(last, (*shape[:dim], after, *shape[dim + 1 :]))
    elif mode == "reflect":
        if max(before, after) >= size:
            raise ShapeError(
                f"pad: reflect by {max(before, after)} needs a dim larger than that, got {x.meta}"
            )
        left = flip(x.narrow(dim, 1, before), dim)
        right = flip(x.narrow(dim, size - 1 - after, after), dim)
    elif mode == "circular":
        left = x.narrow(dim, size - before, before)
        right = x.narrow(dim, 0, after)
    else:
        raise ArgumentError(
            f"pad: mode must be constant, reflect, replicate or circular, got {mode!r}"
        )
    if mode != "circular":  # PyTorch copies slices there, but has ops for the others
        left, right = (piecewise_linear(left), right) if before else (left, piecewise_linear(right))
    parts = [p for p, n in ((left, before), (x, 1), (right, after)) if n]
    return cat(parts, dim)


# ---- layers --------------------------------------------------------------------------------------


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """out[..., k] = input1 @ weight[k] @ input2 + bias[k]."""
    if input1.meta.shape[:-1] != input2.meta.shape[:-1]:
        raise ShapeError(f"bilinear: {input1.meta} and {input2.meta} differ in leading dims")
    k, m, n = weight.meta.shape
    left = matmul(reshape(input1, (-1, m)), reshape(permute(weight, 1, 0, 2), (m, k * n)))
    rows = reshape(left, (-1, k, n))
    out = total(mul(rows, reshape(input2, (-1, 1, n))), 2)
    out = reshape(out, (*input1.meta.shape[:-1], k))
    return out if bias is None else add(out, bias)


def local_response_norm(
    input: Tensor,
    size: int,
    alpha: float | Tensor = 1e-4,
    beta: float | Tensor = 0.75,
    k: float | Tensor = 1.0,
) -> Tensor:
    """Divided by (k + alpha times the mean square of `size` channels) ** beta."""
    if input.ndim < 3:
        raise ShapeError(f"local_response_norm: expected 3D or higher tensor, got {input.meta}")
    if not input.meta.numel:
        return input
    square = unary.square(input)
    edges = [0, 0] * input.ndim
    edges[2:4] = [size // 2, (size - 1) // 2]
    padded = pad_with(square, tuple(edges), 0)
    around = div(total(unfold_dim(padded, 1, size, 1), -1), size)
    return div(input, add(mul(around, alpha), k) ** beta)


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(n, c, h * r, w * r) -> (n, c * r * r, h, w)."""
    r = int(downscale_factor)
    if input.ndim < 3:
        raise ShapeError(
            "pixel_unshuffle expects input to have at least 3 dimensions, but got input with "
            f"{input.ndim} dimension(s): {input.meta}"
        )
    *lead, c, h, w = input.meta.shape
    if r <= 0 or h % r or w % r:
        raise ShapeError(f"pixel_unshuffle: {input.meta} is not divisible by {r}")
    x = reshape(input, (*lead, c, h // r, r, w // r, r))
    n = len(lead)
    x = permute(x, *range(n), n, n + 2, n + 4, n + 1, n + 3)
    return apart(reshape(x, (*lead, c * r * r, h // r, w // r)), input)


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels in another order: the first of each group, then the second of each, ..."""
    if input.ndim < 3 or groups < 1 or input.meta.shape[1] % groups:
        raise ShapeError(f"channel_shuffle: {input.meta} has no {groups} groups of channels")
    n, c, *rest = input.meta.shape
    x = reshape(input, (n, groups, c // groups, *rest))
    return apart(reshape(x.transpose(1, 2), (n, c, *rest)), input)
