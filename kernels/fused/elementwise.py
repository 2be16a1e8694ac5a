"""Activations and their gradients in one pass over flat float32 or float64 arrays, on all numba threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from oneflow.kernels.fused.math import REORDER
from oneflow.kernels.fused.math import sigmoid as sigmoid_of


@njit(parallel=True, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def relu_grad(out: Any, d: Any, y: Any) -> None:
    zero = out.dtype.type(0)
    for i in prange(out.size):
        out[i] = d[i] if y[i] > zero else zero


@njit(parallel=True, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def tanh_grad(out: Any, d: Any, y: Any) -> None:
    one = out.dtype.type(1)
    for i in prange(out.size):
        out[i] = d[i] * (one - y[i] * y[i])


@njit(parallel=True, nogil=True, cache=True)  # type: ignore[untyped-decorator]
def sigmoid_grad(out: Any, d: Any, y: Any) -> None:
    one = out.dtype.type(1)
    for i in prange(out.size):
        out[i] = d[i] * y[i] * (one - y[i])


@njit(parallel=True, nogil=True, cache=True, fastmath=REORDER)  # type: ignore[untyped-decorator]
def sigmoid(out: Any, x: Any) -> None:
    """float32 only."""
    for i in prange(out.size):
        out[i] = sigmoid_of(x[i])


@njit(parallel=True, nogil=True, cache=True, fastmath=REORDER)  # type: ignore[untyped-decorator]
def silu(out: Any, x: Any) -> None:
    """float32 only."""
    for i in prange(out.size):
        out[i] = x[i] * sigmoid_of(x[i])


@njit(parallel=True, nogil=True, cache=True, fastmath=REORDER)  # type: ignore[untyped-decorator]
def silu_grad(out: Any, d: Any, x: Any) -> None:
    """float32 only."""
    one = np.float32(1)
    for i in prange(out.size):
        s = sigmoid_of(x[i])
        out[i] = d[i] * s * (one + x[i] * (one - s))
