"""Samples of Bessel's and Airy's functions, the incomplete gamma function and polynomials by
degree; answers by mpmath.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

from .sample import Sample, between

Array = np.ndarray[Any, Any]
Number = Callable[[Any], Any]

FUNCTIONS: dict[str, Number] = {
    "i0": lambda x: mpmath.besseli(0, x),
    "i0e": lambda x: mpmath.besseli(0, x) * mpmath.exp(-abs(x)),
    "i1": lambda x: mpmath.besseli(1, x),
    "i1e": lambda x: mpmath.besseli(1, x) * mpmath.exp(-abs(x)),
    "bessel_j0": lambda x: mpmath.besselj(0, x),
    "bessel_j1": lambda x: mpmath.besselj(1, x),
    "bessel_y0": lambda x: mpmath.bessely(0, x),
    "bessel_y1": lambda x: mpmath.bessely(1, x),
    "modified_bessel_k0": lambda x: mpmath.besselk(0, x),
    "modified_bessel_k1": lambda x: mpmath.besselk(1, x),
    "scaled_modified_bessel_k0": lambda x: mpmath.besselk(0, x) * mpmath.exp(x),
    "scaled_modified_bessel_k1": lambda x: mpmath.besselk(1, x) * mpmath.exp(x),
    "spherical_bessel_j0": mpmath.sinc,
    "airy_ai": mpmath.airyai,
}
POLYNOMIALS: dict[str, Callable[[int, Any], Any]] = {
    "chebyshev_t": mpmath.chebyt,
    "chebyshev_u": mpmath.chebyu,
    "chebyshev_v": lambda n, x: mpmath.chebyu(n, x) - mpmath.chebyu(n - 1, x) if n else 1,
    "chebyshev_w": lambda n, x: mpmath.chebyu(n, x) + mpmath.chebyu(n - 1, x) if n else 1,
    "hermite_h": mpmath.hermite,
    "hermite_he": lambda n, x: mpmath.hermite(n, x / mpmath.sqrt(2)) / mpmath.sqrt(2) ** n,
    "laguerre_l": lambda n, x: mpmath.laguerre(n, 0, x),
    "legendre_p": mpmath.legendre,
}
IS_EVEN_OR_ODD = ("i", "bessel_j", "spherical", "airy")


def _each(function: Number) -> Callable[[Array], Array]:
    def at(value: float) -> float:
        return float(mpmath.re(function(mpmath.mpf(value))))

    return np.vectorize(at, otypes=[np.float64])


def _places(name: str) -> Array:
    """Both sides of the ends of each series; below zero only where there is a value."""
    right = np.concatenate([between(0.1, 1.9, 4), between(2.1, 7.9, 6), between(8.1, 30.0, 5)])
    if not name.startswith(IS_EVEN_OR_ODD):
        return right.reshape(5, 3)
    return np.concatenate([right[::2], -right[1::2]]).reshape(5, 3)


def _portion(a: Array, x: Array, logs: Array, *, is_upper: bool = False) -> Array:
    ends = (lambda v: (v, mpmath.inf)) if is_upper else (lambda v: (0, v))
    pairs = np.broadcast_arrays(a, x)
    found = [
        float(mpmath.gammainc(p, *ends(q), regularized=True))
        for p, q in zip(*(v.ravel() for v in pairs), strict=True)
    ]
    return np.array(found).reshape(pairs[0].shape)


def _of_degrees(x: Array, n: Array, kind: str) -> Array:
    def at(point: float, degree: float) -> float:
        return float(POLYNOMIALS[kind](int(degree), mpmath.mpf(point))) if degree >= 0 else 0.0

    return np.vectorize(at, otypes=[np.float64])(x, n)


def bessel_samples() -> list[Sample]:
    samples = [
        Sample(name, (_places(name),), {}, _each(function), tolerance=2e-5)
        for name, function in FUNCTIONS.items()
    ]
    a, x = between(0.3, 6.0, 5, 1), between(0.1, 12.0, 5, 4)
    logs = _each(mpmath.loggamma)(a)
    samples += [
        Sample("gammainc", (a, x, logs), {"is_upper": b}, _portion, wrt=(1,), refused=(0,))
        for b in (False, True)
    ]
    point, degree = between(-0.9, 1.4, 5, 1), np.tile(np.array([-1.0, 0, 1, 2, 7]), (5, 1))
    for kind in POLYNOMIALS:
        samples.append(
            Sample(
                "polynomial",
                (point, degree),
                {"kind": kind},
                _of_degrees,
                tolerance=1e-4,
            )
        )
    return samples
