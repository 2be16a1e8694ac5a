"""Softmax over the last dim in NumPy and CuPy. Statistics of a row stay in a small workspace."""

from __future__ import annotations

from typing import Any

from oneflow.core import dtype as dtypes
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import kernel


def row_stat(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    """One number per row of input 0."""
    return (types[0].with_shape((*types[0].shape[:-1], 1)),)


def row_stat_and_copy(
    types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> tuple[TensorType, ...]:
    """One number per row, and one array like input 0."""
    return (*row_stat(types, attrs), types[0])


@kernel("softmax", workspace=row_stat)
def softmax(xp: Any, out: Any, x: Any, stat: Any) -> None:
    if x.size == 0:
        return
    xp.max(x, axis=-1, keepdims=True, out=stat)
    xp.subtract(x, stat, out=out)
    xp.exp(out, out=out)
    xp.sum(out, axis=-1, keepdims=True, out=stat)
    xp.divide(out, stat, out=out)


@kernel("softmax_grad", workspace=row_stat)
def softmax_grad(xp: Any, d_x: Any, d_out: Any, out: Any, stat: Any, *, scale: float = 1.0) -> None:
    xp.multiply(d_out, out, out=d_x)
    xp.sum(d_x, axis=-1, keepdims=True, out=stat)
    xp.subtract(d_out, stat, out=d_x)
    xp.multiply(d_x, out, out=d_x)
    if scale != 1.0:
        xp.multiply(d_x, scale, out=d_x)


@kernel("log_softmax", workspace=row_stat_and_copy)
def log_softmax(xp: Any, out: Any, x: Any, stat: Any, spare: Any) -> None:
    if x.size == 0:
        return
    xp.max(x, axis=-1, keepdims=True, out=stat)
    xp.subtract(x, stat, out=out)
    xp.exp(out, out=spare)
    xp.sum(spare, axis=-1, keepdims=True, out=stat)
    xp.log(stat, out=stat)
    xp.subtract(out, stat, out=out)


@kernel("log_softmax_grad", workspace=row_stat)
def log_softmax_grad(xp: Any, d_x: Any, d_out: Any, out: Any, stat: Any) -> None:
    xp.sum(d_out, axis=-1, keepdims=True, out=stat)
    xp.exp(out, out=d_x)
    xp.multiply(d_x, stat, out=d_x)
    xp.subtract(d_out, d_x, out=d_x)


def _mask_too(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    return (*row_stat(types, attrs), TensorType(types[0].shape[-2:], dtypes.bool_))


@kernel("causal_softmax", workspace=_mask_too)
def causal_softmax(
    xp: Any, out: Any, x: Any, stat: Any, future: Any, *, scale: float = 1.0
) -> None:
    rows, columns = x.shape[-2:]
    positions = xp.arange(columns - rows, columns)
    xp.greater(xp.arange(columns), positions[:, None], out=future)
    xp.multiply(x, scale, out=out)
    xp.copyto(out, -xp.inf, where=future)
    softmax(xp, out, out, stat)
