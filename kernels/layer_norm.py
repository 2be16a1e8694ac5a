"""Layer norm and RMS norm in NumPy and CuPy. Statistics are taken in at least float32."""

from __future__ import annotations

from math import prod
from typing import Any

from oneflow.core import dtype as dtypes
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import kernel


def _wide_copies(index: int, count: int) -> Any:
    """Workspace: `count` arrays like input `index`, at least float32."""

    def types(ins: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        t = ins[index]
        return (t if t.dtype.bytes >= 4 else t.with_dtype(dtypes.float32),) * count

    return types


def _as_column(statistic: Any, x: Any) -> Any:
    return statistic.reshape(statistic.shape + (1,) * (x.ndim - statistic.ndim))


@kernel("layer_norm", workspace=_wide_copies(0, 2))
def layer_norm(
    xp: Any, y: Any, mean: Any, inv_std: Any, x: Any, *rest: Any, begin_axis: int, eps: float
) -> None:
    *affine, centred, spare = rest
    dims = tuple(range(begin_axis, x.ndim))
    _mean(x, dims, mean)
    xp.subtract(x, _as_column(mean, x), out=centred)
    xp.multiply(centred, centred, out=spare)
    _mean(spare, dims, inv_std)
    _inverse_root(xp, inv_std, eps)
    xp.multiply(centred, _as_column(inv_std, x), out=centred)
    if affine:
        xp.multiply(centred, affine[0], out=centred)
    if len(affine) == 2:
        xp.add(centred, affine[1], out=centred)
    y[...] = centred


@kernel("layer_norm_grad", workspace=_wide_copies(1, 3))
def layer_norm_grad(xp: Any, d_x: Any, *rest: Any, begin_axis: int) -> None:
    """With h = (x - mean) * inv_std and g = d_y * gamma: d_x = inv_std * (g - mean(g) - h * mean(g
    * h)).
    """
    *arrays, hat, g, spare = rest
    has_gamma = len(arrays) > 4
    d_y, x, mean, inv_std = arrays[2:6] if has_gamma else arrays
    dims = tuple(range(begin_axis, x.ndim))
    scale = _as_column(inv_std, x)
    xp.subtract(x, _as_column(mean, x), out=hat)
    xp.multiply(hat, scale, out=hat)
    g[...] = d_y
    if has_gamma:
        d_gamma, d_beta, gamma = arrays[0], arrays[1], arrays[6]
        samples = tuple(range(begin_axis))
        xp.multiply(g, hat, out=spare)
        xp.sum(spare, axis=samples, out=d_gamma)
        xp.sum(g, axis=samples, out=d_beta)
        xp.multiply(g, gamma, out=g)
    xp.multiply(g, hat, out=spare)
    size = prod(x.shape[begin_axis:])
    along = spare.sum(axis=dims, keepdims=True) / size
    xp.subtract(g, g.sum(axis=dims, keepdims=True) / size, out=g)
    xp.multiply(hat, along, out=hat)
    xp.subtract(g, hat, out=g)
    xp.multiply(g, scale, out=g)
    d_x[...] = g


@kernel("rms_norm", workspace=_wide_copies(0, 1))
def rms_norm(
    xp: Any, y: Any, inv_rms: Any, x: Any, *rest: Any, begin_axis: int, eps: float
) -> None:
    *gamma, spare = rest
    spare[...] = x
    xp.multiply(spare, spare, out=spare)
    _mean(spare, tuple(range(begin_axis, x.ndim)), inv_rms)
    _inverse_root(xp, inv_rms, eps)
    xp.multiply(x, _as_column(inv_rms, x), out=spare)
    if gamma:
        xp.multiply(spare, gamma[0], out=spare)
    y[...] = spare


@kernel("rms_norm_grad", workspace=_wide_copies(1, 3))
def rms_norm_grad(xp: Any, d_x: Any, *rest: Any, begin_axis: int) -> None:
    """With h = x * inv_rms and g = d_y * gamma: d_x = inv_rms * (g - h * mean(g * h))."""
    *arrays, hat, g, spare = rest
    has_gamma = len(arrays) > 3
    d_y, x, inv_rms = arrays[1:4] if has_gamma else arrays
    scale = _as_column(inv_rms, x)
    xp.multiply(x, scale, out=hat)
    g[...] = d_y
    if has_gamma:
        xp.multiply(g, hat, out=spare)
        xp.sum(spare, axis=tuple(range(begin_axis)), out=arrays[0])
        xp.multiply(g, arrays[4], out=g)
    xp.multiply(g, hat, out=spare)
    along = spare.sum(axis=tuple(range(begin_axis, x.ndim)), keepdims=True)
    along /= prod(x.shape[begin_axis:])
    xp.multiply(hat, along, out=hat)
    xp.subtract(g, hat, out=g)
    xp.multiply(g, scale, out=g)
    d_x[...] = g


def _mean(x: Any, dims: tuple[int, ...], out: Any) -> None:
    """As xp.mean, which takes 4 us more for its Python: a quarter of a small layer norm."""
    x.sum(axis=dims, dtype=out.dtype, out=out)
    out /= prod(x.shape[d] for d in dims)


def _inverse_root(xp: Any, variance: Any, eps: float) -> None:
    """variance <- 1 / sqrt(variance + eps), in place."""
    xp.add(variance, eps, out=variance)
    xp.sqrt(variance, out=variance)
    xp.reciprocal(variance, out=variance)


def samples_and_size(x: Any, begin_axis: int) -> tuple[int, int]:
    """(number of samples, elements of one)."""
    return prod(x.shape[:begin_axis]), prod(x.shape[begin_axis:])
