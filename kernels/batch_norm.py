"""Batch norm in NumPy and CuPy. Sums are float64, so that a variance as a difference of sums is
exact enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import Workspace, fused_kernel, kernel


def _like_input(index: int, count: int, dtype: DType | None = None) -> Workspace:
    """Workspace: `count` arrays like input `index`, at least float32, or of `dtype`."""

    def types(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        t = ins[index]
        wide = t if t.dtype.bytes >= 4 else t.with_dtype(dtypes.float32)
        return (t.with_dtype(dtype) if dtype else wide,) * count

    return types


def sample_dims(x: Array) -> tuple[int, ...]:
    """All but the channels'."""
    return (0, *range(2, x.ndim))


def column(per_channel: Array, x: Array) -> Array:
    """(C,) as (C, 1, ...), to broadcast against x."""
    return per_channel.reshape(-1, *(1,) * (x.ndim - 2))


@kernel("batch_sums", workspace=_like_input(0, 1, dtypes.float64))
def batch_sums(xp: ArrayModule, total: Array, squares: Array, x: Array, wide: Array) -> None:
    wide[...] = x
    xp.sum(wide, axis=sample_dims(x), out=total)
    xp.multiply(wide, wide, out=wide)
    xp.sum(wide, axis=sample_dims(x), out=squares)


@kernel("batch_moments")
def batch_moments(
    xp: ArrayModule,
    mean: Array,
    inv_std: Array,
    total: Array,
    squares: Array,
    *,
    count: int,
    eps: float,
    wide: bool,
) -> None:
    average = total / count
    variance = xp.maximum(squares / count - average * average, 0.0)
    mean[...] = average
    inv_std[...] = 1.0 / xp.sqrt(variance + eps)


@kernel("batch_norm_track")
def batch_norm_track(
    xp: ArrayModule,
    out_mean: Array,
    out_variance: Array,
    mean: Array,
    variance: Array,
    total: Array,
    squares: Array,
    *,
    count: int,
    momentum: float,
) -> None:
    _track(xp, out_mean, out_variance, mean, variance, total, squares, count, momentum)


@kernel("batch_norm_average")
def batch_norm_average(
    xp: ArrayModule,
    out_mean: Array,
    out_variance: Array,
    out_batches: Array,
    mean: Array,
    variance: Array,
    batches: Array,
    total: Array,
    squares: Array,
    *,
    count: int,
) -> None:
    xp.add(batches, 1, out=out_batches)
    weight = 1.0 / out_batches.astype(xp.float64)
    _track(xp, out_mean, out_variance, mean, variance, total, squares, count, weight)


def _track(
    xp: ArrayModule,
    out_mean: Array,
    out_variance: Array,
    mean: Array,
    variance: Array,
    total: Array,
    squares: Array,
    count: int,
    momentum: float | Array,
) -> None:
    average = total / count
    biased = xp.maximum(squares / count - average * average, 0.0)
    unbiased = biased * (count / max(count - 1, 1))
    out_mean[...] = (1.0 - momentum) * mean + momentum * average
    out_variance[...] = (1.0 - momentum) * variance + momentum * unbiased


@kernel("batch_norm_apply", workspace=_like_input(0, 1))
def batch_norm_apply(
    xp: ArrayModule, y: Array, x: Array, mean: Array, inv_std: Array, *rest: Array, count: int
) -> None:
    *affine, spare = rest
    scale = inv_std * affine[0] if affine else inv_std
    xp.subtract(x, column(mean, x), out=spare, dtype=spare.dtype, casting="same_kind")
    xp.multiply(spare, column(scale.astype(spare.dtype), x), out=spare)
    if affine:
        xp.add(spare, column(affine[1].astype(spare.dtype), x), out=spare)
    y[...] = spare


@kernel("batch_norm_grad_sums", workspace=_like_input(1, 1, dtypes.float64))
def batch_norm_grad_sums(
    xp: ArrayModule,
    d_beta: Array,
    d_gamma: Array,
    d_y: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    spare: Array,
) -> None:
    xp.subtract(x, column(mean, x), out=spare)
    xp.multiply(spare, d_y, out=spare)
    xp.sum(spare, axis=sample_dims(x), out=d_gamma)
    xp.multiply(d_gamma, inv_std, out=d_gamma)
    xp.sum(d_y, axis=sample_dims(x), dtype=d_beta.dtype, out=d_beta)


def _gradient_terms(
    inv_std: Array, d_beta: Array, d_gamma: Array, gamma: Sequence[Array], count: int
) -> tuple[Array, Array, Array]:
    """(factor of d_y, factor of x - mean, addend) per channel, in float64; count 0: only the first
    counts."""
    a = inv_std.astype("float64")
    if gamma:
        a = a * gamma[0]
    count = max(count, 1)
    return a, -a * inv_std * d_gamma / count, -a * d_beta / count


@kernel("batch_norm_grad_apply", workspace=_like_input(1, 1))
def batch_norm_grad_apply(
    xp: ArrayModule,
    d_x: Array,
    d_y: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    d_beta: Array,
    d_gamma: Array,
    *rest: Array,
    count: int,
) -> None:
    """d_x = a * d_y + b * x + c per channel, with a, b, c computed in float64 beforehand."""
    *gamma, spare = rest
    a, slope, shift = _gradient_terms(inv_std, d_beta, d_gamma, gamma, count)
    if count == 0:
        xp.multiply(d_y, column(a.astype(spare.dtype), x), out=spare)
        d_x[...] = spare
        return
    xp.subtract(x, column(mean, x), out=spare, dtype=spare.dtype, casting="same_kind")
    xp.multiply(spare, column(slope.astype(spare.dtype), x), out=spare)
    xp.add(spare, column(shift.astype(spare.dtype), x), out=spare)
    d_x[...] = spare
    xp.multiply(d_y, column(a.astype(spare.dtype), x), out=spare)
    d_x += spare.astype(d_x.dtype, copy=False)


# ---- large float32 images on a CPU ---------------------------------------------------------------

_LEAST_POSITIONS = 16
"""Positions of a channel of a sample from which its loops have whole vectors on any processor."""


def _is_long(x: Array | TensorType) -> bool:
    return prod(x.shape[2:]) >= _LEAST_POSITIONS


def _unless_long(workspace: Workspace) -> Workspace:
    """The workspace of the plain kernel, where that runs."""

    def types(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        return () if _is_long(ins[0]) else workspace(ins, attrs)

    return types


def _compiled() -> ModuleType:
    """Machine code; llvmlite takes a moment to import."""
    from oneflow.kernels.native import channels

    return channels


def _rows(*arrays: Array) -> list[Array]:
    return [np.ascontiguousarray(a) for a in arrays]


@fused_kernel("batch_sums", workspace=_unless_long(_like_input(0, 1, dtypes.float64)))
def batch_sums_fused(xp: ArrayModule, total: Array, squares: Array, x: Array, *work: Array) -> None:
    if not _is_long(x):
        return batch_sums(xp, total, squares, x, *work)
    _compiled().moments(total, squares, *_rows(x))


@fused_kernel("batch_norm_apply", workspace=_unless_long(_like_input(0, 1)))
def batch_norm_apply_fused(
    xp: ArrayModule, y: Array, x: Array, mean: Array, inv_std: Array, *rest: Array, count: int
) -> None:
    if not _is_long(x):
        return batch_norm_apply(xp, y, x, mean, inv_std, *rest, count=count)
    scale = inv_std * rest[0] if rest else inv_std
    shift = rest[1] if rest else np.zeros_like(scale)
    _compiled().scale(y, *_rows(x), mean, scale, shift)


@fused_kernel("batch_norm_grad_sums", workspace=_unless_long(_like_input(1, 1, dtypes.float64)))
def batch_norm_grad_sums_fused(
    xp: ArrayModule,
    d_beta: Array,
    d_gamma: Array,
    d_y: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    *work: Array,
) -> None:
    if not _is_long(x):
        return batch_norm_grad_sums(xp, d_beta, d_gamma, d_y, x, mean, inv_std, *work)
    _compiled().gradient_sums(d_beta, d_gamma, *_rows(d_y, x), mean)
    np.multiply(d_gamma, inv_std, out=d_gamma)


@fused_kernel("batch_norm_grad_apply", workspace=_unless_long(_like_input(1, 1)))
def batch_norm_grad_apply_fused(
    xp: ArrayModule,
    d_x: Array,
    d_y: Array,
    x: Array,
    mean: Array,
    inv_std: Array,
    d_beta: Array,
    d_gamma: Array,
    *rest: Array,
    count: int,
) -> None:
    if not _is_long(x):
        sums = d_beta, d_gamma
        return batch_norm_grad_apply(xp, d_x, d_y, x, mean, inv_std, *sums, *rest, count=count)
    a, slope, shift = _gradient_terms(inv_std, d_beta, d_gamma, rest, count)
    if count == 0:
        zeros = np.zeros_like(a)
        _compiled().scale(d_x, *_rows(d_y), zeros, a, zeros)
        return
    _compiled().scale_gradient(d_x, *_rows(d_y, x), mean, slope, shift, a)
