"""Hand-fused CPU kernels of elementwise ops and updates: numba functions of `fused/`.

Small jobs never get here, so they never import numba. Each numba function is compiled once per
machine (under two seconds each) and then read from its cache on disk. Inputs that are not
contiguous, which is rare here, are copied.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from oneflow.core.rng import Rng
from oneflow.kernels.array import as_flat
from oneflow.kernels.dropout import keep_scale, threshold
from oneflow.kernels.registry import fused_kernel

_ROW = 4096  # elements of a row into which a box without gaps is cut
_MANY = 1 << 40


@fused_kernel("gelu")
def gelu(xp: Any, out: Any, x: Any, *, approximate: str = "none") -> None:
    from oneflow.kernels.fused import activation as fused

    run = fused.gelu_tanh if approximate == "tanh" else fused.gelu
    run(as_flat(out), as_flat(x))


@fused_kernel("gelu_grad")
def gelu_grad(xp: Any, d_x: Any, d_out: Any, x: Any, *, approximate: str = "none") -> None:
    from oneflow.kernels.fused import activation as fused

    run = fused.gelu_tanh_grad if approximate == "tanh" else fused.gelu_grad
    run(as_flat(d_x), as_flat(d_out), as_flat(x))


@fused_kernel("dropout")
def dropout(xp: Any, out: Any, x: Any, *, p: float, seed: int, rng: Rng) -> None:
    from oneflow.kernels.fused import dropout as fused

    box = np.array(box_of_rows(x.shape, rng), dtype=np.int64)
    low, high = rng.seed & 0xFFFFFFFF, (rng.seed >> 32) & 0xFFFFFFFF
    fused.dropout(
        as_flat(out),
        as_flat(x),
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


@fused_kernel("sgd_update")
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
    fused.sgd(out.reshape(-1), as_flat(grad), *scalars)


@fused_kernel("momentum_update")
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
    fused.momentum(out.reshape(-1), as_flat(grad), out_buf.reshape(-1), *fused.as_float32(*scalars))


@fused_kernel("adam_update")
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
    fused.adam(out.reshape(-1), as_flat(grad), out_m.reshape(-1), out_v.reshape(-1), *scalars)
