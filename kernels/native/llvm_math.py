"""exp, log, tanh, erf and their kin over vectors: range reduction and a polynomial, no branches.

Denormals, infinities and NaN come out as NumPy gives them. float32 is within 2 units in the last
place of the rounded float64 result (tests/unit/kernels/test_generated_math.py looks at every
exponent); float64 has exp and log of its own and takes the rest from libm, lane by lane.
Coefficients of log are those of FreeBSD's msun (Sun Microsystems, 1993); of tanh those of Cephes
(Moshier, 1989).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from oneflow.kernels.native.llvm_code import Value
from oneflow.kernels.normal import scaled_erfc_coefficients

_LOG2_E = math.log2(math.e)
# ln 2 as a sum whose first part has so few bits that its product with an exponent is exact.
_LN2_HIGH = {"float": 0.693359375, "double": 6.93147180369123816490e-01}
_LN2_LOW = {"float": math.log(2.0) - 0.693359375, "double": 1.90821492927058770002e-10}
# Adding 1.5 * 2^(mantissa bits) rounds to an integer, which the low bits then hold.
_ROUNDER = {"float": 1.5 * 2.0**23, "double": 1.5 * 2.0**52}
_ROUNDER_BITS = {"float": 0x4B400000, "double": 0x4338000000000000}
_INTEGER = {"float": "i32", "double": "i64"}
_MANTISSA = {"float": 23, "double": 52}
_BIAS = {"float": 127, "double": 1023}
# Of (e^r - 1 - r) / r^2. float32: through the nodes of Chebyshev, a degree less for the same error.
_EXP_OF_REST: dict[str, tuple[float, ...]] = {
    "float": (
        1.3926176120e-03,
        8.3631730745e-03,
        4.1666554662e-02,
        1.6666577026e-01,
        5.0000000000e-01,
    ),
    "double": tuple(1.0 / math.factorial(k) for k in range(13, 1, -1)),
}


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Coefficients from the highest power down."""
    p = x.like(coefficients[0])
    for c in coefficients[1:]:
        p = p.times_plus(x, c)
    return p


def _clamped(x: Value, low: float, high: float) -> Value:
    """NaN stays NaN."""
    x = x.compare("lt", low).choose(x.like(low), x)
    return x.compare("gt", high).choose(x.like(high), x)


def _power_of_two(n: Value, element: str) -> Value:
    """2^n as a float, for n from 1 - bias to bias."""
    return ((n + _BIAS[element]) << _MANTISSA[element]).bits(element)


def _reduced(x: Value) -> tuple[Value, Value]:
    """(n, r) with x = n ln 2 + r, |r| <= ln(2) / 2; n as an integer."""
    e = x.element
    shifted = x.times_plus(_LOG2_E, _ROUNDER[e])
    count = shifted - _ROUNDER[e]
    r = count.times_plus(-_LN2_HIGH[e], x)
    r = count.times_plus(-_LN2_LOW[e], r)
    return shifted.bits(_INTEGER[e]) - _ROUNDER_BITS[e], r


def _exp_of_rest(r: Value) -> Value:
    """(e^r - 1 - r) / r^2."""
    return _polynomial(r, _EXP_OF_REST[r.element])


def exp(x: Value) -> Value:
    e = x.element
    low, high = (-104.0, 89.0) if e == "float" else (-746.0, 710.0)
    n, r = _reduced(_clamped(x, low, high))
    p = (r * r).times_plus(_exp_of_rest(r), r) + 1.0
    # 2^n in two factors: the result may be denormal or infinite where 2^n is neither.
    half = n.shift_signed(1)
    return p * _power_of_two(half, e) * _power_of_two(n - half, e)


def _exp_in_range(x: Value) -> Value:
    """e^x where 2^n is a normal number: fewer steps than `exp`."""
    n, r = _reduced(x)
    p = _exp_of_rest(r).times_plus(r, 1.0).times_plus(r, 1.0)
    return p * _power_of_two(n, x.element)


def exp_down(x: Value) -> Value:
    """e^x for x <= 0, with fewer steps than `exp`; 0 where that is no normal number."""
    lowest = -87.33654 if x.element == "float" else -708.396
    return x.compare("lt", lowest).choose(x.like(0), _exp_in_range(x))


def expm1(x: Value) -> Value:
    e = x.element
    n, r = _reduced(_clamped(x, -40.0, 89.0 if e == "float" else 710.0))
    small = (r * r).times_plus(_exp_of_rest(r), r)
    # 2^n (small + 1) - 1 as twice half of it, because 2^n may be infinite where the result is not.
    half = _power_of_two(n - 1, e)
    whole = half.times_plus(small, half - 0.5) * 2.0
    return n.compare("eq", 0).choose(small, whole)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x). An infinite e^-x gives the right 0."""
    return 1.0 / (exp(-x) + 1.0)


_LOG_32 = (0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693)
_LOG_64 = (
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
    2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
    6.666666666666735130e-01,
)  # fmt: skip
_LOG_LN2_HIGH = {"float": 6.9313812256e-01, "double": 6.93147180369123816490e-01}
_LOG_LN2_LOW = {"float": 9.0580006145e-06, "double": 1.90821492927058770002e-10}
_ROOT_HALF_BITS = {"float": 0x3F3504F3, "double": 0x3FE6A09E667F3BCD}
_SMALLEST_NORMAL = {"float": 2.0**-126, "double": 2.0**-1022}


def log(x: Value) -> Value:
    e = x.element
    shift = _MANTISSA[e]
    is_tiny = x.compare("lt", _SMALLEST_NORMAL[e])
    scaled = is_tiny.choose(x * 2.0**shift, x)
    bits = scaled.bits(_INTEGER[e]) - _ROOT_HALF_BITS[e]
    exponent = bits.shift_signed(shift)
    exponent = is_tiny.choose(exponent - shift, exponent)
    count = exponent.to(e)
    f = ((bits & ((1 << shift) - 1)) + _ROOT_HALF_BITS[e]).bits(e) - 1.0
    s = f / (f + 2.0)
    z = s * s
    rest = z * _polynomial(z, _LOG_32 if e == "float" else _LOG_64)
    half_square = f * f * 0.5
    y = (half_square + rest) * s
    y = count.times_plus(_LOG_LN2_LOW[e], y) - half_square + f
    y = count.times_plus(_LOG_LN2_HIGH[e], y)
    infinity = math.inf
    y = x.compare("eq", 0.0).choose(x.like(-infinity), y)
    y = x.compare("lt", 0.0).choose(x.like(math.nan), y)
    is_itself = x.compare("lt", infinity) | x.compare("eq", -infinity)  # not inf, not nan
    return is_itself.choose(y, x)


def log1p(x: Value) -> Value:
    """log(1 + x), with the rounding error of 1 + x put back."""
    u = x + 1.0
    lost = (x - (u - 1.0)) / u
    is_plain = u.compare("gt", 0.0) & u.compare("lt", math.inf)
    y = log(u)
    y = is_plain.choose(y + lost, y)
    return u.compare("eq", 1.0).choose(x, y)  # keeps the sign of a zero


_TANH = (
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1,
)  # fmt: skip


def tanh(x: Value) -> Value:
    if x.element == "double":
        return x.code.library("tanh", x)
    a = x.absolute()
    z = x * x
    near = (z * _polynomial(z, _TANH)).times_plus(x, x)
    bounded = a.compare("gt", 20.0).choose(x.like(20.0), a)
    far = 1.0 - 2.0 / (_exp_in_range(bounded + bounded) + 1.0)
    return a.compare("lt", 0.625).choose(near, far.with_sign_of(x))


_ERF_NEAR = (
    -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1,
)  # fmt: skip
_ERF_FAR = (
    -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1,
    -1.28717512e-1,
)  # fmt: skip


def erf(x: Value) -> Value:
    """Near 0 an odd polynomial, else 1 - exp(a polynomial)."""
    if x.element == "double":
        return x.code.library("erf", x)
    a = x.absolute()
    near = _polynomial(x * x, _ERF_NEAR).times_plus(x, x)
    t = a.compare("gt", 4.0).choose(x.like(4.0), a)
    far = 1.0 - _exp_in_range(_polynomial(t, _ERF_FAR).times_plus(t, -t))
    return a.compare("gt", 0.927734375).choose(far.with_sign_of(x), near)


def erfcx(x: Value) -> Value:
    """erfc(x) e^(x^2) of x >= 0: a polynomial of 2 / (2 + x). For float64 by Clenshaw's recurrence,
    because powers of so high a degree cancel."""
    s = 4.0 / (x + 2.0) - 1.0
    if x.element == "float":
        powers = [float(c) for c in np.polynomial.chebyshev.cheb2poly(scaled_erfc_coefficients(9))]
        return _polynomial(s, powers[::-1])
    first, *rest = scaled_erfc_coefficients(32)
    doubled, value, last = s + s, x.like(0.0), x.like(0.0)
    for c in reversed(rest):
        value, last = doubled.times_plus(value, c - last), value
    return s.times_plus(value, first - last)


_TWO_TO = (
    1.3381302537317087e-3, 9.666368515385245e-3, 5.550381013796477e-2, 2.4022349038020320e-1,
    6.931471805599452e-1, 1.0,
)  # fmt: skip


def gauss(x: Value) -> Value:
    """e^(-x^2 / 2); 0 where that is no normal number. As a power of two, whose exponent is cut
    without a product; 2^n is added to the bits."""
    if x.element == "double":
        return exp_down(x * x * -0.5)
    y = x * (x * (-0.5 * _LOG2_E))
    shifted = y + _ROUNDER["float"]
    p = _polynomial(y - (shifted - _ROUNDER["float"]), _TWO_TO)
    made = (p.bits("i32") + (shifted.bits("i32") << _MANTISSA["float"])).bits("float")
    return y.compare("lt", -126.0).choose(x.like(0.0), made)


_TAIL_ABOVE = (0.01577074, 0.11406124, 0.35230644, 0.49999989)
_TAIL_BELOW = (0.0395401464, 0.2856088127, 0.9270269208, 1.5024862382, 1.0)


def normal_tail(x: Value) -> Value:
    """(1 - Phi(x)) e^(x^2 / 2) of x >= 0. float32 by a quotient that was fitted up to 10, within
    2.2e-7; beyond 16, where that times e^(-x^2 / 2) is 0, the value there."""
    if x.element == "double":
        return erfcx(x * math.sqrt(0.5)) * 0.5
    x = x.compare("gt", 16.0).choose(x.like(16.0), x)
    return _polynomial(x, _TAIL_ABOVE) / _polynomial(x, _TAIL_BELOW)


def erfc(x: Value) -> Value:
    """Relative accuracy in the tail, too, which 1 - erf(x) would lose: exp(-x^2) times a
    polynomial. Rounding x^2 costs x^2 units in the last place. float32: 0 below 1e-37."""
    if x.element == "double":
        return x.code.library("erfc", x)
    a = x.absolute()
    gauss = _exp_in_range(-(a.compare("gt", 9.2).choose(x.like(9.2), a) * a))
    gauss = a.compare("gt", 9.2).choose(x.like(0.0), gauss)
    tail = gauss * erfcx(a)
    return x.compare("lt", 0.0).choose(2.0 - tail, tail)


VECTORS: dict[str, Callable[[Value], Value]] = {
    "exp": exp, "exp_down": exp_down, "expm1": expm1, "log": log, "log1p": log1p, "tanh": tanh,
    "erf": erf, "erfc": erfc, "erfcx": erfcx, "sigmoid": sigmoid,
    "gauss": gauss, "normal_tail": normal_tail,
}  # fmt: skip
