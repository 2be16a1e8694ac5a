"""Losses over classes: cross entropy of logits with integer labels, and negative log-likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from oneflow.core.dtype import int64
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.expression import (
    Expression,
    apply,
    cast,
    column,
    eq,
    exp_down,
    largest,
    log,
    scalar,
    symbol,
    symbols,
    total,
    where,
)
from oneflow.core.op import Boxes, Op, declare
from oneflow.core.operand import Attrs, Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary
from oneflow.ops.checks import require_float, require_shape
from oneflow.ops.compare import scalar_compare
from oneflow.ops.formulated import Formulated
from oneflow.ops.reduce import reduce_sum
from oneflow.ops.scalar import scalar_mul
from oneflow.ops.softmax import log_softmax
from oneflow.ops.where import flat_in_first, masked_fill

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Target(TypedDict, total=False):
    """The target distribution. ignore_index: a label whose samples have no loss.
    label_smoothing: weight of the uniform distribution over the classes.
    """

    ignore_index: int
    label_smoothing: float


_NO_SMOOTHING = {"ignore_index": -100, "label_smoothing": 0.0}


_LOGITS, _D_LOSS, _LSE = symbols("logits d_loss lse")
_LABEL = cast(symbol("labels"), int64)
_IS_HIT = eq(column(), _LABEL)
_IN_RANGE = apply("logical_and", _LABEL >= 0, scalar("columns") > _LABEL)
_IS_KEPT = apply("logical_and", apply("ne", _LABEL, scalar("ignore_index")), _IN_RANGE)


def _classes(scores: TensorType, labels: TensorType, **_: object) -> dict[int, range]:
    return {1: range(scores.shape[1])}


class SparseSoftmaxCrossEntropy(Formulated):
    """loss[i] = log of the sum of exp(logits[i]) - logits[i, labels[i]], per sample.

    logits: (N, C).  labels: (N,), integers in [0, C), or ignore_index (then the loss is 0).
    Returns (loss (N,), logsumexp (N,)); the second is for the backward pass and has no gradient of
    its own.
    """

    name = "sparse_softmax_cross_entropy"
    widens = ("cpu", "cuda")
    defaults = _NO_SMOOTHING
    per_row = frozenset({"labels"})
    positions = staticmethod(_classes)

    @staticmethod
    def infer(
        logits: Operand, labels: Operand, **target: Unpack[Target]
    ) -> tuple[TensorType, TensorType]:
        _check_labels("sparse_softmax_cross_entropy", logits, labels)
        per_sample = logits.meta.with_shape(logits.shape[:1])
        return per_sample, per_sample

    @staticmethod
    def formula(*_: TensorType, **target: Unpack[Target]) -> tuple[Expression, Expression]:
        best = largest(_LOGITS)
        lse = best + log(total(exp_down(_LOGITS - best)))
        wanted = total(where(_IS_HIT, _LOGITS, 0))
        if target["label_smoothing"]:
            smoothing = scalar("label_smoothing")
            spread = total(_LOGITS) * (smoothing / scalar("columns"))
            wanted = wanted * (1 - smoothing) + spread
        return where(_IS_KEPT, lse - wanted, 0), lse

    @staticmethod
    def written(logits: Tensor, labels: Tensor, **target: Unpack[Target]) -> Tensor:
        smoothing, ignored = target["label_smoothing"], target["ignore_index"]
        logs = log_softmax(logits)
        loss = nll_loss(logs, labels, ignore_index=ignored)
        if not smoothing:
            return loss
        whole = reduce_sum(logs, dims=(1,))
        is_ignored = scalar_compare(labels, value=ignored, kind="eq")
        spread = masked_fill(whole, is_ignored, value=0.0)
        share = scalar_mul(spread, value=smoothing / logits.meta.shape[1])
        return binary.sub(scalar_mul(loss, value=1 - smoothing), share)

    @staticmethod
    def grad(
        d_loss: Tensor | None,
        d_lse: Tensor | None,
        logits: Tensor,
        labels: Tensor,
        loss: Tensor,
        lse: Tensor,
        **target: Unpack[Target],
    ) -> Gradients:
        if d_loss is None:
            return None, None
        return (
            lambda: sparse_softmax_cross_entropy_grad(d_loss, logits, labels, lse, **target),
            None,
        )


sparse_softmax_cross_entropy = declare(SparseSoftmaxCrossEntropy)


class SparseSoftmaxCrossEntropyGrad(Formulated):
    """d_logits[i] = d_loss[i] * (softmax(logits[i]) - target[i]); 0 for ignored samples."""

    name = "sparse_softmax_cross_entropy_grad"
    defaults = _NO_SMOOTHING
    per_row = frozenset({"d_loss", "labels", "lse"})

    @staticmethod
    def infer(
        d_loss: Operand, logits: Operand, labels: Operand, lse: Operand, **target: Unpack[Target]
    ) -> TensorType:
        who = "sparse_softmax_cross_entropy_grad"
        _check_labels(who, logits, labels)
        if not d_loss.shape == lse.shape == labels.shape:
            raise ShapeError(
                f"{who}: d_loss {d_loss} and lse {lse} must have the shape of labels {labels}"
            )
        return logits.meta

    @staticmethod
    def formula(*_: TensorType, **target: Unpack[Target]) -> Expression:
        rest = exp_down(_LOGITS - _LSE)
        if target["label_smoothing"]:
            rest = rest - scalar("label_smoothing") / scalar("columns")
        rest = where(_IS_HIT, rest - (1 - scalar("label_smoothing")), rest)
        return where(_IS_KEPT, _D_LOSS * rest, 0)


sparse_softmax_cross_entropy_grad = declare(SparseSoftmaxCrossEntropyGrad)


def _class_start(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
    """Adds where a shard's classes begin."""
    return {**attrs, "class_start": in_boxes[0].starts[1]}


def _class_start_of_output(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
    return {**attrs, "class_start": out_boxes[0].starts[1]}


class NllLoss(Op):
    """loss[i] = -log_probs[i, labels[i]], or 0 where labels[i] is ignore_index.

    log_probs: (N, C).  labels: (N,) integers.  class_start: set by the runtime where classes are
    split.
    """

    name = "nll_loss"
    precision = "keep"
    widens = ("cpu", "cuda")
    localize = staticmethod(_class_start)
    positions = staticmethod(_classes)

    @staticmethod
    def infer(
        log_probs: Operand,
        labels: Operand,
        *,
        ignore_index: int = -100,
    ) -> TensorType:
        _check_labels("nll_loss", log_probs, labels)
        return log_probs.meta.with_shape(log_probs.shape[:1])

    @staticmethod
    def sbp(log_probs: TensorType, labels: TensorType, **_: object) -> list[SbpSignature]:
        return [signature("S0 S0 -> S0"), signature("S1 B -> P"), signature("P B -> P")]

    @staticmethod
    def grad(
        d_loss: Tensor,
        log_probs: Tensor,
        labels: Tensor,
        loss: Tensor,
        *,
        ignore_index: int,
        **_: object,
    ) -> Gradients:
        classes = log_probs.meta.shape[1]
        return (
            lambda: nll_loss_grad(d_loss, labels, num_classes=classes, ignore_index=ignore_index),
            None,
        )

    @staticmethod
    def recorded_grad(
        d_loss: Tensor,
        log_probs: Tensor,
        labels: Tensor,
        loss: Tensor,
        *,
        ignore_index: int,
        **_: object,
    ) -> Gradients:
        found = NllLoss.grad(d_loss, log_probs, labels, loss, ignore_index=ignore_index)
        return flat_in_first(found, log_probs)


nll_loss = declare(NllLoss)


class NllLossGrad(Op):
    """d_log_probs[i, labels[i]] = -d_loss[i]; 0 elsewhere.   d_loss, labels: (N,); out: (N,
    num_classes).
    """

    name = "nll_loss_grad"
    localize = staticmethod(_class_start_of_output)

    @staticmethod
    def infer(
        d_loss: Operand,
        labels: Operand,
        *,
        num_classes: int,
        ignore_index: int = -100,
    ) -> TensorType:
        require_shape("nll_loss_grad", labels.shape, d_loss=d_loss)
        return d_loss.meta.with_shape((*d_loss.shape, num_classes))

    @staticmethod
    def sbp(d_loss: TensorType, labels: TensorType, **_: object) -> list[SbpSignature]:
        return [signature("S0 S0 -> S0"), signature("B B -> S1"), signature("P B -> P")]

    @staticmethod
    def grad(
        dd: Tensor, d_loss: Tensor, labels: Tensor, out: Tensor, *, ignore_index: int, **_: object
    ) -> Gradients:
        return (lambda: nll_loss(dd, labels, ignore_index=ignore_index), None)


nll_loss_grad = declare(NllLossGrad)


def _check_labels(who: str, scores: Operand, labels: Operand) -> None:
    require_float(who, scores)
    if scores.ndim != 2 or labels.shape != scores.shape[:1]:
        raise ShapeError(
            f"{who}: needs scores (N, C) and labels (N,), got {scores} and {labels}; "
            "flatten other dims into N first"
        )
    if not labels.dtype.is_integer:
        raise DTypeError(f"{who}: labels must be integers, got {labels}")
