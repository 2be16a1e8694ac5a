"""Losses."""

from __future__ import annotations

from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.functional.arithmetic import add, div, mul, sub
from oneflow.functional.elementwise import clamp, masked_fill
from oneflow.functional.gather_scatter import as_index, index_select
from oneflow.functional.nn.activation import log_softmax
from oneflow.functional.promotion import as_type, together
from oneflow.functional.reduction import norm, reduced, weighted
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import broadcast_tensors, flatten, movedim, reshape
from oneflow.ops import compare
from oneflow.ops import cross_entropy as ops
from oneflow.ops import loss as loss_ops
from oneflow.ops.activation import logsigmoid
from oneflow.ops.binary import minimum
from oneflow.ops.unary import abs, exp, log, neg, square
from oneflow.tensor.tensor import Tensor


def mse_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """(input - target)^2, each times a weight."""
    return weighted(square(sub(input, target)), weight, reduction)


def l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """|input - target|, each times a weight."""
    return weighted(abs(sub(input, target)), weight, reduction)


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    reduction: str | float = "mean",
    beta: float | str = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
) -> Tensor:
    """Quadratic where |input - target| < beta, linear beyond. By position, upstream's order (beta,
    reduction) is taken too.
    """
    if not isinstance(reduction, str):
        reduction, beta = (beta if isinstance(beta, str) else "mean"), reduction
    width = float(beta)
    if width < 0:
        raise ArgumentError(f"smooth_l1_loss does not support negative values for beta, got {beta}")
    x, y = together(input, target)
    if x.meta.shape != y.meta.shape:
        x, y = broadcast_tensors(x, y)
    return reduced(loss_ops.smooth_l1_loss(x, y, beta=width), reduction)


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """-(t log(p) + (1 - t) log(1 - p)); logs are kept above -100."""
    loss = loss_ops.bce_loss(input, as_type(target, input.meta.dtype))
    return reduced(loss if weight is None else mul(loss, weight), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """binary_cross_entropy(sigmoid(input), target) without overflow.  pos_weight: of the positive
    targets, per class.
    """
    input, target = together(input, target)
    if pos_weight is None:
        loss = loss_ops.bce_with_logits_loss(input, target, pos_weight=1.0)
    else:
        # (1 - t) x + (1 + (w - 1) t) * softplus(-x)
        scale = add(mul(sub(pos_weight, 1), target), 1)
        loss = add(mul(sub(1, target), input), mul(scale, neg(logsigmoid(input))))
    return reduced(loss if weight is None else mul(loss, weight), reduction)


def _rows(input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(N, C, d...) scores and (N, d...) labels as (M, C) and (M,)."""
    if input.ndim == 1:
        return reshape(input, (1, -1)), reshape(target, (1,))
    if input.ndim > 2:
        input = flatten(movedim(input, 1, -1), 0, -2)
    return input, target if target.ndim == 1 else reshape(target, (-1,))


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target].  input: (N, C, d...).  target: integers (N, d...), or
    probabilities like input.

    weight: (C,), of each class. The mean leaves out samples whose label is ignore_index.
    """
    if target.meta.dtype.is_floating_point:
        if target.meta.shape != input.meta.shape:
            raise DTypeError(
                f"cross_entropy: labels must be integers, got {target.meta}; only probabilities, "
                f"of the shape of the scores {input.meta}, may be floating-point"
            )
        return _soft_cross_entropy(input, target, weight, reduction, label_smoothing)
    scores, labels = _rows(input, as_index(target))
    if weight is not None:
        return _weighted(scores, labels, weight, ignore_index, reduction, label_smoothing, target)
    loss = ops.sparse_softmax_cross_entropy(
        scores, labels, ignore_index=int(ignore_index), label_smoothing=float(label_smoothing)
    )[0]
    return _of_labels(loss, labels, ignore_index, reduction, target)


def _of_labels(
    loss: Tensor, labels: Tensor, ignore_index: int, reduction: str, target: Tensor
) -> Tensor:
    if reduction == "none":
        return reshape(loss, target.meta.shape)
    if reduction != "mean":
        return reduced(loss, reduction)
    counted = compare.scalar_compare(labels, value=int(ignore_index), kind="ne")
    return div(total(loss), total(as_type(counted, loss.meta.dtype)))


def _class_weights(weight: Tensor, labels: Tensor, ignore_index: int) -> Tensor:
    ignored = compare.scalar_compare(labels, value=int(ignore_index), kind="eq")
    return masked_fill(index_select(weight, 0, masked_fill(labels, ignored, 0)), ignored, 0.0)


def _weighted(
    scores: Tensor,
    labels: Tensor,
    weight: Tensor,
    ignore_index: int,
    reduction: str,
    smoothing: float,
    target: Tensor,
) -> Tensor:
    per_sample = _class_weights(weight, labels, ignore_index)
    loss = mul(
        ops.sparse_softmax_cross_entropy(
            scores, labels, ignore_index=int(ignore_index), label_smoothing=0.0
        )[0],
        per_sample,
    )
    if smoothing:
        spread = neg(total(mul(log_softmax(scores, 1), weight), 1))
        ignored = compare.scalar_compare(labels, value=int(ignore_index), kind="eq")
        spread = masked_fill(spread, ignored, 0.0)
        loss = add(mul(loss, 1 - smoothing), mul(spread, smoothing / scores.meta.shape[1]))
    if reduction == "none":
        return reshape(loss, target.meta.shape)
    return div(total(loss), total(per_sample)) if reduction == "mean" else reduced(loss, reduction)


def _soft_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float
) -> Tensor:
    """The target is a distribution over the classes."""
    dim = 0 if input.ndim == 1 else 1
    if smoothing:
        target = add(mul(target, 1 - smoothing), smoothing / input.meta.shape[dim])
    logs = log_softmax(input, dim)
    if weight is not None:
        logs = mul(logs, reshape(weight, tuple(-1 if i == dim else 1 for i in range(input.ndim))))
    loss = neg(total(mul(logs, target), dim))
    return reduced(loss, reduction)


def sparse_softmax_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """-log softmax(logits)[labels] over the last dim, per sample. The integers are the labels,
    whichever comes first.
    """
    input, target = (labels, logits) if logits.meta.dtype.is_integer else (logits, labels)
    rows = reshape(input, (-1, input.meta.shape[-1]))
    labels = reshape(as_index(target), (-1,))
    loss = ops.sparse_softmax_cross_entropy(rows, labels, ignore_index=-100, label_smoothing=0.0)[0]
    return reshape(loss, target.meta.shape)


def softmax_cross_entropy(input: Tensor, target: Tensor) -> Tensor:
    """-sum(target * log softmax(input)) over the last dim, per sample."""
    if input.ndim < 2 or input.meta.shape != target.meta.shape:
        raise ShapeError(
            "softmax_cross_entropy: needs scores and probabilities of one shape (N, ..., C), got "
            f"{input.meta} and {target.meta}"
        )
    if input.meta.dtype is not target.meta.dtype:
        raise DTypeError(
            f"softmax_cross_entropy: {input.meta} and {target.meta} must have one dtype"
        )
    return neg(total(mul(log_softmax(input, -1), target), -1))


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-input[target] of log-probabilities (N, C, d...)."""
    scores, labels = _rows(input, as_index(target))
    loss = ops.nll_loss(scores, labels, ignore_index=int(ignore_index))
    if weight is None:
        return _of_labels(loss, labels, ignore_index, reduction, target)
    per_sample = _class_weights(weight, labels, ignore_index)
    loss = mul(loss, per_sample)
    if reduction == "mean":
        return div(total(loss), total(per_sample))
    return reshape(loss, target.meta.shape) if reduction == "none" else reduced(loss, reduction)


def kl_div(
    input: Tensor, target: Tensor, log_target: bool = False, reduction: str = "mean"
) -> Tensor:
    """target * (log(target) - input), input being log-probabilities; 0 where target is 0."""
    if log_target:
        loss = mul(exp(target), sub(target, input))
    else:
        empty = compare.scalar_compare(target, value=0, kind="eq")
        logs = log(masked_fill(target, empty, 1.0))
        loss = masked_fill(mul(target, sub(logs, input)), empty, 0.0)
    if reduction == "batchmean":
        return div(total(loss), input.meta.shape[0] if input.ndim else 1)
    return reduced(loss, reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, -target * (input1 - input2) + margin)."""
    return reduced(clamp(add(mul(neg(target), sub(input1, input2)), margin), min=0.0), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin); swap: the nearer of anchor and
    positive counts.
    """
    if margin <= 0:
        raise ArgumentError(f"triplet_margin_loss: margin must be greater than 0, got {margin}")
    near = norm(add(sub(anchor, positive), eps), p, -1)
    far = norm(add(sub(anchor, negative), eps), p, -1)
    if swap:
        far = minimum(far, norm(add(sub(positive, negative), eps), p, -1))
    return reduced(clamp(add(sub(near, far), margin), min=0.0), reduction)
