"""GELU of flat float32 arrays."""

from __future__ import annotations

from typing import Any

from numba import prange

from oneflow.kernels.fused.math import F, phi_and_density, sigmoid, vectorized

_TWICE = F(2.0 * 0.7978845608028654)  # 2 sqrt(2 / pi): (1 + tanh(u)) / 2 = sigmoid(2 u)
_CUBIC = F(0.044715)
_TRIPLE = F(3.0 * 0.044715)


@vectorized
def gelu(out: Any, x: Any) -> None:
    """out <- x * Phi(x)."""
    for i in prange(x.size):
        v = x[i]
        phi, _ = phi_and_density(v)
        out[i] = v * phi


@vectorized
def gelu_grad(d_x: Any, d_out: Any, x: Any) -> None:
    """d_x <- d_out * (Phi(x) + x * Phi'(x))."""
    for i in prange(x.size):
        v = x[i]
        phi, density = phi_and_density(v)
        d_x[i] = d_out[i] * (phi + v * density)


@vectorized
def gelu_tanh(out: Any, x: Any) -> None:
    """out <- x / 2 * (1 + tanh(u)), u = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    for i in prange(x.size):
        v = x[i]
        out[i] = v * sigmoid(_TWICE * v * (F(1) + _CUBIC * v * v))


@vectorized
def gelu_tanh_grad(d_x: Any, d_out: Any, x: Any) -> None:
    """d_x <- d_out * (p + x * p * (1 - p) * 2 u'), p = sigmoid(2 u)."""
    for i in prange(x.size):
        v = x[i]
        p = sigmoid(_TWICE * v * (F(1) + _CUBIC * v * v))
        slope = _TWICE * (F(1) + _TRIPLE * v * v)
        d_x[i] = d_out[i] * (p + v * p * (F(1) - p) * slope)
