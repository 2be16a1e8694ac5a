"""Cross entropy and negative log-likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, as_flat, as_rows
from oneflow.kernels.cuda_launch import by_row, cuda_source, long, whole
from oneflow.kernels.registry import cuda_kernel, fused_kernel, kernel

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oneflow.ops.cross_entropy import Target


def _copy_of_logits(types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
    return (types[0],)


def check_labels(name: str, labels: Array, ignore_index: int, num_classes: int | None) -> None:
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
    xp: ArrayModule,
    loss: Array,
    lse: Array,
    logits: Array,
    labels: Array,
    spare: Array,
    *,
    ignore_index: int,
    label_smoothing: float,
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
    xp: ArrayModule,
    d_logits: Array,
    d_loss: Array,
    logits: Array,
    labels: Array,
    lse: Array,
    *,
    ignore_index: int,
    label_smoothing: float,
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
    check_labels("nll_loss", labels, ignore_index, None)
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


# ---- large float32 arrays on a CPU ---------------------------------------------------------------


@fused_kernel("sparse_softmax_cross_entropy")
def sparse_softmax_cross_entropy_fused(
    xp: ArrayModule,
    loss: Array,
    lse: Array,
    logits: Array,
    labels: Array,
    *,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    from oneflow.kernels.fused import cross_entropy as fused

    check_labels("sparse_softmax_cross_entropy", labels, ignore_index, logits.shape[-1])
    smoothing = np.float32(label_smoothing)
    fused.cross_entropy(loss, lse, as_rows(logits), _int64(labels), ignore_index, smoothing)


@fused_kernel("sparse_softmax_cross_entropy_grad")
def sparse_softmax_cross_entropy_grad_fused(
    xp: ArrayModule,
    d_logits: Array,
    d_loss: Array,
    logits: Array,
    labels: Array,
    lse: Array,
    *,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    from oneflow.kernels.fused import cross_entropy as fused

    smoothing = np.float32(label_smoothing)
    inputs = as_flat(d_loss), as_rows(logits), _int64(labels), as_flat(lse)
    fused.cross_entropy_grad(d_logits, *inputs, ignore_index, smoothing)


def _int64(labels: Array) -> Array:
    """So that one compiled version serves every integer type."""
    return np.ascontiguousarray(labels, dtype=np.int64)


# ---- GPU: a block per row, log-sum-exp kept, probabilities never stored --------------------------

cuda_source(
    "cross_entropy",
    r"""
extern "C" __global__ void cross_entropy(T* loss, T* lse, const T* logits, const i64* labels,
                                         i64 classes, i64 ignore_index, T smoothing) {
  i64 row = blockIdx.x, at = row * classes, label = labels[row];
  bool kept = label != ignore_index && label >= 0 && label < classes;
  T best = lowest(), total = 0, sum = 0;
  ROW(j, classes) { best = larger(best, logits[at + j]); sum += logits[at + j]; }
  best = block_max(best);
  ROW(j, classes) total += exp(logits[at + j] - best);
  total = block_sum(total);
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    T all = best + log(total);
    lse[row] = all;
    T wanted = kept ? logits[at + label] * (T(1) - smoothing) : T(0);
    if (smoothing > T(0)) wanted += sum * (smoothing / T(classes));
    loss[row] = kept ? all - wanted : T(0);
  }
}

extern "C" __global__ void cross_entropy_grad(T* d_logits, const T* d_loss, const T* logits,
                                              const i64* labels, const T* lse, i64 classes,
                                              i64 ignore_index, T smoothing) {
  i64 row = blockIdx.x, at = row * classes, label = labels[row];
  bool kept = label != ignore_index && label >= 0 && label < classes;
  T d = kept ? d_loss[row] : T(0), shift = lse[row], spread = smoothing / T(classes);
  ROW(j, classes) {
    T target = spread + (j == label ? T(1) - smoothing : T(0));
    d_logits[at + j] = kept ? d * (exp(logits[at + j] - shift) - target) : T(0);
  }
}
""",
)


def _settings(classes: int, like: Array, target: Target) -> tuple[object, ...]:
    smoothing = like.dtype.type(target["label_smoothing"])
    return long(classes), long(target["ignore_index"]), smoothing


@cuda_kernel("sparse_softmax_cross_entropy")
def sparse_softmax_cross_entropy_cuda(
    xp: ArrayModule,
    loss: Array,
    lse: Array,
    logits: Array,
    labels: Array,
    **target: Unpack[Target],
) -> None:
    rows, classes = logits.shape
    inputs = lse, whole(logits), xp.ascontiguousarray(labels, dtype=np.int64)
    by_row("cross_entropy", rows, loss, *inputs, *_settings(classes, loss, target))


@cuda_kernel("sparse_softmax_cross_entropy_grad")
def sparse_softmax_cross_entropy_grad_cuda(
    xp: ArrayModule,
    d_logits: Array,
    d_loss: Array,
    logits: Array,
    labels: Array,
    lse: Array,
    **target: Unpack[Target],
) -> None:
    rows, classes = logits.shape
    targets = xp.ascontiguousarray(labels, dtype=np.int64)
    inputs = whole(d_loss), whole(logits), targets, whole(lse)
    by_row("cross_entropy_grad", rows, d_logits, *inputs, *_settings(classes, d_logits, target))
