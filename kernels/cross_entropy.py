"""Cross entropy and negative log-likelihood in NumPy and CuPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import kernel


def _copy_of_logits(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    return (types[0],)


def check_labels(name: str, labels: Any, ignore_index: int, num_classes: int | None) -> None:
    """Raises IndexError for a label that is neither ignored nor a class; on a GPU, where looking
    would wait for the device, such a label counts as ignored.

    num_classes: None where classes may be split over ranks: then only negative labels are wrong.
    """
    if not isinstance(labels, np.ndarray) or not labels.size:
        return
    limit = num_classes if num_classes is not None else np.iinfo(np.int64).max
    if labels.min() >= 0 and labels.max() < limit:
        return
    wrong = labels[(labels != ignore_index) & ((labels < 0) | (labels >= limit))]
    if wrong.size:
        classes = f"0 to {num_classes - 1}" if num_classes is not None else "0 and up"
        raise IndexError(f"{name}: a label is {int(wrong[0])}, but classes are {classes}")


@kernel("sparse_softmax_cross_entropy", workspace=_copy_of_logits)
def sparse_softmax_cross_entropy(
    xp: Any,
    loss: Any,
    lse: Any,
    logits: Any,
    labels: Any,
    spare: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> None:
    if logits.size == 0:
        return
    check_labels("sparse_softmax_cross_entropy", labels, ignore_index, logits.shape[1])
    samples, kept, safe = _targets(xp, labels, ignore_index, logits.shape[1])
    xp.max(logits, axis=1, out=loss)
    xp.subtract(logits, loss[:, None], out=spare)
    xp.exp(spare, out=spare)
    xp.sum(spare, axis=1, out=lse)
    xp.log(lse, out=lse)
    xp.add(lse, loss, out=lse)
    loss[...] = logits[samples, safe]
    if label_smoothing:
        loss *= 1.0 - label_smoothing
        loss += logits.mean(axis=1) * loss.dtype.type(label_smoothing)
    xp.subtract(lse, loss, out=loss)
    xp.copyto(loss, 0, where=~kept)


@kernel("sparse_softmax_cross_entropy_grad")
def sparse_softmax_cross_entropy_grad(
    xp: Any,
    d_logits: Any,
    d_loss: Any,
    logits: Any,
    labels: Any,
    lse: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> None:
    samples, kept, safe = _targets(xp, labels, ignore_index, logits.shape[1])
    xp.subtract(logits, lse[:, None], out=d_logits)
    xp.exp(d_logits, out=d_logits)
    if label_smoothing:
        d_logits -= d_logits.dtype.type(label_smoothing / logits.shape[1])
    d_logits[samples, safe] -= d_logits.dtype.type(1.0 - label_smoothing)
    d_logits *= xp.where(kept, d_loss, d_loss.dtype.type(0))[:, None]


@kernel("nll_loss")
def nll_loss(
    xp: Any,
    loss: Any,
    log_probs: Any,
    labels: Any,
    *,
    ignore_index: int = -100,
    class_start: int = 0,
) -> None:
    if log_probs.shape[1] == 0:
        loss[...] = 0
        return
    check_labels("nll_loss", labels, ignore_index, None)
    samples, kept, safe = _targets(xp, labels, ignore_index, log_probs.shape[1], class_start)
    xp.negative(log_probs[samples, safe], out=loss)
    xp.copyto(loss, 0, where=~kept)


@kernel("nll_loss_grad")
def nll_loss_grad(
    xp: Any,
    out: Any,
    d_loss: Any,
    labels: Any,
    *,
    num_classes: int,
    ignore_index: int = -100,
    class_start: int = 0,
) -> None:
    out[...] = 0
    if out.shape[1] == 0:
        return
    samples, kept, safe = _targets(xp, labels, ignore_index, out.shape[1], class_start)
    out[samples, safe] = xp.where(kept, -d_loss, d_loss.dtype.type(0))


def _targets(
    xp: Any, labels: Any, ignore_index: int, num_classes: int, class_start: int = 0
) -> tuple[Any, Any, Any]:
    """Row numbers, which labels count here, and labels that are safe to index with (0 where they do
    not count).
    """
    local = labels.astype(xp.int64) - class_start
    kept = (labels != ignore_index) & (local >= 0) & (local < num_classes)
    return xp.arange(labels.shape[0]), kept, xp.where(kept, local, 0)
