"""Kernels of oneflow/ops/bessel.py, in float64 for any dtype: series of Chebyshev polynomials near
zero, and far from it of the factor that remains when the growth or the oscillation is divided out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from oneflow.kernels import bessel_series as series
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel

Function = Callable[[ArrayModule, Array], Array]


def _where(xp: ArrayModule, condition: Array, a: Array | float, b: Array | float) -> Array:
    found: Array = xp.where(condition, a, b)
    return found


def _sum(coefficients: tuple[float, ...], x: Array) -> Array:
    """Clenshaw's sum of Chebyshev polynomials of x, from -1 to 1."""
    twice = 2 * x
    above, value = 0.0 * x, 0.0 * x
    for c in reversed(coefficients[1:]):
        above, value = value, twice * value - above + c
    found: Array = x * value - above + coefficients[0]
    return found


# ---- I and K -------------------------------------------------------------------------------------


def _scaled_i(xp: ArrayModule, x: Array, near: tuple[float, ...], far: tuple[float, ...]) -> Array:
    """exp(-x) times near(x) or far(x) of x >= 0."""
    low, high = xp.minimum(x, 8.0), xp.maximum(x, 8.0)
    return _where(xp, x <= 8, _sum(near, low / 4 - 1), _sum(far, 16 / high - 1) / xp.sqrt(high))


def i0e(xp: ArrayModule, x: Array) -> Array:
    return _scaled_i(xp, abs(x), series.I0_NEAR, series.I0_FAR)


def i1e(xp: ArrayModule, x: Array) -> Array:
    a = abs(x)
    low, high = xp.minimum(a, 8.0), xp.maximum(a, 8.0)
    near = low * _sum(series.I1_NEAR, low / 4 - 1)
    far = _sum(series.I1_FAR, 16 / high - 1) / xp.sqrt(high)
    return _where(xp, x < 0, -1.0, 1.0) * _where(xp, a <= 8, near, far)


def i0(xp: ArrayModule, x: Array) -> Array:
    return _grown(xp, x, i0e(xp, x))


def i1(xp: ArrayModule, x: Array) -> Array:
    return _grown(xp, x, i1e(xp, x))


def _grown(xp: ArrayModule, x: Array, scaled: Array) -> Array:
    """scaled * exp(|x|), in two factors: the exponential alone is infinite earlier."""
    half: Array = xp.exp(abs(x) / 2)
    return scaled * half * half


def _scaled_k(xp: ArrayModule, x: Array, near: Array, far: tuple[float, ...]) -> Array:
    """exp(x) times `near`, or `far` of large x; infinite at 0, NaN below."""
    high = xp.maximum(x, 2.0)
    beyond = _sum(far, 4 / high - 1) / xp.sqrt(high)
    value = xp.where(x <= 2, near * xp.exp(xp.minimum(x, 2.0)), beyond)
    return _where(xp, x > 0, value, xp.where(x == 0, math.inf, math.nan))


def scaled_k0(xp: ArrayModule, x: Array) -> Array:
    low = _between(xp, x, 2.0)
    near = _sum(series.K0_NEAR, low * low / 2 - 1) - xp.log(low / 2) * i0(xp, low)
    return _scaled_k(xp, x, near, series.K0_FAR)


def scaled_k1(xp: ArrayModule, x: Array) -> Array:
    low = _between(xp, x, 2.0)
    near = _sum(series.K1_NEAR, low * low / 2 - 1) / low + xp.log(low / 2) * i1(xp, low)
    return _scaled_k(xp, x, near, series.K1_FAR)


def _between(xp: ArrayModule, x: Array, end: float) -> Array:
    """Numbers that a logarithm takes, up to `end`; others are chosen away later."""
    return _where(xp, x > 0, xp.minimum(x, end), end)


def k0(xp: ArrayModule, x: Array) -> Array:
    return _shrunk(xp, x, scaled_k0(xp, x))


def k1(xp: ArrayModule, x: Array) -> Array:
    return _shrunk(xp, x, scaled_k1(xp, x))


def _shrunk(xp: ArrayModule, x: Array, scaled: Array) -> Array:
    shrinking: Array = xp.exp(-xp.maximum(x, 0.0))
    return scaled * shrinking


# ---- J and Y -------------------------------------------------------------------------------------


def _waves(
    xp: ArrayModule, x: Array, order: int, p: tuple[float, ...], q: tuple[float, ...]
) -> tuple[Array, Array]:
    """(J, Y) of x >= 8 by their amplitudes, and of less as if it were 8."""
    a = xp.maximum(x, 8.0)
    square = 128 / (a * a) - 1
    even, odd = _sum(p, square), _sum(q, square) / a
    scale = xp.sqrt(2 / (math.pi * a))
    # The angle is taken off by the sum formulas: a - pi / 4 would lose digits of a large a.
    cosine, sine = xp.cos(a), xp.sin(a)
    root = math.sqrt(0.5)
    if order == 0:
        c, s = (cosine + sine) * root, (sine - cosine) * root
    else:
        c, s = (sine - cosine) * root, -(sine + cosine) * root
    return scale * (even * c - odd * s), scale * (even * s + odd * c)


def j0(xp: ArrayModule, x: Array) -> Array:
    a = abs(x)
    low = xp.minimum(a, 8.0)
    far, _ = _waves(xp, a, 0, series.P0, series.Q0)
    return _settled(xp, a, xp.where(a <= 8, _sum(series.J0_NEAR, low * low / 32 - 1), far))


def j1(xp: ArrayModule, x: Array) -> Array:
    a = abs(x)
    low = xp.minimum(a, 8.0)
    far, _ = _waves(xp, a, 1, series.P1, series.Q1)
    value = xp.where(a <= 8, low * _sum(series.J1_NEAR, low * low / 32 - 1), far)
    return _settled(xp, a, value) * _where(xp, x < 0, -1.0, 1.0)


def _settled(xp: ArrayModule, x: Array, value: Array) -> Array:
    """0 at infinity, where sines have no value."""
    return _where(xp, xp.isinf(x), 0.0, value)


def y0(xp: ArrayModule, x: Array) -> Array:
    low = _between(xp, x, 8.0)
    near = _sum(series.Y0_NEAR, low * low / 32 - 1) + 2 / math.pi * xp.log(low) * j0(xp, low)
    _, far = _waves(xp, x, 0, series.P0, series.Q0)
    return _from_zero(xp, x, near, far)


def y1(xp: ArrayModule, x: Array) -> Array:
    low = _between(xp, x, 8.0)
    near = low * _sum(series.Y1_NEAR, low * low / 32 - 1)
    near = near + 2 / math.pi * (xp.log(low) * j1(xp, low) - 1 / low)
    _, far = _waves(xp, x, 1, series.P1, series.Q1)
    return _from_zero(xp, x, near, far)


def _from_zero(xp: ArrayModule, x: Array, near: Array, far: Array) -> Array:
    """-infinity at 0, NaN below."""
    value = _settled(xp, x, xp.where(x <= 8, near, far))
    return _where(xp, x > 0, value, xp.where(x == 0, -math.inf, math.nan))


def spherical_j0(xp: ArrayModule, x: Array) -> Array:
    safe = xp.where((x == 0) | xp.isinf(x), 1.0, x)
    return _where(xp, x == 0, 1.0, _settled(xp, x, xp.sin(safe) / safe))


# ---- Airy's function -----------------------------------------------------------------------------

_AIRY_AT_0, _AIRY_SLOPE = 0.3550280538878172, 0.2588194037928068
_AIRY_TERMS = 34


def airy_ai(xp: ArrayModule, x: Array) -> Array:
    """Its power series between -5 and 3, beyond them exponentials and waves."""
    middle = xp.clip(x, -5.0, 3.0)
    cube = middle**3
    first, second = 1.0 + 0 * middle, middle
    f, g = first, second
    for k in range(1, _AIRY_TERMS):
        first = first * cube / ((3 * k - 1) * (3 * k))
        second = second * cube / ((3 * k) * (3 * k + 1))
        f, g = f + first, g + second
    near = _AIRY_AT_0 * f - _AIRY_SLOPE * g
    right = xp.maximum(x, 3.0)
    z, start = 2 / 3 * right**1.5, 2 / 3 * 3**1.5
    high = _sum(series.AIRY_FAR, 2 * start / z - 1) * xp.exp(-z) / xp.sqrt(xp.sqrt(right))
    left = xp.maximum(-x, 5.0)
    z, start = 2 / 3 * left**1.5, 2 / 3 * 5**1.5
    square = 2 * (start / z) ** 2 - 1
    c, s = xp.cos(z - math.pi / 4), xp.sin(z - math.pi / 4)
    low = _sum(series.AIRY_P, square) * c + _sum(series.AIRY_Q, square) / z * s
    low = low / (math.sqrt(math.pi) * xp.sqrt(xp.sqrt(left)))
    value = xp.where(x > 3, high, xp.where(x < -5, low, near))
    return _settled(xp, x, value)


_FUNCTIONS: dict[str, Function] = {
    "i0": i0, "i0e": i0e, "i1": i1, "i1e": i1e, "modified_bessel_k0": k0, "modified_bessel_k1": k1,
    "scaled_modified_bessel_k0": scaled_k0, "scaled_modified_bessel_k1": scaled_k1,
    "bessel_j0": j0, "bessel_j1": j1, "bessel_y0": y0, "bessel_y1": y1,
    "spherical_bessel_j0": spherical_j0, "airy_ai": airy_ai,
}  # fmt: skip


def _kernel(name: str, function: Function) -> None:
    @kernel(name)
    def run(xp: ArrayModule, out: Array, x: Array) -> None:
        with np.errstate(all="ignore"):
            value = function(xp, x.astype(np.float64))
            out[...] = xp.where(xp.isnan(x), math.nan, value)


for _name, _function in _FUNCTIONS.items():
    _kernel(_name, _function)


# ---- incomplete gamma functions ------------------------------------------------------------------

_MOST_TERMS = 100_000
# A factor of the fraction that has converged stays one unit in the last place beside 1 for many of
# its arguments: to wait for less would go on to the last term.
_CONVERGED = 2 * np.finfo(np.float64).eps


@kernel("gammainc")
def gammainc(
    xp: ArrayModule, out: Array, a: Array, x: Array, log_gamma: Array, *, is_upper: bool
) -> None:
    """The series of x below a + 1, and Lentz's continued fraction above (Press and others,
    Numerical Recipes, 6.2).
    """
    with np.errstate(all="ignore"):
        s, t, g = xp.broadcast_arrays(
            a.astype(np.float64), x.astype(np.float64), log_gamma.astype(np.float64)
        )
        is_plain = (s > 0) & (t > 0) & xp.isfinite(s) & xp.isfinite(t)
        s1, t1 = xp.where(is_plain, s, 1.0), xp.where(is_plain, t, 1.0)
        front = xp.exp(s1 * xp.log(t1) - t1 - xp.where(is_plain, g, 0.0))
        is_low = t1 < s1 + 1
        lower = _gamma_series(xp, s1, xp.where(is_low, t1, 0.0)) * front
        upper = _gamma_fraction(xp, s1, xp.where(is_low, s1 + 1, t1)) * front
        value = xp.where(is_low, 1 - lower if is_upper else lower, upper if is_upper else 1 - upper)
        out[...] = xp.where(is_plain, value, _gamma_edges(xp, s, t, is_upper))


def _gamma_series(xp: ArrayModule, s: Array, t: Array) -> Array:
    term: Array = 1 / s
    total, at = term, s
    for _ in range(_MOST_TERMS):
        at = at + 1
        term = term * t / at
        total = total + term
        if not bool((term > total * 1e-17).any()):
            break
    return total


def _gamma_fraction(xp: ArrayModule, s: Array, t: Array) -> Array:
    tiny = 1e-300
    b = t + 1 - s
    c, d = 1 / tiny + 0 * b, 1 / xp.where(b == 0, tiny, b)
    total: Array = d
    for i in range(1, _MOST_TERMS):
        n = -i * (i - s)
        b = b + 2
        d = n * d + b
        d = 1 / xp.where(abs(d) < tiny, tiny, d)
        c = b + n / c
        c = xp.where(abs(c) < tiny, tiny, c)
        step = d * c
        total = total * step
        if not bool((abs(step - 1) > _CONVERGED).any()):
            break
    return total


def _gamma_edges(xp: ArrayModule, s: Array, t: Array, is_upper: bool) -> Array:
    """Values at the ends: the lower function is 0 or 1 there; NaN below 0, and where both meet."""
    is_nothing = (s < 0) | (t < 0) | ((s == 0) & (t == 0)) | (xp.isinf(s) & xp.isinf(t))
    is_one = (s == 0) | xp.isinf(t)
    is_zero = (t == 0) | xp.isinf(s)
    value = xp.where(is_one, 1.0, xp.where(is_zero, 0.0, math.nan))
    value = _where(xp, is_nothing | xp.isnan(s) | xp.isnan(t), math.nan, value)
    return 1 - value if is_upper else value


# ---- polynomials ---------------------------------------------------------------------------------

Step = Callable[[int, Array, Array, Array], Array]
"""The next polynomial of (its degree - 1, x, the last one, the one before)."""


def _twice(k: int, x: Array, last: Array, before: Array) -> Array:
    return 2 * x * last - before


_POLYNOMIALS: dict[str, tuple[Callable[[Array], Array], Step]] = {
    "chebyshev_t": (lambda x: x, _twice),
    "chebyshev_u": (lambda x: 2 * x, _twice),
    "chebyshev_v": (lambda x: 2 * x - 1, _twice),
    "chebyshev_w": (lambda x: 2 * x + 1, _twice),
    "hermite_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * (x * p - k * q)),
    "hermite_he": (lambda x: x, lambda k, x, p, q: x * p - k * q),
    "laguerre_l": (lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_p": (lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}
"""Name -> the polynomial of degree 1, and the recurrence; that of degree 0 is 1."""


@kernel("polynomial")
def polynomial(xp: ArrayModule, out: Array, x: Array, n: Array, *, kind: str) -> None:
    with np.errstate(all="ignore"):
        degree = xp.where(xp.isfinite(n), n, -1).astype(np.int64)
        first, step = _POLYNOMIALS[kind]
        wide, degree = xp.broadcast_arrays(x.astype(np.float64), degree)
        before, last = 1.0 + 0 * wide, first(wide)
        value = xp.where(degree == 0, before, xp.where(degree == 1, last, 0.0))
        for k in range(1, int(degree.max()) if degree.size else 0):
            before, last = last, step(k, wide, last, before)
            value = xp.where(degree == k + 1, last, value)
        out[...] = value
