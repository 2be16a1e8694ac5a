"""Kernels of oneflow/ops/ctc.py: one frame after another, all samples and states at once."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.positions import require_positions
from oneflow.kernels.registry import kernel


def _states(xp: ArrayModule, targets: Array, classes: int, blank: int) -> tuple[Array, Array]:
    """The class of each state (N, 2 S + 1), and which states may be reached over a blank."""
    batch, length = targets.shape
    states = xp.full((batch, 2 * length + 1), blank, dtype=xp.int64)
    states[:, 1::2] = xp.clip(targets, 0, classes - 1)
    skips = xp.zeros(states.shape, dtype=bool)
    skips[:, 3::2] = states[:, 3::2] != states[:, 1:-2:2]
    return states, skips


def _ends(xp: ArrayModule, states: int, target_lengths: Array) -> Array:
    """The states (N, 2 S + 1) in which paths may end: the last label, and the blank after it."""
    last = 2 * target_lengths.astype(xp.int64)[:, None]
    here = xp.arange(states)[None, :]
    ends: Array = (here == last) | ((here == last - 1) & (last > 0))
    return ends


def _sum_of_logs(xp: ArrayModule, x: Array) -> Array:
    """log(sum(exp(x))) over the last dim; -inf where all are."""
    top = x.max(axis=-1, keepdims=True)
    top = xp.where(xp.isfinite(top), top, 0)
    logs: Array = xp.log(xp.exp(x - top).sum(axis=-1)) + top[..., 0]
    return logs


@kernel("ctc_loss")
def ctc_loss(
    xp: ArrayModule,
    loss: Array,
    alpha: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    *,
    blank: int,
) -> None:
    frames, _, classes = log_probs.shape
    is_padding = xp.arange(targets.shape[1])[None, :] >= target_lengths[:, None]
    require_positions("ctc_loss", xp.where(is_padding, blank, targets), range(classes), {})
    states, skips = _states(xp, targets, classes, blank)
    ends = _ends(xp, states.shape[1], target_lengths)
    empty = xp.where(target_lengths == 0, 0.0, xp.inf)
    loss[...] = empty  # of samples without frames
    for t in range(frames):
        emitted = xp.take_along_axis(log_probs[t], states, axis=1)
        now = alpha[t]
        if t == 0:
            now[...] = -xp.inf
            now[:, :2] = emitted[:, :2]
        else:
            before = alpha[t - 1]
            now[...] = before
            now[:, 1:] = xp.logaddexp(now[:, 1:], before[:, :-1])
            over = xp.where(skips[:, 2:], before[:, :-2], -xp.inf)
            now[:, 2:] = xp.logaddexp(now[:, 2:], over)
            now += emitted
        total = -_sum_of_logs(xp, xp.where(ends, now, -xp.inf))
        xp.copyto(loss, total.astype(loss.dtype), where=input_lengths == t + 1)


@kernel("ctc_loss_grad")
def ctc_loss_grad(
    xp: ArrayModule,
    out: Array,
    d_loss: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Array,
    target_lengths: Array,
    loss: Array,
    alpha: Array,
    *,
    blank: int,
) -> None:
    frames, batch, classes = log_probs.shape
    states, skips = _states(xp, targets, classes, blank)
    ends = xp.where(_ends(xp, states.shape[1], target_lengths), 0.0, -xp.inf).astype(out.dtype)
    beta = xp.full(states.shape, -xp.inf, dtype=out.dtype)  # without what frame t emits
    rows = xp.arange(batch)[:, None]
    out[...] = 0
    for t in reversed(range(frames)):
        if t + 1 < frames:
            after = beta + xp.take_along_axis(log_probs[t + 1], states, axis=1)
            beta = after.copy()
            beta[:, :-1] = xp.logaddexp(beta[:, :-1], after[:, 1:])
            over = xp.where(skips[:, 2:], after[:, 2:], -xp.inf)
            beta[:, :-2] = xp.logaddexp(beta[:, :-2], over)
        beta = xp.where((input_lengths == t + 1)[:, None], ends, beta)
        share = xp.exp(alpha[t] + beta + loss[:, None]) * -d_loss[:, None]
        is_used = (d_loss != 0) & (input_lengths > t)
        xp.add.at(out[t], (rows, states), xp.where(is_used[:, None], share, 0))
