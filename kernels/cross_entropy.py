"""Negative log-likelihood, and the check of labels. Cross entropy has a formula."""

from __future__ import annotations

import numpy as np

from oneflow.core.errors import PositionError
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel, precheck


def check_labels(name: str, labels: Array, ignore_index: int, num_classes: int | None) -> None:
    """Raises PositionError for a label that is neither ignored nor a class; on a GPU, where looking
    would wait for the device, such a label counts as ignored.

    num_classes: None where classes may be split over ranks: then only negative labels are wrong.
    """
    if not isinstance(labels, np.ndarray) or not labels.size:
        return
    limit = num_classes if num_classes is not None else np.iinfo(np.int64).max
    # Negative ones wrap around to large ones.
    bits = labels.view(np.uint64) if labels.dtype == np.int64 else labels.astype(np.uint64)
    if int(bits.max()) < limit:
        return
    wrong = labels[(labels != ignore_index) & ((labels < 0) | (labels >= limit))]
    if wrong.size:
        classes = f"0 to {num_classes - 1}" if num_classes is not None else "0 and up"
        raise PositionError(f"{name}: a label is {int(wrong[0])}, but classes are {classes}")


@precheck("sparse_softmax_cross_entropy")
def check_cross_entropy(
    loss: Array,
    lse: Array,
    logits: Array,
    labels: Array,
    *workspace: Array,
    ignore_index: int,
    **_: object,
) -> None:
    check_labels("sparse_softmax_cross_entropy", labels, ignore_index, logits.shape[-1])


@kernel("nll_loss")
def nll_loss(
    xp: ArrayModule,
    loss: Array,
    log_probs: Array,
    labels: Array,
    *,
    ignore_index: int,
    class_start: int | None = None,
) -> None:
    if log_probs.shape[1] == 0:
        loss[...] = 0
        return
    count = log_probs.shape[1]
    check_labels("nll_loss", labels, ignore_index, count if class_start is None else None)
    samples, kept, safe = _targets(xp, labels, ignore_index, count, class_start or 0)
    xp.negative(log_probs[samples, safe], out=loss)
    xp.copyto(loss, 0, where=~kept)


@kernel("nll_loss_grad")
def nll_loss_grad(
    xp: ArrayModule,
    out: Array,
    d_loss: Array,
    labels: Array,
    *,
    num_classes: int,
    ignore_index: int,
    class_start: int = 0,
) -> None:
    out[...] = 0
    if out.shape[1] == 0:
        return
    samples, kept, safe = _targets(xp, labels, ignore_index, out.shape[1], class_start)
    out[samples, safe] = xp.where(kept, -d_loss, d_loss.dtype.type(0))


def _targets(
    xp: ArrayModule, labels: Array, ignore_index: int, num_classes: int, class_start: int = 0
) -> tuple[Array, Array, Array]:
    """Row numbers, which labels count here, and labels that are safe to index with (0 where they do
    not count).
    """
    local = labels.astype(xp.int64) - class_start
    kept = (labels != ignore_index) & (local >= 0) & (local < num_classes)
    return xp.arange(labels.shape[0]), kept, xp.where(kept, local, 0)
