"""Elementwise losses in NumPy and CuPy."""

from __future__ import annotations

from typing import Any

from oneflow.core import dtype as dtypes
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import kernel


def _copies(count: int) -> Any:
    def types(ins: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
        return (ins[0],) * count

    return types


def _copy_and_mask(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    return types[0], types[0].with_dtype(dtypes.bool_)


@kernel("smooth_l1_loss", workspace=_copy_and_mask)
def smooth_l1_loss(
    xp: Any, loss: Any, x: Any, target: Any, square: Any, near: Any, *, beta: float = 1.0
) -> None:
    xp.subtract(x, target, out=loss)
    xp.abs(loss, out=loss)
    if beta == 0:
        return
    xp.less(loss, beta, out=near)
    xp.multiply(loss, loss, out=square)
    xp.multiply(square, 0.5 / beta, out=square)
    xp.subtract(loss, 0.5 * beta, out=loss)
    xp.copyto(loss, square, where=near)


@kernel("smooth_l1_loss_grad")
def smooth_l1_loss_grad(
    xp: Any, d_x: Any, d_loss: Any, x: Any, target: Any, *, beta: float = 1.0
) -> None:
    xp.subtract(x, target, out=d_x)
    if beta == 0:
        xp.sign(d_x, out=d_x)
    else:
        xp.divide(d_x, beta, out=d_x)
        xp.clip(d_x, -1.0, 1.0, out=d_x)
    xp.multiply(d_x, d_loss, out=d_x)


@kernel("bce_loss", workspace=_copies(1))
def bce_loss(xp: Any, loss: Any, x: Any, target: Any, hit: Any) -> None:
    """log(1 - p) - t (log(1 - p) - log(p)), negated."""
    xp.log(x, out=hit)
    xp.maximum(hit, -100.0, out=hit)
    xp.subtract(1.0, x, out=loss)
    xp.log(loss, out=loss)
    xp.maximum(loss, -100.0, out=loss)
    xp.subtract(hit, loss, out=hit)
    xp.multiply(hit, target, out=hit)
    xp.add(loss, hit, out=loss)
    xp.negative(loss, out=loss)


@kernel("bce_with_logits_loss", workspace=_copies(1))
def bce_with_logits_loss(
    xp: Any, loss: Any, x: Any, target: Any, weight: Any, *, pos_weight: float = 1.0
) -> None:
    """(1 - t) x + (1 + (pos_weight - 1) t) * log(1 + exp(-x)), the log written without overflow."""
    xp.abs(x, out=loss)
    xp.negative(loss, out=loss)
    xp.exp(loss, out=loss)
    xp.log1p(loss, out=loss)
    xp.minimum(x, 0, out=weight)
    xp.subtract(loss, weight, out=loss)
    xp.multiply(target, pos_weight - 1.0, out=weight)
    xp.add(weight, 1.0, out=weight)
    xp.multiply(loss, weight, out=loss)
    xp.subtract(1.0, target, out=weight)
    xp.multiply(weight, x, out=weight)
    xp.add(loss, weight, out=loss)


@kernel("bce_with_logits_loss_grad", workspace=_copies(1))
def bce_with_logits_loss_grad(
    xp: Any, d_x: Any, d_loss: Any, x: Any, target: Any, spare: Any, *, pos_weight: float = 1.0
) -> None:
    # sigmoid(x) = (1 + tanh(x / 2)) / 2 cannot overflow.
    xp.multiply(x, 0.5, out=d_x)
    xp.tanh(d_x, out=d_x)
    xp.add(d_x, 1.0, out=d_x)
    xp.multiply(d_x, 0.5, out=d_x)
    xp.multiply(target, pos_weight - 1.0, out=spare)
    xp.add(spare, 1.0, out=spare)
    xp.multiply(d_x, spare, out=d_x)
    xp.multiply(target, pos_weight, out=spare)
    xp.subtract(d_x, spare, out=d_x)
    xp.multiply(d_x, d_loss, out=d_x)
