"""Losses over classes: cross entropy of logits with integer labels, and negative log-likelihood."""

from __future__ import annotations

from typing import Any

from oneflow.core.dispatch import call
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Attr, Box, Op, register
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float


@register
class SparseSoftmaxCrossEntropy(Op):
    """loss[i] = log of the sum of exp(logits[i]) - logits[i, labels[i]], per sample.

    logits: (N, C).  labels: (N,), integers in [0, C), or ignore_index (then the loss is 0).
    label_smoothing: weight of the uniform distribution over the classes in the target.
    Returns (loss (N,), logsumexp (N,)); the second is for the backward pass and has no gradient of
    its own.
    """

    name = "sparse_softmax_cross_entropy"
    num_outputs = 2

    @staticmethod
    def infer(
        logits: TensorType,
        labels: TensorType,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> tuple[TensorType, TensorType]:
        _check_labels("sparse_softmax_cross_entropy", logits, labels)
        per_sample = logits.with_shape(logits.shape[:1])
        return per_sample, per_sample

    @staticmethod
    def sbp(logits: TensorType, labels: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return [signature("S0 S0 -> S0 S0")]

    @staticmethod
    def grad(
        d_loss: Any, d_lse: Any, logits: Any, labels: Any, loss: Any, lse: Any, **attrs: Attr
    ) -> tuple[Any, ...]:
        if d_loss is None:
            return None, None
        return (
            lambda: sparse_softmax_cross_entropy_grad(d_loss, logits, labels, lse, **attrs),
            None,
        )


@register
class SparseSoftmaxCrossEntropyGrad(Op):
    """d_logits[i] = d_loss[i] * (softmax(logits[i]) - target[i]); 0 for ignored samples."""

    name = "sparse_softmax_cross_entropy_grad"

    @staticmethod
    def infer(
        d_loss: TensorType,
        logits: TensorType,
        labels: TensorType,
        lse: TensorType,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> TensorType:
        return logits

    @staticmethod
    def sbp(
        d_loss: TensorType, logits: TensorType, labels: TensorType, lse: TensorType, **attrs: Attr
    ) -> list[SbpSignature]:
        return [signature("S0 S0 S0 S0 -> S0")]


def _class_start(
    attrs: dict[str, Attr], in_boxes: tuple[Box, ...], out_boxes: tuple[Box, ...]
) -> dict[str, Attr]:
    """Adds where a shard's classes begin."""
    return {**attrs, "class_start": in_boxes[0].starts[1]}


def _class_start_of_output(
    attrs: dict[str, Attr], in_boxes: tuple[Box, ...], out_boxes: tuple[Box, ...]
) -> dict[str, Attr]:
    return {**attrs, "class_start": out_boxes[0].starts[1]}


@register
class NllLoss(Op):
    """loss[i] = -log_probs[i, labels[i]], or 0 where labels[i] is ignore_index.

    log_probs: (N, C).  labels: (N,) integers.  class_start: set by the runtime where classes are
    split.
    """

    name = "nll_loss"
    localize = staticmethod(_class_start)

    @staticmethod
    def infer(
        log_probs: TensorType,
        labels: TensorType,
        *,
        ignore_index: int = -100,
    ) -> TensorType:
        _check_labels("nll_loss", log_probs, labels)
        return log_probs.with_shape(log_probs.shape[:1])

    @staticmethod
    def sbp(log_probs: TensorType, labels: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return [signature("S0 S0 -> S0"), signature("S1 B -> P"), signature("P B -> P")]

    @staticmethod
    def grad(
        d_loss: Any, log_probs: Any, labels: Any, loss: Any, *, ignore_index: int = -100, **_: Attr
    ) -> tuple[Any, ...]:
        classes = log_probs.type.shape[1]
        return (
            lambda: nll_loss_grad(d_loss, labels, num_classes=classes, ignore_index=ignore_index),
            None,
        )


@register
class NllLossGrad(Op):
    """d_log_probs[i, labels[i]] = -d_loss[i]; 0 elsewhere.   d_loss, labels: (N,); out: (N,
    num_classes).
    """

    name = "nll_loss_grad"
    localize = staticmethod(_class_start_of_output)

    @staticmethod
    def infer(
        d_loss: TensorType,
        labels: TensorType,
        *,
        num_classes: int,
        ignore_index: int = -100,
    ) -> TensorType:
        return d_loss.with_shape((*d_loss.shape, num_classes))

    @staticmethod
    def sbp(d_loss: TensorType, labels: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return [signature("S0 S0 -> S0"), signature("B B -> S1"), signature("P B -> P")]

    @staticmethod
    def grad(
        dd: Any,
        d_loss: Any,
        labels: Any,
        out: Any,
        *,
        num_classes: int,
        ignore_index: int = -100,
        **_: Attr,
    ) -> tuple[Any, ...]:
        return (lambda: nll_loss(dd, labels, ignore_index=ignore_index), None)


def sparse_softmax_cross_entropy(
    logits: Any, labels: Any, *, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Any:
    """See SparseSoftmaxCrossEntropy."""
    return call(
        SparseSoftmaxCrossEntropy,
        logits,
        labels,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )


def sparse_softmax_cross_entropy_grad(
    d_loss: Any,
    logits: Any,
    labels: Any,
    lse: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """See SparseSoftmaxCrossEntropyGrad."""
    return call(
        SparseSoftmaxCrossEntropyGrad,
        d_loss,
        logits,
        labels,
        lse,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )


def nll_loss(log_probs: Any, labels: Any, *, ignore_index: int = -100) -> Any:
    """See NllLoss."""
    return call(NllLoss, log_probs, labels, ignore_index=ignore_index)


def nll_loss_grad(d_loss: Any, labels: Any, *, num_classes: int, ignore_index: int = -100) -> Any:
    """See NllLossGrad."""
    return call(NllLossGrad, d_loss, labels, num_classes=num_classes, ignore_index=ignore_index)


def _check_labels(who: str, scores: TensorType, labels: TensorType) -> None:
    require_float(who, scores)
    if scores.ndim != 2 or labels.shape != scores.shape[:1]:
        raise ShapeError(
            f"{who}: needs scores (N, C) and labels (N,), got {scores} and {labels}; "
            "flatten other dims into N first"
        )
    if not labels.dtype.is_integer:
        raise DTypeError(f"{who}: labels must be integers, got {labels}")
