"""The normal distribution function without SciPy.

For z >= 0, erfc(z) = exp(-z^2) * f(t) with t = 2 / (2 + z) in (0, 1], where f is smooth. The
coefficients of f are not copied from a table but interpolated here, at Chebyshev nodes, from
`math.erfc`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from oneflow.kernels.array import Array


@lru_cache(maxsize=8)
def scaled_erfc_coefficients(degree: int) -> tuple[float, ...]:
    """Chebyshev coefficients of f over s = 2 t - 1 in [-1, 1]; degree 12 suffices for float32, 32
    for float64.
    """

    def f(s: float) -> float:
        z = 4.0 / (s + 1.0) - 2.0
        if (
            z > 25.0
        ):  # exp(z^2) is near overflow: the asymptotic series is exact to the last bit here
            w = 1.0 / (2.0 * z * z)
            return (1.0 - w * (1.0 - 3.0 * w * (1.0 - 5.0 * w))) / (z * math.sqrt(math.pi))
        return math.erfc(z) * math.exp(z * z)

    nodes = np.polynomial.chebyshev.chebpts1(degree + 1)
    values = np.array([f(s) for s in nodes])
    return tuple(float(c) for c in np.polynomial.chebyshev.chebfit(nodes, values, degree))


def erfcx_of(x: Array) -> Array:
    """erfc(x) e^(x^2) of a NumPy array of float32 or float64, x >= 0. Clenshaw's recurrence."""
    coefficients = scaled_erfc_coefficients(32 if x.dtype.itemsize == 8 else 14)
    s = 4.0 / (x + 2.0) - 1.0
    value, last = np.zeros_like(x), np.zeros_like(x)
    for c in reversed(coefficients[1:]):
        value, last = 2.0 * s * value - last + c, value
    return s * value - last + coefficients[0]


def erfc_of(x: Array) -> Array:
    """erfc of a NumPy array of float32 or float64."""
    a = np.abs(x)
    tail = erfcx_of(a) * np.exp(-(a * a))
    result: Array = np.where(x < 0, 2.0 - tail, tail)
    return result
