"""Optimizer updates of flat float32 arrays in one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from oneflow.kernels.fused.math import F, vectorized


@vectorized
def sgd(param: Any, grad: Any, lr: Any, weight_decay: Any, sign: Any) -> None:
    """sign: -1 to maximize, else 1."""
    for i in prange(param.size):
        param[i] -= lr * (sign * grad[i] + weight_decay * param[i])


@vectorized
def momentum(
    param: Any,
    grad: Any,
    buf: Any,
    lr: Any,
    decay: Any,
    rate: Any,
    through_grad: Any,
    through_buf: Any,
    weight_decay: Any,
    sign: Any,
) -> None:
    """buf = decay * buf + rate * g; param -= lr * (through_grad * g + through_buf * buf)."""
    for i in prange(param.size):
        g = sign * grad[i] + weight_decay * param[i]
        b = decay * buf[i] + rate * g
        buf[i] = b
        param[i] -= lr * (through_grad * g + through_buf * b)


@vectorized
def adam(
    param: Any,
    grad: Any,
    m: Any,
    v: Any,
    lr: Any,
    shrink: Any,
    beta1: Any,
    beta2: Any,
    rest1: Any,
    rest2: Any,
    eps: Any,
    inverse_root: Any,
    weight_decay: Any,
    sign: Any,
) -> None:
    """param = shrink * param - lr * m / (sqrt(v) * inverse_root + eps); lr already holds the
    correction of m.

    rest1, rest2: 1 - beta1 and 1 - beta2, rounded once.
    """
    for i in prange(param.size):
        p = param[i]
        g = sign * grad[i] + weight_decay * p
        a = beta1 * m[i] + rest1 * g
        b = beta2 * v[i] + rest2 * g * g
        m[i] = a
        v[i] = b
        param[i] = shrink * p - lr * a / (np.sqrt(b) * inverse_root + eps)


def as_float32(*values: float) -> tuple[Any, ...]:
    """Scalars in the type the kernels are compiled for, so that one compiled version serves all."""
    return tuple(F(v) for v in values)
