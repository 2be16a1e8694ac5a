"""The normal distribution function without SciPy.

For z >= 0, erfc(z) = exp(-z^2) * f(t) with t = 2 / (2 + z) in (0, 1], where f is smooth. The
coefficients of f are not copied from a table but interpolated here, at Chebyshev nodes, from
`math.erfc`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np


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


def normal_cdf(xp: Any, out: Any, x: Any, s: Any, last: Any, spare: Any) -> None:
    """out <- Phi(x), with three arrays of workspace of the shape of x. Clenshaw's recurrence."""
    coefficients = scaled_erfc_coefficients(32 if out.dtype.itemsize == 8 else 14)
    xp.abs(x, out=s)
    xp.multiply(s, math.sqrt(0.5), out=s)
    xp.add(s, 2.0, out=s)
    xp.divide(4.0, s, out=s)
    xp.subtract(s, 1.0, out=s)
    out[...] = 0
    last[...] = 0
    for c in reversed(coefficients[1:]):
        # (out, last) <- (2 s out - last + c, out)
        xp.multiply(s, out, out=spare)
        xp.multiply(spare, 2.0, out=spare)
        xp.subtract(spare, last, out=spare)
        xp.add(spare, c, out=spare)
        last[...] = out
        out[...] = spare
    xp.multiply(s, out, out=out)
    xp.subtract(out, last, out=out)
    xp.add(out, coefficients[0], out=out)
    xp.multiply(x, x, out=s)
    xp.multiply(s, -0.5, out=s)
    xp.exp(s, out=s)
    xp.multiply(out, s, out=out)
    xp.multiply(out, 0.5, out=out)  # Phi(-|x|)
    xp.subtract(1.0, out, out=s)
    xp.copyto(out, s, where=x > 0)
