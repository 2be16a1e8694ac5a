"""Elementwise losses; the reduction is left to the caller. The target has no gradient."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.op import Attr, Op, leading_signatures, register
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_same


class _Loss(Op):
    """A loss of (x, target), same type."""

    @classmethod
    def infer(cls, x: TensorType, target: TensorType, **attrs: Attr) -> TensorType:
        require_same(cls.name, x, target)
        return x

    @staticmethod
    def sbp(x: TensorType, target: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return leading_signatures(x.ndim, 2)


class _LossGrad(Op):
    """d_x of a loss, of (d_loss, x, target)."""

    @classmethod
    def infer(
        cls, d_loss: TensorType, x: TensorType, target: TensorType, **attrs: Attr
    ) -> TensorType:
        require_same(cls.name, d_loss, x, target)
        return x

    @staticmethod
    def sbp(
        d_loss: TensorType, x: TensorType, target: TensorType, **attrs: Attr
    ) -> list[SbpSignature]:
        return leading_signatures(x.ndim, 3)


@register
class SmoothL1Loss(_Loss):
    """(x - target)^2 / (2 beta) where |x - target| < beta, else |x - target| - beta / 2; plain L1
    if beta is 0.
    """

    name = "smooth_l1_loss"

    @staticmethod
    def grad(d_loss: Any, x: Any, target: Any, loss: Any, *, beta: float) -> tuple[Any, ...]:
        return (lambda: smooth_l1_loss_grad(d_loss, x, target, beta=beta), None)


@register
class SmoothL1LossGrad(_LossGrad):
    """d_x = d_loss * clip((x - target) / beta, -1, 1); the sign if beta is 0."""

    name = "smooth_l1_loss_grad"


@register
class BceWithLogitsLoss(_Loss):
    """-(pos_weight * t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x))), without overflow."""

    name = "bce_with_logits_loss"

    @staticmethod
    def grad(
        d_loss: Any, x: Any, target: Any, loss: Any, *, pos_weight: float = 1.0
    ) -> tuple[Any, ...]:
        return (
            lambda: bce_with_logits_loss_grad(d_loss, x, target, pos_weight=pos_weight),
            None,
        )


@register
class BceWithLogitsLossGrad(_LossGrad):
    """d_x = d_loss * ((1 + (pos_weight - 1) t) * sigmoid(x) - pos_weight * t)."""

    name = "bce_with_logits_loss_grad"


def smooth_l1_loss(x: Any, target: Any, *, beta: float = 1.0) -> Any:
    """See SmoothL1Loss."""
    return call(SmoothL1Loss, x, target, beta=beta)


def smooth_l1_loss_grad(d_loss: Any, x: Any, target: Any, *, beta: float = 1.0) -> Any:
    """See SmoothL1LossGrad."""
    return call(SmoothL1LossGrad, d_loss, x, target, beta=beta)


def bce_with_logits_loss(x: Any, target: Any, *, pos_weight: float = 1.0) -> Any:
    """See BceWithLogitsLoss. A pos_weight per class is a matter for the caller: it weighs two
    calls.
    """
    return call(BceWithLogitsLoss, x, target, pos_weight=pos_weight)


def bce_with_logits_loss_grad(d_loss: Any, x: Any, target: Any, *, pos_weight: float = 1.0) -> Any:
    """See BceWithLogitsLossGrad."""
    return call(BceWithLogitsLossGrad, d_loss, x, target, pos_weight=pos_weight)
