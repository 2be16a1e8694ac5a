"""The hand-fused CPU kernels: large float32 arrays go to the numba functions in `fused/`.

Small jobs never get here, so they never import numba. Each numba function is compiled once per
machine (under two seconds each) and then read from its cache on disk. Inputs that are not
contiguous, which is rare here, are copied.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oneflow.core.rng import Rng
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.cross_entropy import check_labels
from oneflow.kernels.dropout import keep_scale, threshold
from oneflow.kernels.layer_norm import samples_and_size
from oneflow.kernels.registry import kernel
from oneflow.kernels.softmax import row_stat

LEAST = 16384
"""From about so many elements on, fused kernels win although waking the other threads costs some
microseconds.
"""

NUM_PARTS = 16
"""Into how many parts rows are cut for the gradients of norm weights: fixed, so that no sum depends
on threads.
"""

_ROW = 4096  # elements of a row into which a box without gaps is cut
_MANY = 1 << 40
_FUSED: dict[str, Any] = {"device": "cpu", "dtypes": ("float32",), "min_elements": LEAST}


def _rows(x: Any) -> Any:
    """x as a contiguous matrix of rows of its last dim."""
    return np.ascontiguousarray(x).reshape(-1, x.shape[-1])


def _flat(x: Any) -> Any:
    return np.ascontiguousarray(x).reshape(-1)


@kernel("softmax", workspace=row_stat, **_FUSED)
def softmax(xp: Any, out: Any, x: Any, stat: Any) -> None:
    from oneflow.kernels.fused import softmax as fused

    fused.softmax(_rows(out), stat.reshape(-1), _rows(x))


@kernel("softmax_grad", **_FUSED)
def softmax_grad(xp: Any, d_x: Any, d_out: Any, out: Any, *, scale: float = 1.0) -> None:
    from oneflow.kernels.fused import softmax as fused

    fused.softmax_grad(_rows(d_x), _rows(d_out), _rows(out), np.float32(scale))


@kernel("log_softmax", workspace=row_stat, **_FUSED)
def log_softmax(xp: Any, out: Any, x: Any, stat: Any) -> None:
    from oneflow.kernels.fused import softmax as fused

    fused.log_softmax(_rows(out), stat.reshape(-1), _rows(x))


@kernel("log_softmax_grad", **_FUSED)
def log_softmax_grad(xp: Any, d_x: Any, d_out: Any, out: Any) -> None:
    from oneflow.kernels.fused import softmax as fused

    fused.log_softmax_grad(_rows(d_x), _rows(d_out), _rows(out))


@kernel("causal_softmax", workspace=row_stat, **_FUSED)
def causal_softmax(xp: Any, out: Any, x: Any, stat: Any, *, scale: float = 1.0) -> None:
    from oneflow.kernels.fused import softmax as fused

    period = x.shape[-2]
    fused.causal_softmax(_rows(out), stat.reshape(-1), _rows(x), np.float32(scale), period)


@kernel("sparse_softmax_cross_entropy", **_FUSED)
def sparse_softmax_cross_entropy(
    xp: Any,
    loss: Any,
    lse: Any,
    logits: Any,
    labels: Any,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> None:
    from oneflow.kernels.fused import cross_entropy as fused

    check_labels("sparse_softmax_cross_entropy", labels, ignore_index, logits.shape[-1])
    smoothing = np.float32(label_smoothing)
    fused.cross_entropy(loss, lse, _rows(logits), _labels(labels), ignore_index, smoothing)


@kernel("sparse_softmax_cross_entropy_grad", **_FUSED)
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
    from oneflow.kernels.fused import cross_entropy as fused

    smoothing = np.float32(label_smoothing)
    inputs = _flat(d_loss), _rows(logits), _labels(labels), _flat(lse)
    fused.cross_entropy_grad(d_logits, *inputs, ignore_index, smoothing)


def _labels(labels: Any) -> Any:
    """int64, so that one compiled version serves every integer type."""
    return np.ascontiguousarray(labels, dtype=np.int64)


def _weight_type(types: tuple[TensorType, ...], x: int, begin_axis: int) -> TensorType:
    return types[x].with_shape((math.prod(types[x].shape[begin_axis:]),))


def _norm_workspace(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    """In the place of gamma and beta where they are not given."""
    return (_weight_type(types, 0, attrs["begin_axis"]),) * 2


@kernel("layer_norm", workspace=_norm_workspace, **_FUSED)
def layer_norm(
    xp: Any, y: Any, mean: Any, inv_std: Any, x: Any, *rest: Any, begin_axis: int, eps: float
) -> None:
    from oneflow.kernels.fused import layer_norm as fused

    *affine, ones, zeros = rest
    ones[...], zeros[...] = 1, 0
    gamma = _flat(affine[0]) if affine else ones
    beta = _flat(affine[1]) if len(affine) == 2 else zeros
    shape = samples_and_size(x, begin_axis)
    fused.layer_norm(
        y.reshape(shape),
        mean.reshape(-1),
        inv_std.reshape(-1),
        np.ascontiguousarray(x).reshape(shape),
        gamma,
        beta,
        np.float32(eps),
    )


def _norm_grad_workspace(
    types: tuple[TensorType, ...], attrs: dict[str, Any]
) -> tuple[TensorType, ...]:
    """Two sums per sample, partial sums of the gradients of the weights, and ones in the place of
    gamma.
    """
    weight = _weight_type(types, 1, attrs["begin_axis"])
    samples = math.prod(types[1].shape[: attrs["begin_axis"]])
    return (
        weight.with_shape((samples, 2)),
        weight.with_shape((NUM_PARTS, 2, weight.numel)),
        weight,
    )


@kernel("layer_norm_grad", workspace=_norm_grad_workspace, **_FUSED)
def layer_norm_grad(xp: Any, d_x: Any, *rest: Any, begin_axis: int) -> None:
    from oneflow.kernels.fused import layer_norm as fused

    *arrays, sums, partial, ones = rest
    ones[...] = 1
    d_weights, inputs = (arrays[:2], arrays[2:]) if len(arrays) > 4 else ([], arrays)
    d_y, x, mean, inv_std, *gamma = inputs
    shape = samples_and_size(x, begin_axis)
    fused.layer_norm_grad(
        d_x.reshape(shape),
        np.ascontiguousarray(d_y).reshape(shape),
        np.ascontiguousarray(x).reshape(shape),
        _flat(mean),
        _flat(inv_std),
        _flat(gamma[0]) if gamma else ones,
        sums,
        partial,
    )
    for i, out in enumerate(d_weights):
        np.sum(partial[:, i], axis=0, out=out.reshape(-1))


@kernel("gelu", **_FUSED)
def gelu(xp: Any, out: Any, x: Any, *, approximate: str = "none") -> None:
    from oneflow.kernels.fused import activation as fused

    run = fused.gelu_tanh if approximate == "tanh" else fused.gelu
    run(_flat(out), _flat(x))


@kernel("gelu_grad", **_FUSED)
def gelu_grad(xp: Any, d_x: Any, d_out: Any, x: Any, *, approximate: str = "none") -> None:
    from oneflow.kernels.fused import activation as fused

    run = fused.gelu_tanh_grad if approximate == "tanh" else fused.gelu_grad
    run(_flat(d_x), _flat(d_out), _flat(x))


@kernel("dropout", **_FUSED)
def dropout(xp: Any, out: Any, x: Any, *, p: float, seed: int, rng: Rng) -> None:
    from oneflow.kernels.fused import dropout as fused

    box = np.array(box_of_rows(x.shape, rng), dtype=np.int64)
    low, high = rng.seed & 0xFFFFFFFF, (rng.seed >> 32) & 0xFFFFFFFF
    fused.dropout(
        _flat(out),
        _flat(x),
        *box,
        np.uint64(threshold(p)),
        np.float32(keep_scale(p)),
        np.uint32(low),
        np.uint32(high),
    )


def box_of_rows(shape: tuple[int, ...], rng: Rng) -> tuple[Any, Any, Any]:
    """(shape, starts, whole shape) for the fused kernel. A box without gaps becomes rows of a fixed
    length.
    """
    whole = rng.global_shape
    inner = [i for i, n in enumerate(shape) if n != 1]
    first = inner[0] if inner else 0
    if shape[first + 1 :] == whole[first + 1 :]:
        index = 0
        for start, size in zip(rng.starts, whole, strict=True):
            index = index * size + start
        return (_MANY, _ROW), (0, index), (_MANY, _ROW)
    return shape, rng.starts, whole


@kernel("sgd_update", **_FUSED)
def sgd_update(
    xp: Any,
    out: Any,
    param: Any,
    grad: Any,
    lr: Any,
    *,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    from oneflow.kernels.fused import update as fused

    scalars = fused.as_float32(float(lr), weight_decay, -1 if maximize else 1)
    fused.sgd(out.reshape(-1), _flat(grad), *scalars)


@kernel("momentum_update", **_FUSED)
def momentum_update(
    xp: Any,
    out: Any,
    out_buf: Any,
    param: Any,
    grad: Any,
    buf: Any,
    lr: Any,
    *,
    momentum: float,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    maximize: bool = False,
) -> None:
    from oneflow.kernels.fused import update as fused

    through = (1, momentum) if nesterov else (0, 1)
    sign = -1 if maximize else 1
    scalars = (float(lr), momentum, 1 - dampening, *through, weight_decay, sign)
    fused.momentum(out.reshape(-1), _flat(grad), out_buf.reshape(-1), *fused.as_float32(*scalars))


@kernel("adam_update", **_FUSED)
def adam_update(
    xp: Any,
    out: Any,
    out_m: Any,
    out_v: Any,
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    lr: Any,
    step: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    do_bias_correction: bool = True,
    maximize: bool = False,
) -> None:
    from oneflow.kernels.fused import update as fused

    rate, count = float(lr), int(step)
    shrink = 1.0 - rate * weight_decay if decoupled else 1.0
    inverse_root = 1.0
    if do_bias_correction:
        rate /= 1.0 - beta1**count
        inverse_root = 1.0 / math.sqrt(1.0 - beta2**count)
    scalars = fused.as_float32(
        rate,
        shrink,
        beta1,
        beta2,
        1.0 - beta1,
        1.0 - beta2,
        eps,
        inverse_root,
        0.0 if decoupled else weight_decay,
        -1 if maximize else 1,
    )
    fused.adam(out.reshape(-1), _flat(grad), out_m.reshape(-1), out_v.reshape(-1), *scalars)
