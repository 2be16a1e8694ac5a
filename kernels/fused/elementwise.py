"""Activations and their gradients in one pass over flat float32 or float64 arrays, on all numba
threads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import prange

from oneflow.kernels.fused.math import exp as exp_of
from oneflow.kernels.fused.math import sigmoid as sigmoid_of
from oneflow.kernels.fused.math import vectorized


@vectorized
def erf(out: Any, x: Any) -> None:
    for i in prange(out.size):
        out[i] = math.erf(x[i])


@vectorized
def relu(out: Any, x: Any) -> None:
    """NaN stays NaN."""
    zero = out.dtype.type(0)
    for i in prange(out.size):
        out[i] = zero if x[i] < zero else x[i]


@vectorized
def relu_grad(out: Any, d: Any, y: Any) -> None:
    zero = out.dtype.type(0)
    for i in prange(out.size):
        out[i] = d[i] if y[i] > zero else zero


@vectorized
def tanh_grad(out: Any, d: Any, y: Any) -> None:
    one = out.dtype.type(1)
    for i in prange(out.size):
        out[i] = d[i] * (one - y[i] * y[i])


@vectorized
def sigmoid_grad(out: Any, d: Any, y: Any) -> None:
    one = out.dtype.type(1)
    for i in prange(out.size):
        out[i] = d[i] * y[i] * (one - y[i])


@vectorized
def exp(out: Any, x: Any) -> None:
    """float32 only."""
    for i in prange(out.size):
        out[i] = exp_of(x[i])


@vectorized
def sigmoid(out: Any, x: Any) -> None:
    """float32 only."""
    for i in prange(out.size):
        out[i] = sigmoid_of(x[i])


@vectorized
def silu(out: Any, x: Any) -> None:
    """float32 only."""
    for i in prange(out.size):
        out[i] = x[i] * sigmoid_of(x[i])


@vectorized
def silu_grad(out: Any, d: Any, x: Any) -> None:
    """float32 only."""
    one = np.float32(1)
    for i in prange(out.size):
        s = sigmoid_of(x[i])
        out[i] = d[i] * s * (one + x[i] * (one - s))
