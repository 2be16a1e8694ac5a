"""Aten's normalizations and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oneflow.infer_compiler.aten.table import Size, f, takes
from oneflow.ops.batch_norm import (
    batch_moments,
    batch_norm_apply,
    batch_norm_grad_apply,
    batch_norm_grad_sums,
    batch_sums,
)
from oneflow.ops.layer_norm import layer_norm, layer_norm_grad
from oneflow.tensor.tensor import Tensor


@takes("native_layer_norm")
def _layer_norm(
    x: Tensor, shape: Size, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    begin = x.ndim - len(shape)
    affine = [t for t in (weight, bias) if t is not None] if weight is not None else []
    y, mean, inv_std = layer_norm(x, *affine, begin_axis=begin, eps=float(eps))
    if weight is None and bias is not None:
        y = y + bias
    kept = (*x.shape[:begin], *(1,) * len(shape))
    return y, mean.reshape(kept), inv_std.reshape(kept)


@takes("native_layer_norm_backward")
def _layer_norm_backward(
    d_y: Tensor,
    x: Tensor,
    shape: Size,
    mean: Tensor,
    inv_std: Tensor,
    weight: Tensor | None,
    _bias: Tensor | None,
    mask: Sequence[bool],
) -> list[Tensor | None]:
    begin = x.ndim - len(shape)
    rows = x.shape[:begin]
    affine = [] if weight is None else [weight]
    made = layer_norm_grad(
        d_y, x, mean.reshape(rows), inv_std.reshape(rows), *affine, begin_axis=begin
    )
    if weight is None:
        d_bias = d_y.sum(list(range(begin))) if mask[2] else None
        return [made[0] if isinstance(made, tuple | list) else made, None, d_bias]
    return [t if wanted else None for t, wanted in zip(made, mask, strict=True)]


def _column(x: Tensor, ndim: int) -> Tensor:
    return x.reshape(1, -1, *(1,) * (ndim - 2))


@takes("native_group_norm")
def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    count: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.reshape(count, groups, channels // groups * pixels)
    y, mean, inv_std = layer_norm(rows, begin_axis=2, eps=float(eps))
    y = y.reshape(x.shape)
    y = y if weight is None else y * _column(weight, x.ndim)
    return y if bias is None else y + _column(bias, x.ndim), mean, inv_std


@takes("native_group_norm_backward")
def _group_norm_backward(
    d_y: Tensor,
    x: Tensor,
    mean: Tensor,
    inv_std: Tensor,
    weight: Tensor | None,
    count: int,
    channels: int,
    pixels: int,
    groups: int,
    mask: Sequence[bool],
) -> list[Tensor | None]:
    whole = (count, groups, channels // groups * pixels)
    scaled = d_y if weight is None else d_y * _column(weight, x.ndim)
    dims = [0, *range(2, x.ndim)]
    row = (count, groups, 1)
    made = layer_norm_grad(scaled.reshape(whole), x.reshape(whole), mean, inv_std, begin_axis=2)
    d_x: Tensor = made[0] if isinstance(made, tuple | list) else made
    hat = ((x.reshape(whole) - mean.reshape(row)) * inv_std.reshape(row)).reshape(x.shape)
    return [
        d_x.reshape(x.shape) if mask[0] else None,
        (d_y * hat).sum(dims) if mask[1] else None,
        d_y.sum(dims) if mask[2] else None,
    ]


@takes("_native_batch_norm_legit_no_training")
def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    _momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    y = f("batch_norm")(x, mean, variance, weight, bias, False, 0.0, eps)
    nothing = f("zeros")(0)
    return y, nothing, nothing


@takes("_native_batch_norm_legit_functional")
def _batch_norm_tracking(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    if not training:
        made = _batch_norm(x, weight, bias, mean, variance, momentum, eps)
        return (*made, mean, variance)
    count = x.numel() // x.shape[1]
    total, squares = batch_sums(x)
    now, inv_std = batch_moments(total, squares, count=count, eps=float(eps))
    affine = _affine(x, weight, bias)
    y = batch_norm_apply(x, now, inv_std, *affine)
    average = total / count
    spread = (squares / count - average * average) * (count / max(count - 1, 1))
    tracked = [
        old * (1 - momentum) + new.to(old.dtype) * momentum
        for old, new in ((mean, average), (variance, spread))
    ]
    return (y, now, inv_std, *tracked)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:
    if weight is None and bias is None:
        return ()
    ones, zeros = (f(name)(x.shape[1], dtype=x.dtype) for name in ("ones", "zeros"))
    return ones if weight is None else weight, zeros if bias is None else bias


@takes("native_batch_norm_backward")
def _batch_norm_backward(
    d_y: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    saved_mean: Tensor | None,
    saved_inv_std: Tensor | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> list[Tensor | None]:
    if training and saved_mean is not None and saved_inv_std is not None:
        now, inv_std = saved_mean, saved_inv_std
    elif mean is not None and variance is not None:
        now, inv_std = mean, (variance + eps).rsqrt()
    else:
        raise ValueError("native_batch_norm_backward needs the statistics of the forward pass")
    d_bias, d_weight = batch_norm_grad_sums(d_y, x, now, inv_std)
    gamma = () if weight is None else (weight,)
    count = x.numel() // x.shape[1] if training else 0
    d_x = batch_norm_grad_apply(d_y, x, now, inv_std, d_bias, d_weight, *gamma, count=count)
    made = (d_x, d_weight.to(x.dtype), d_bias.to(x.dtype))
    return [t if wanted else None for t, wanted in zip(made, mask, strict=True)]


@takes("var_mean.correction")
def _var_mean(
    x: Tensor, dim: Size | None = None, *, correction: float | None = 1, keepdim: bool = False
) -> Any:
    dims = list(range(x.ndim)) if dim is None else list(dim)
    mean = x.mean(dims, keepdim=True)
    count = math.prod(x.shape[d] for d in dims)
    least = 1 if correction is None else correction
    spread = (x - mean).square().sum(dims, keepdim=keepdim) / (count - least)
    return spread, mean if keepdim else mean.reshape(spread.shape)
