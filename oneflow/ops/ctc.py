"""Connectionist temporal classification: sequences of labels whose alignment to the frames is
unknown (Graves and others, ICML 2006).

A path is read with repeated labels merged and blanks left out. The labels with blanks around each
of them are 2 S + 1 states; all paths through them are summed by the forward-backward algorithm, in
logarithms.
"""

from __future__ import annotations

from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float, require_shape


class CtcLoss(Op):
    """-log of the probability of each target, and the logarithms of the forward variables.

    log_probs: (T, N, C), float32 or float64.  targets: (N, S), the first target_lengths[n] of row n
    count.  input_lengths, target_lengths: (N,).  All three are integers.  blank: the class that is
    no label.
    Returns (loss (N,), alpha (T, N, 2 S + 1)); the second is for the backward pass and has no
    gradient of its own.
    """

    name = "ctc_loss"
    precision = "keep"

    @staticmethod
    def infer(
        log_probs: Operand,
        targets: Operand,
        input_lengths: Operand,
        target_lengths: Operand,
        *,
        blank: int,
    ) -> tuple[TensorType, TensorType]:
        require_float("ctc_loss", log_probs)
        if log_probs.dtype.bytes < 4:
            raise DTypeError(f"ctc_loss: log_probs must be float32 or float64, got {log_probs}")
        if log_probs.ndim != 3 or targets.ndim != 2:
            raise ShapeError(
                f"ctc_loss: needs log_probs (T, N, C) and targets (N, S), got {log_probs} and "
                f"{targets}"
            )
        frames, batch, classes = log_probs.shape
        for what in (targets, input_lengths, target_lengths):
            if what.shape[:1] != (batch,):
                raise ShapeError(f"ctc_loss: {what} is not of the {batch} samples of {log_probs}")
            if not what.dtype.is_integer:
                raise DTypeError(f"ctc_loss: targets and lengths must be integers, got {what}")
        if not 0 <= blank < classes:
            raise ArgumentError(
                f"ctc_loss: blank must be in label range [0, {classes}), got {blank}"
            )
        states = 2 * targets.shape[1] + 1
        return (
            log_probs.meta.with_shape((batch,)),
            log_probs.meta.with_shape((frames, batch, states)),
        )

    @staticmethod
    def sbp(*_: TensorType, **__: object) -> list[SbpSignature]:
        return [signature("S1 S0 S0 S0 -> S0 S1")]

    @staticmethod
    def grad(
        d_loss: Tensor | None,
        d_alpha: Tensor | None,
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
        loss: Tensor,
        alpha: Tensor,
        *,
        blank: int,
    ) -> Gradients:
        if d_loss is None:
            return None, None, None, None
        return (
            lambda: ctc_loss_grad(
                d_loss,
                log_probs,
                targets,
                input_lengths,
                target_lengths,
                loss,
                alpha,
                blank=blank,
            ),
            None,
            None,
            None,
        )


ctc_loss = declare(CtcLoss)


class CtcLossGrad(Op):
    """-d_loss times the probability that a path of the target is at class c at frame t.

    A sample whose d_loss is 0 has a gradient of 0, though its loss may be infinite.
    """

    name = "ctc_loss_grad"

    @staticmethod
    def infer(
        d_loss: Operand,
        log_probs: Operand,
        targets: Operand,
        input_lengths: Operand,
        target_lengths: Operand,
        loss: Operand,
        alpha: Operand,
        *,
        blank: int,
    ) -> TensorType:
        made = CtcLoss.infer(log_probs, targets, input_lengths, target_lengths, blank=blank)
        require_shape("ctc_loss_grad", made[0].shape, d_loss=d_loss, loss=loss)
        require_shape("ctc_loss_grad", made[1].shape, alpha=alpha)
        return log_probs.meta

    @staticmethod
    def sbp(*_: TensorType, **__: object) -> list[SbpSignature]:
        return [signature("S0 S1 S0 S0 S0 S0 S1 -> S1"), signature("P B B B B B B -> P")]


ctc_loss_grad = declare(CtcLossGrad)
