"""Elementwise losses; the reduction is left to the caller."""

from __future__ import annotations

from oneflow.core.expression import (
    Expression,
    absolute,
    exp,
    log,
    log1p,
    maximum,
    minimum,
    scalar,
    sigmoid,
    sign,
    symbols,
    where,
)
from oneflow.core.op import declare
from oneflow.core.operand import Attr, Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, unary
from oneflow.ops.activation import softplus
from oneflow.ops.checks import require_same
from oneflow.ops.elementwise import Elementwise
from oneflow.ops.formulated import Formulated
from oneflow.ops.scalar import scalar_add, scalar_mul

_X, _TARGET, _D = symbols("x target d_loss")


class _Loss(Formulated):
    """The common part of a loss of (x, target) and its gradient, of (d_loss, x, target)."""

    @classmethod
    def alike(cls, *operands: Operand) -> TensorType:
        """The one type of all operands. Raises ShapeError or DTypeError."""
        require_same(cls.name, *operands)
        return operands[0].meta


class SmoothL1Loss(_Loss):
    """(x - target)^2 / (2 beta) where |x - target| < beta, else |x - target| - beta / 2; plain L1
    if beta is 0.
    """

    name = "smooth_l1_loss"
    precision = "keep"
    widens = ("cpu", "cuda")

    @classmethod
    def infer(cls, x: Operand, target: Operand, *, beta: float = 1.0) -> TensorType:
        return cls.alike(x, target)

    @staticmethod
    def formula(*_: TensorType, beta: float) -> Expression:
        far = absolute(_X - _TARGET)
        if beta == 0:
            return far
        half = scalar("beta") * 0.5
        return where(far < scalar("beta"), far * far * (0.5 / scalar("beta")), far - half)

    @staticmethod
    def grad(d_loss: Tensor, x: Tensor, target: Tensor, loss: Tensor, *, beta: float) -> Gradients:
        return (
            lambda: smooth_l1_loss_grad(d_loss, x, target, beta=beta),
            lambda: smooth_l1_loss_grad(d_loss, target, x, beta=beta),
        )


class SmoothL1LossGrad(_Loss, Elementwise):
    """d_x = d_loss * clip((x - target) / beta, -1, 1); the sign if beta is 0."""

    name = "smooth_l1_loss_grad"

    @classmethod
    def infer(
        cls, d_loss: Operand, x: Operand, target: Operand, *, beta: float = 1.0
    ) -> TensorType:
        return cls.alike(d_loss, x, target)

    @staticmethod
    def formula(*_: TensorType, beta: float) -> Expression:
        off = _X - _TARGET
        if beta == 0:
            return _D * sign(off)
        return _D * minimum(maximum(off / scalar("beta"), -1), 1)


class BceWithLogitsLoss(_Loss):
    """-(pos_weight * t * log(sigmoid(x)) + (1 - t) * log(1 - sigmoid(x))), without overflow.

    A pos_weight per class is a matter for the caller: it weighs two calls.
    """

    name = "bce_with_logits_loss"
    widens = ("cpu", "cuda")

    @classmethod
    def infer(cls, x: Operand, target: Operand, *, pos_weight: float = 1.0) -> TensorType:
        return cls.alike(x, target)

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Expression:
        """(1 - t) x + (1 + (pos_weight - 1) t) * log(1 + e^-x), whose log cannot overflow."""
        softly = log1p(exp(-absolute(_X))) - minimum(_X, 0)
        if attrs["pos_weight"] == 1:  # 0 times an infinite target is no number
            return (1 - _TARGET) * _X + softly
        return (1 - _TARGET) * _X + (1 + (scalar("pos_weight") - 1) * _TARGET) * softly

    @staticmethod
    def grad(
        d_loss: Tensor, x: Tensor, target: Tensor, loss: Tensor, *, pos_weight: float
    ) -> Gradients:
        def d_target() -> Tensor:
            slope = unary.neg(x)
            if pos_weight != 1.0:
                unlikely = softplus(slope)
                slope = binary.add(slope, scalar_mul(unlikely, value=pos_weight - 1.0))
            return binary.mul(d_loss, slope)

        return (
            lambda: bce_with_logits_loss_grad(d_loss, x, target, pos_weight=pos_weight),
            d_target,
        )


class BceWithLogitsLossGrad(_Loss, Elementwise):
    """d_x = d_loss * ((1 + (pos_weight - 1) t) * sigmoid(x) - pos_weight * t)."""

    name = "bce_with_logits_loss_grad"

    @classmethod
    def infer(
        cls, d_loss: Operand, x: Operand, target: Operand, *, pos_weight: float = 1.0
    ) -> TensorType:
        return cls.alike(d_loss, x, target)

    @staticmethod
    def formula(*_: TensorType, **attrs: Attr) -> Expression:
        if attrs["pos_weight"] == 1:
            return _D * (sigmoid(_X) - _TARGET)
        weight = scalar("pos_weight")
        return _D * ((1 + (weight - 1) * _TARGET) * sigmoid(_X) - weight * _TARGET)


class BceLoss(_Loss):
    """-(t log(p) + (1 - t) log(1 - p)) of probabilities p; logs are kept above -100."""

    name = "bce_loss"
    widens = ("cpu", "cuda")

    @classmethod
    def infer(cls, x: Operand, target: Operand) -> TensorType:
        return cls.alike(x, target)

    @staticmethod
    def formula(*_: TensorType) -> Expression:
        hit, miss = maximum(log(_X), -100), maximum(log1p(-_X), -100)
        return (_TARGET - 1) * miss - _TARGET * hit

    @staticmethod
    def grad(d_loss: Tensor, x: Tensor, target: Tensor, loss: Tensor) -> Gradients:
        def d_target() -> Tensor:
            rest = scalar_add(unary.neg(x), value=1.0)
            return binary.mul(d_loss, binary.sub(unary.log(rest), unary.log(x)))

        return lambda: bce_loss_grad(d_loss, x, target), d_target


class BceLossGrad(_Loss, Elementwise):
    """d_x = d_loss * (p - t) / (p (1 - p)), whose divisor is at least 1e-12: finite where p is 0 or
    1. One op, as float16 holds neither the divisor nor the product of small factors."""

    name = "bce_loss_grad"

    @classmethod
    def infer(cls, d_loss: Operand, x: Operand, target: Operand) -> TensorType:
        return cls.alike(d_loss, x, target)

    @staticmethod
    def formula(*_: TensorType) -> Expression:
        return _D * ((_X - _TARGET) / maximum((1 - _X) * _X, 1e-12))


smooth_l1_loss = declare(SmoothL1Loss)
smooth_l1_loss_grad = declare(SmoothL1LossGrad)
bce_with_logits_loss = declare(BceWithLogitsLoss)
bce_with_logits_loss_grad = declare(BceWithLogitsLossGrad)
bce_loss = declare(BceLoss)
bce_loss_grad = declare(BceLossGrad)
