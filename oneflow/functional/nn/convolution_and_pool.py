"""Convolutions and pooling: each is one function for one, two and three spatial dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oneflow.core.dtype import category
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.functional.arithmetic import add
from oneflow.functional.dims import Size, spatial_sizes
from oneflow.functional.nn.window_dims import (
    adaptive_sizes,
    batched,
    over_dims,
    unbatched,
    window_strides,
)
from oneflow.functional.shaping import pad_with, reshape
from oneflow.ops import conv as conv_ops
from oneflow.ops import pool as pool_ops
from oneflow.tensor.tensor import Tensor

# ---- convolutions --------------------------------------------------------------------------------


def _conv(
    ndim: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Cross-correlation of (N, C, SPATIAL) with (O, C / groups, WINDOW)."""
    strides, dilations = spatial_sizes(stride, ndim), spatial_sizes(dilation, ndim)
    if weight.ndim != ndim + 2:
        raise ShapeError(f"conv{ndim}d: needs a weight of {ndim + 2} dims, got {weight.meta}")
    if bias is not None and category(bias.meta.dtype) > category(input.meta.dtype):
        raise DTypeError(f"conv{ndim}d: input {input.meta} and bias {bias.meta} have two kinds")
    x, single = batched(ndim, input)
    if isinstance(padding, str):
        x, pads = _named_padding(x, weight, padding, strides, dilations)
    else:
        pads = spatial_sizes(padding, ndim)
    out = conv_ops.conv(
        x, weight, stride=strides, padding=pads, dilation=dilations, groups=int(groups)
    )
    return unbatched(_with_bias(out, bias), single)


conv1d, conv2d, conv3d = over_dims(1, _conv), over_dims(2, _conv), over_dims(3, _conv)


def _with_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    return x if bias is None else add(x, reshape(bias, (1, -1, *(1,) * (x.ndim - 2))))


def _named_padding(
    x: Tensor, w: Tensor, padding: str, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[Tensor, tuple[int, ...]]:
    """ "valid": none. "same": the output has the input's size; an odd total pads one more at the
    end.
    """
    if padding == "valid":
        return x, (0,) * len(stride)
    if padding != "same" or any(s != 1 for s in stride):
        raise ShapeError(
            f"conv: padding is numbers, 'valid', or 'same' with stride 1; got {padding!r}"
        )
    totals = [d * (k - 1) for d, k in zip(dilation, w.meta.shape[2:], strict=True)]
    if all(t % 2 == 0 for t in totals):
        return x, tuple(t // 2 for t in totals)
    pads = (0, 0, 0, 0, *(p for t in totals for p in (t // 2, t - t // 2)))
    return pad_with(x, pads, 0), (0,) * len(stride)


def _conv_transpose(
    ndim: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Transposed convolution of (N, C, SPATIAL) with (C, O / groups, WINDOW)."""
    strides, pads, extra, dilations = (
        spatial_sizes(v, ndim) for v in (stride, padding, output_padding, dilation)
    )
    x, single = batched(ndim, input)
    window = weight.meta.shape[2:]
    sizes = zip(x.meta.shape[2:], window, strides, pads, extra, dilations, strict=True)
    spatial = tuple((n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, s, p, e, d in sizes)
    wanted, cuts = spatial, pads
    if any(e >= s for e, s in zip(extra, strides, strict=True)):
        # That many more places would be another convolution's: all of them are made, then cut.
        spatial = tuple(n + 2 * p - e for n, p, e in zip(spatial, pads, extra, strict=True))
        pads = (0,) * ndim
    out = conv_ops.conv_data_grad(
        x,
        weight,
        spatial=spatial,
        stride=strides,
        padding=pads,
        dilation=dilations,
        groups=int(groups),
    )
    if spatial != wanted:
        out = _cut(out, cuts, wanted)
    return unbatched(_with_bias(out, bias), single)


def _cut(x: Tensor, starts: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    """The spatial parts of x from `starts` on, with zeros behind where they reach further."""
    for dim, (start, size) in enumerate(zip(starts, sizes, strict=True), start=2):
        held = min(x.meta.shape[dim] - start, size)
        pads = [0] * (2 * x.ndim)
        pads[2 * dim + 1] = size - held
        x = pad_with(x.narrow(dim, start, held), tuple(pads), 0)
    return x


conv_transpose1d = over_dims(1, _conv_transpose)
conv_transpose2d = over_dims(2, _conv_transpose)
conv_transpose3d = over_dims(3, _conv_transpose)


def conv_tbc(input: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution over time: (time, batch, channels) by (window, channels in, channels out)."""
    if input.ndim != 3 or weight.ndim != 3:
        raise ShapeError(
            f"conv_tbc: Input and weight must have 3 dims, got {input.meta} and {weight.meta}"
        )
    out: Tensor = conv1d(input.permute(1, 2, 0), weight.permute(2, 1, 0), bias, padding=pad)
    return out.permute(2, 0, 1)


# ---- pooling -------------------------------------------------------------------------------------


def _pooled(who: str, ndim: int, input: Tensor) -> tuple[Tensor, bool]:
    """`batched`. Raises ShapeError if there are no channels; a rank may hold none of them."""
    x, single = batched(ndim, input)
    if x.ndim == ndim + 2 and not x.meta.shape[1]:
        raise ShapeError(
            f"{who}: expected dims other than that of samples to be non-empty, got {x.meta}"
        )
    return x, single


def _max_pool(
    ndim: int,
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    """The largest of each window of (N, C, SPATIAL)."""
    x, single = _pooled(f"max_pool{ndim}d", ndim, input)
    kernel = spatial_sizes(kernel_size, ndim)
    values, indices = pool_ops.max_pool(
        x,
        kernel=kernel,
        stride=window_strides(stride, kernel),
        padding=spatial_sizes(padding, ndim),
        dilation=spatial_sizes(dilation, ndim),
        ceil_mode=bool(ceil_mode),
    )
    if return_indices:
        return unbatched(values, single), unbatched(indices, single)
    return unbatched(values, single)


max_pool1d, max_pool2d, max_pool3d = (
    over_dims(1, _max_pool),
    over_dims(2, _max_pool),
    over_dims(3, _max_pool),
)


def _max_pool_with_indices(
    ndim: int,
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest of each window of (N, C, SPATIAL), and where they are: indices into the flattened
    spatial dims.
    """
    return _max_pool(ndim, input, kernel_size, stride, padding, dilation, True, ceil_mode)


max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = (
    over_dims(ndim, _max_pool_with_indices, "max_pool{}d_with_indices") for ndim in (1, 2, 3)
)


def _avg_pool(
    ndim: int,
    input: Tensor,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = 0,
) -> Tensor:
    """The mean of each window of (N, C, SPATIAL).  divisor_override: divides by it, not by the
    window's size.
    """
    x, single = _pooled(f"avg_pool{ndim}d", ndim, input)
    kernel = spatial_sizes(kernel_size, ndim)
    out = pool_ops.avg_pool(
        x,
        kernel=kernel,
        stride=window_strides(stride, kernel),
        padding=spatial_sizes(padding, ndim),
        ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad),
        divisor_override=int(divisor_override or 0),
    )
    return unbatched(out, single)


avg_pool1d, avg_pool2d, avg_pool3d = (
    over_dims(1, _avg_pool),
    over_dims(2, _avg_pool),
    over_dims(3, _avg_pool),
)


def _adaptive_avg_pool(
    ndim: int, input: Tensor, output_size: int | Sequence[int | None] | None
) -> Tensor:
    """Means of windows of (N, C, SPATIAL) chosen so that the result has `output_size` positions."""
    x, single = batched(ndim, input)
    wanted = adaptive_sizes(f"adaptive_avg_pool{ndim}d", output_size, ndim)
    sizes = tuple(n if w is None else int(w) for w, n in zip(wanted, x.meta.shape[2:], strict=True))
    return unbatched(pool_ops.adaptive_avg_pool(x, output_size=sizes), single)


adaptive_avg_pool1d = over_dims(1, _adaptive_avg_pool)
adaptive_avg_pool2d = over_dims(2, _adaptive_avg_pool)
adaptive_avg_pool3d = over_dims(3, _adaptive_avg_pool)
