"""Connectionist temporal classification: its loss, and the best path read greedily."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from oneflow.core.dtype import float32, int64
from oneflow.core.errors import ShapeError
from oneflow.functional.arithmetic import add, div, ne, sub
from oneflow.functional.elementwise import clamp, masked_fill, pick
from oneflow.functional.from_data import beside
from oneflow.functional.gather_scatter import gather, scatter
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import amax as largest
from oneflow.functional.reduction import argmax, cumsum, logsumexp, mean, reduced
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import reshape, transpose, unsqueeze
from oneflow.ops import ctc as ops
from oneflow.ops import unary
from oneflow.tensor.tensor import Tensor, needs_data

Lengths: TypeAlias = "Tensor | Sequence[int] | int"


def _as_lengths(lengths: Lengths, beside_this: Tensor) -> Tensor:
    """Lengths as a tensor of int64, one for each sample; of its own, as the gradient reads it."""
    if isinstance(lengths, Tensor):
        return unary.copy(reshape(as_type(lengths, int64), (-1,)))
    return beside(beside_this, np.atleast_1d(np.asarray(lengths, dtype=np.int64)))


def _padded(targets: Tensor, lengths: Tensor) -> Tensor:
    """Targets that stand one after another, as rows of the longest one's length."""
    needs_data(lengths, "ctc_loss with targets of one dim")
    counts = np.asarray(lengths.numpy())
    if counts.sum() != targets.meta.shape[0]:
        raise ShapeError(
            f"ctc_loss: the target lengths add up to {counts.sum()}, but targets are {targets.meta}"
        )
    longest = int(counts.max(initial=0))
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    places = starts[:, None] + np.arange(longest)[None, :]
    flat = beside(targets, np.minimum(places, max(targets.meta.shape[0] - 1, 0)).reshape(-1))
    if not targets.meta.shape[0]:
        return reshape(targets, (len(counts), 0))
    return reshape(gather(targets, 0, flat), (len(counts), longest))


def _frames_inside(input_lengths: Tensor, frames: int) -> Tensor:
    """Marks of the frames that count: (T, N) bools."""
    return beside(input_lengths, np.arange(frames)[:, None]) < unsqueeze(input_lengths, 0)


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """-log of the sum of the probabilities of all paths that read as the target.

    log_probs: (T, N, C) or (T, C), normalized over C.  targets: (N, S), or all targets one after
    another.  The mean is of the losses, each divided by the length of its target.  zero_infinity:
    targets longer than their input have no loss and no gradient.
    """
    if log_probs.ndim not in (2, 3):
        raise ShapeError(f"ctc_loss: log_probs must be (T, N, C) or (T, C), got {log_probs.meta}")
    is_single = log_probs.ndim == 2
    if is_single:
        log_probs, targets = unsqueeze(log_probs, 1), reshape(targets, (1, -1))
    scores = log_probs if log_probs.meta.dtype.bytes >= 4 else as_type(log_probs, float32)
    frames = _as_lengths(input_lengths, scores)
    lengths = _as_lengths(target_lengths, scores)
    rows = _padded(targets, lengths) if targets.ndim == 1 else targets
    _check_lengths(scores, rows, frames, lengths)
    loss = ops.ctc_loss(scores, as_type(rows, int64), frames, lengths, blank=int(blank))[0]
    loss = add(loss, _mass(scores, frames))
    if zero_infinity:
        loss = masked_fill(loss, unary.isinf(loss), 0.0)
    if reduction == "mean":
        return mean(div(loss, as_type(clamp(lengths, min=1), loss.meta.dtype)))
    loss = reduced(loss, reduction)
    return reshape(loss, ()) if is_single and loss.ndim else loss


def _check_lengths(scores: Tensor, rows: Tensor, frames: Tensor, lengths: Tensor) -> None:
    """Refuse lengths beyond the scores or the targets; those of a graph are not known yet."""
    batch = scores.meta.shape[1]
    for what, counts in (("input_lengths", frames), ("target_lengths", lengths)):
        if counts.meta.shape != (batch,):
            raise RuntimeError(f"ctc_loss: {what} must be of size {batch}, got {counts.meta}")
    if frames.value is not None or frames.is_global:
        return
    for what, counts, limit in (
        ("input_lengths", frames, scores.meta.shape[0]),
        ("target_lengths", lengths, rows.meta.shape[1]),
    ):
        given = np.asarray(counts.numpy())
        if ((given < 0) | (given > limit)).any():
            raise RuntimeError(f"ctc_loss: {what} must lie in [0, {limit}], got {given.tolist()}")


def _mass(scores: Tensor, frames: Tensor) -> Tensor:
    """Zeros with the gradient of log(sum(exp(log_probs))) of each sample.

    For normalized log_probs this changes nothing behind the log_softmax that made them; it makes
    the gradient at log_probs itself the one that PyTorch and OneFlow give.
    """
    each = logsumexp(scores, -1)
    outside = unary.logical_not(_frames_inside(frames, scores.meta.shape[0]))
    whole = total(masked_fill(each, outside, 0.0), 0)
    return sub(whole, whole.detach())


def combined_margin_loss(
    x: Tensor, label: Tensor, m1: float = 1.0, m2: float = 0.0, m3: float = 0.0
) -> Tensor:
    """Cosines (N, C) with that of the label made cos(m1 acos(x) + m2) - m3 (Deng and others, CVPR
    2019). A label that is no class changes nothing.
    """
    classes = beside(x, np.arange(x.meta.shape[1])[None, :])
    is_label = unary.logical_not(ne(classes, reshape(as_type(label, int64), (-1, 1))))
    angle = unary.acos(masked_fill(x, unary.logical_not(is_label), 0.0))
    return pick(is_label, sub(unary.cos(add(angle * float(m1), float(m2))), float(m3)), x)


def ctc_greedy_decoder(
    log_probs: Tensor, input_lengths: Lengths, merge_repeated: bool = True
) -> tuple[Tensor, Tensor]:
    """The labels (N, T) of the likeliest class of each frame, and the sum (N, 1) of -log_probs on
    that path. The last class is the blank; rows are filled up with zeros.

    merge_repeated: a class in frames that follow each other is read once.
    """
    count, batch, classes = log_probs.meta.shape
    frames = _as_lengths(input_lengths, log_probs)
    inside = _frames_inside(frames, count)
    best = argmax(log_probs, -1)
    cost = unary.neg(total(masked_fill(largest(log_probs, -1), unary.logical_not(inside), 0.0), 0))
    is_read = inside & ne(best, classes - 1)
    if merge_repeated and count > 1:
        before = beside(log_probs, np.arange(count)[:, None] > 0)
        shifted = best.roll(1, 0)
        is_read = is_read & (ne(best, shifted) | unary.logical_not(before))
    marks = as_type(is_read, int64)
    place = pick(is_read, sub(cumsum(marks, 0), 1), count)  # what is not read goes past the end
    empty = beside(log_probs, np.zeros((batch, count + 1), dtype=np.int64))
    found = scatter(empty, 1, transpose(place, 0, 1), transpose(best, 0, 1))
    return found.narrow(1, 0, count), reshape(cost, (batch, 1))
