"""Elementwise losses; the reduction is left to the caller. The target has no gradient."""

from __future__ import annotations

from oneflow.core.op import Op, declare, leading_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_same


class _Loss(Op):
    """What a loss of (x, target) and its gradient, of (d_loss, x, target), share."""

    @classmethod
    def sbp(cls, *types: TensorType, **_: object) -> list[SbpSignature]:
        return leading_signatures(types[0].ndim, len(types))

    @classmethod
    def alike(cls, *operands: Operand) -> TensorType:
        """The one type of all operands. Raises ShapeError or DTypeError."""
        require_same(cls.name, *operands)
        return operands[0].type


class SmoothL1Loss(_Loss):
    """(x - target)^2 / (2 beta) where |x - target| < beta, else |x - target| - beta / 2; plain L1
    if beta is 0.
    """

    name = "smooth_l1_loss"

    @classmethod
    def infer(cls, x: Operand, target: Operand, *, beta: float = 1.0) -> TensorType:
        return cls.alike(x, target)

    @staticmethod
    def grad(d_loss: Tensor, x: Tensor, target: Tensor, loss: Tensor, *, beta: float) -> Gradients:
        return (lambda: smooth_l1_loss_grad(d_loss, x, target, beta=beta), None)


class SmoothL1LossGrad(_Loss):
    """d_x = d_loss * clip((x - target) / beta, -1, 1); the sign if beta is 0."""

    name = "smooth_l1_loss_grad"

    @classmethod
    def infer(
        cls, d_loss: Operand, x: Operand, target: Operand, *, beta: float = 1.0
    ) -> TensorType:
        return cls.alike(d_loss, x, target)


class BceWithLogitsLoss(_Loss):
    """-(pos_weight * t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x))), without overflow.

    A pos_weight per class is a matter for the caller: it weighs two calls.
    """

    name = "bce_with_logits_loss"

    @classmethod
    def infer(cls, x: Operand, target: Operand, *, pos_weight: float = 1.0) -> TensorType:
        return cls.alike(x, target)

    @staticmethod
    def grad(
        d_loss: Tensor, x: Tensor, target: Tensor, loss: Tensor, *, pos_weight: float
    ) -> Gradients:
        return (
            lambda: bce_with_logits_loss_grad(d_loss, x, target, pos_weight=pos_weight),
            None,
        )


class BceWithLogitsLossGrad(_Loss):
    """d_x = d_loss * ((1 + (pos_weight - 1) t) * sigmoid(x) - pos_weight * t)."""

    name = "bce_with_logits_loss_grad"

    @classmethod
    def infer(
        cls, d_loss: Operand, x: Operand, target: Operand, *, pos_weight: float = 1.0
    ) -> TensorType:
        return cls.alike(d_loss, x, target)


smooth_l1_loss = declare(SmoothL1Loss)
smooth_l1_loss_grad = declare(SmoothL1LossGrad)
bce_with_logits_loss = declare(BceWithLogitsLoss)
bce_with_logits_loss_grad = declare(BceWithLogitsLossGrad)
