"""Batch norm in NumPy and CuPy. Sums are float64, so that a variance as a difference of sums is
exact enough.
"""

from __future__ import annotations

from oneflow.core import dtype as dtypes
from oneflow.core.dtype import DType
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import Workspace, kernel


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
    a = inv_std.astype(xp.float64)
    if gamma:
        a = a * gamma[0]
    if count == 0:
        xp.multiply(d_y, column(a.astype(spare.dtype), x), out=spare)
        d_x[...] = spare
        return
    slope = -a * inv_std * d_gamma / count
    shift = -a * d_beta / count
    xp.subtract(x, column(mean, x), out=spare, dtype=spare.dtype, casting="same_kind")
    xp.multiply(spare, column(slope.astype(spare.dtype), x), out=spare)
    xp.add(spare, column(shift.astype(spare.dtype), x), out=spare)
    d_x[...] = spare
    xp.multiply(d_y, column(a.astype(spare.dtype), x), out=spare)
    d_x += spare.astype(d_x.dtype, copy=False)
