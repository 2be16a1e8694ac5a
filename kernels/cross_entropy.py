"""Negative log-likelihood. Cross entropy has a formula."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


@kernel("nll_loss")
def nll_loss(
    xp: ArrayModule,
    loss: Array,
    log_probs: Array,
    labels: Array,
    *,
    ignore_index: int,
    class_start: int = 0,
) -> None:
    if log_probs.shape[1] == 0:
        loss[...] = 0
        return
    samples, kept, safe = _targets(xp, labels, ignore_index, log_probs.shape[1], class_start)
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
