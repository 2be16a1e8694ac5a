"""Special functions: the gamma function's family, the zeta function, and the inverse of erf.

Each is an expression in float64, rounded to the dtype of its operand: half of the digits of the
series below would be lost in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from oneflow.core.dtype import float64
from oneflow.core.expression import (
    Expression,
    absolute,
    apply,
    cast,
    constant,
    eq,
    erf,
    exp,
    log,
    maximum,
    minimum,
    sqrt,
    symbol,
    symbols,
    where,
)
from oneflow.core.expression import erfc as complement_of_erf
from oneflow.core.expression import erfcx as scaled_erfc
from oneflow.core.expression import scalar as number
from oneflow.core.op import declare, row
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, compare, reduce, scalar, unary
from oneflow.ops.checks import broadcast, require_float
from oneflow.ops.elementwise import Elementwise
from oneflow.ops.formulated import Formulated
from oneflow.ops.where import masked_fill

_SHIFT = 8  # recurrence steps before an asymptotic series


def _wide(name: str) -> Expression:
    return cast(symbol(name), float64)


def _floor(x: Expression) -> Expression:
    return apply("floor", x)


def _is_whole(x: Expression) -> Expression:
    return eq(x, _floor(x))


def _polynomial(x: Expression, coefficients: tuple[float, ...]) -> Expression:
    """Coefficients from the lowest power up."""
    result = constant(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = result * x + c
    return result


# ---- the gamma function --------------------------------------------------------------------------

_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510,
              43867 / 798, -174611 / 330)  # fmt: skip
"""B2, B4, ..., B20."""


def _log_gamma(x: Expression) -> Expression:
    """Stirling's series of x + 8, and Euler's reflection where x < 1/2."""
    is_low = x < 0.5
    y = where(is_low, 1 - x, x)
    is_near = y < 20.0
    z = where(is_near, y + float(_SHIFT), y)
    product = y
    for i in range(1, _SHIFT):
        product = product * (y + float(i))
    square = 1.0 / (z * z)
    series = _polynomial(square, tuple(b / (2 * k * (2 * k - 1)) for k, b in _numbered(7))) / z
    value = (z - 0.5) * log(z) - z + 0.5 * math.log(2 * math.pi) + series
    value = where(is_near, value - log(where(is_near, product, 1.0)), value)
    sine = absolute(apply("sin", (x - _floor(x)) * math.pi))
    value = where(is_low, math.log(math.pi) - log(sine) - value, value)
    value = where(apply("logical_or", eq(x, 1.0), eq(x, 2.0)), 0.0, value)
    is_pole = apply("logical_and", is_low, eq(sine, 0.0))  # log(0) alone does not outweigh -inf
    return where(apply("logical_or", apply("isinf", x), is_pole), math.inf, value)


def _numbered(count: int) -> list[tuple[int, float]]:
    return list(enumerate(_BERNOULLI[:count], start=1))


def _digamma(x: Expression) -> Expression:
    is_low = x < 0.5
    y = where(is_low, 1 - x, x)
    z = y + float(_SHIFT)
    square = 1.0 / (z * z)
    value = log(z) - 0.5 / z
    value = value - square * _polynomial(square, tuple(b / (2 * k) for k, b in _numbered(7)))
    for i in range(_SHIFT):
        value = value - 1.0 / (y + float(i))
    turn = apply("tan", (x - apply("trunc", x)) * math.pi)
    value = where(is_low, value - math.pi / turn, value)
    value = where(apply("logical_and", x < 0.0, _is_whole(x)), math.nan, value)
    return where(eq(x, 0.0), -1.0 / x, value)


_TERMS = 12  # of Hurwitz' sum before the Euler-Maclaurin formula


def _zeta(s: Expression, q: Expression) -> Expression:
    """The sum of (q + k)^-s over k >= 0: its first terms, and the Euler-Maclaurin formula."""
    value = q ** (-s)
    for k in range(1, _TERMS):
        value = value + (q + float(k)) ** (-s)
    w = q + float(_TERMS)
    value = value + w ** (1.0 - s) / (s - 1.0) + w ** (-s) * 0.5
    factor, power = s, w ** (-s) / w
    for k, bernoulli in _numbered(10):
        value = value + factor * power * (bernoulli / math.factorial(2 * k))
        factor = factor * (s + float(2 * k - 1)) * (s + float(2 * k))
        power = power / (w * w)
    is_out = apply("logical_and", q <= 0.0, apply("logical_not", _is_whole(s)))
    value = where(is_out, math.nan, value)
    value = where(apply("logical_and", q <= 0.0, _is_whole(q)), math.inf, value)
    return where(s < 1.0, math.nan, where(eq(s, 1.0), math.inf, value))


# ---- the inverse of erf --------------------------------------------------------------------------

_NEAR = (1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06,
         -3.5233877e-06, 3.43273939e-07, 2.81022636e-08)  # fmt: skip
_FAR = (2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844,
        0.00134934322, 0.000100950558, -0.000200214257)  # fmt: skip
"""M. Giles, Approximating the erfinv function, GPU Computing Gems, 2012: 7 digits to begin with."""


def _erfinv(x: Expression) -> Expression:
    """Two steps of Halley's method; erfc keeps the digits of an x close to 1."""
    a = absolute(x)
    w = -log((1.0 - a) * (1.0 + a))
    y = where(w < 5.0, _polynomial(w - 2.5, _NEAR), _polynomial(sqrt(w) - 3.0, _FAR)) * a
    for _ in range(2):
        gap = where(a < 0.5, erf(y) - a, (1.0 - a) - complement_of_erf(y))
        step = gap * (math.sqrt(math.pi) / 2) * exp(y * y)
        y = y - step / (1.0 + y * step)
    y = where(eq(a, 1.0), math.inf, where(a > 1.0, math.nan, y))
    return where(x < 0.0, -y, y)


def _erfcx_anywhere(x: Expression) -> Expression:
    a = absolute(x)
    square = 1.0 / (x * x)
    far = _polynomial(square, (1.0, -0.5, 0.75, -1.875)) / (a * math.sqrt(math.pi))
    tail = where(a > 100.0, far, scaled_erfc(where(a > 100.0, 100.0, a)))
    return where(x < 0.0, 2.0 * exp(x * x) - tail, tail)


# ---- declarations --------------------------------------------------------------------------------


Infer = Callable[[Operand], TensorType]


def _one(name: str) -> Infer:
    def infer(x: Operand) -> TensorType:
        require_float(name, x)
        return x.meta

    return infer


def _formula(made: Expression) -> Callable[..., Expression]:
    """`made`, an expression in float64, in the dtype of the operand."""

    def formula(x: TensorType, **_: object) -> Expression:
        return cast(made, x.dtype)

    return formula


_X = _wide("x")


def _erfinv_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    again = erfinv(x)  # programs may overwrite the output, as in PyTorch
    slope = scalar.scalar_mul(unary.exp(unary.square(again)), value=math.sqrt(math.pi) / 2)
    return (binary.mul(d, slope),)


def _erfc_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    slope = unary.exp(unary.neg(unary.square(x)))
    return (binary.mul(d, scalar.scalar_mul(slope, value=-2 / math.sqrt(math.pi))),)


def _erfcx_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    slope = scalar.scalar_mul(binary.mul(x, out), value=2.0)
    return (binary.mul(d, scalar.scalar_add(slope, value=-2 / math.sqrt(math.pi))),)


def _lgamma_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    return (binary.mul(d, digamma(x)),)


def _digamma_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
    return (binary.mul(d, polygamma(x, order=1)),)


def _is_any(a: Expression, b: Expression) -> Expression:
    return apply("logical_or", a, b)


def _logit(x: TensorType, *, eps: float | None = None) -> Expression:
    p = symbol("x")
    if eps is not None:
        p = minimum(maximum(p, number("eps")), 1 - number("eps"))
    return log(p / (1 - p))


def _logit_slope(x: TensorType, *, eps: float | None = None) -> Expression:
    """Infinite at 0 and 1, NaN beyond them; 0 beyond the bounds of eps."""
    p, d = symbol("x"), symbol("adjoint")
    spread = p * (1 - p)
    if eps is not None:
        return where(_is_any(p < number("eps"), p > 1 - number("eps")), 0.0, d / spread)
    whole = absolute(spread)  # of -0.0, too, the slope is infinite and positive
    return where(_is_any(p < 0, p > 1), math.nan, d / whole)


class Logit(Elementwise):
    """log(x / (1 - x)).  eps: keeps x within [eps, 1 - eps]."""

    name = "logit"
    precision = "follow"
    formula = staticmethod(_logit)
    derivative = staticmethod(_logit_slope)

    @staticmethod
    def infer(x: Operand, *, eps: float | None = None) -> TensorType:
        require_float("logit", x)
        return x.meta


logit = declare(Logit)


def _times_log(name: str, plus: int) -> Callable[[Operand, Operand], Tensor]:
    """Declare a * log(b + plus), which is 0 where a is 0 and b is a number."""
    a, b = symbols("a b")
    function = "log1p" if plus else "log"
    factor = apply(function, b)
    is_none = apply("logical_and", eq(a, 0), apply("logical_not", apply("isnan", b)))
    made = where(is_none, 0, a * factor)

    def infer(a: Operand, b: Operand) -> TensorType:
        require_float(name, a, b)
        return TensorType(broadcast(name, a, b), a.dtype)

    def grad(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Gradients:
        def d_a() -> Tensor:
            is_zero = compare.logical_and(
                compare.scalar_compare(a, value=0, kind="eq"),
                compare.scalar_compare(b, value=-plus, kind="le"),
            )
            # d * log(b) by the op itself: where no gradient comes, none goes on, whatever b is
            slope = masked_fill(made_of[0](d, b), is_zero, value=0)
            return reduce.sum_to_shape(slope, a.meta.shape)

        def d_b() -> Tensor:
            base = scalar.scalar_add(b, value=1) if plus else b
            return reduce.sum_to_shape(binary.div(binary.mul(d, a), base), b.meta.shape)

        return d_a, d_b

    doc = f"a * {function}(b), which is 0 where a is 0 and b is no NaN."
    made_of = (
        row(
            name,
            infer,
            doc=doc,
            base=Formulated,
            precision="follow",
            formula=lambda *_: made,
            grad=grad,
        ),
    )
    return made_of[0]


xlogy = _times_log("xlogy", 0)
xlog1py = _times_log("xlog1py", 1)


class Entr(Elementwise):
    """-x log(x), 0 at 0 and -inf below; its slope at 0 is infinite."""

    name = "entr"
    precision = "follow"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        require_float("entr", x)
        return x.meta

    @staticmethod
    def formula(*_: TensorType) -> Expression:
        x = symbol("x")
        below = where(eq(x, 0), absolute(x), -math.inf)
        is_number = _is_any(x > 0, apply("isnan", x))
        return where(is_number, -(x * log(x)), below)

    @staticmethod
    def derivative(*_: TensorType) -> Expression:
        return symbol("adjoint") * (-1 - log(symbol("x")))


entr = declare(Entr)
erfinv = row(
    "erfinv",
    _one("erfinv"),
    doc="The number whose erf is x; infinite at 1 and -1, NaN beyond.",
    base=Formulated,
    precision="keep",
    formula=_formula(_erfinv(_X)),
    grad=_erfinv_grad,
)
erfc = row(
    "erfc",
    _one("erfc"),
    doc="1 - erf(x), with all its digits where erf(x) is close to 1.",
    base=Formulated,
    formula=_formula(complement_of_erf(_X)),
    grad=_erfc_grad,
)
erfcx = row(
    "erfcx",
    _one("erfcx"),
    doc="exp(x^2) erfc(x), which does not vanish for large x.",
    base=Formulated,
    formula=_formula(_erfcx_anywhere(_X)),
    grad=_erfcx_grad,
)
lgamma = row(
    "lgamma",
    _one("lgamma"),
    doc="The logarithm of the absolute value of the gamma function.",
    base=Formulated,
    formula=_formula(_log_gamma(_X)),
    grad=_lgamma_grad,
)
digamma = row(
    "digamma",
    _one("digamma"),
    doc="The derivative of lgamma.",
    base=Formulated,
    formula=_formula(_digamma(_X)),
    grad=_digamma_grad,
)


class Polygamma(Formulated):
    """The derivative of that order of digamma. order: >= 1."""

    name = "polygamma"

    @staticmethod
    def infer(x: Operand, *, order: int) -> TensorType:
        require_float("polygamma", x)
        return x.meta

    @staticmethod
    def formula(x: TensorType, *, order: int) -> Expression:
        size = math.factorial(order)
        if order > 1:
            value = _zeta(constant(order + 1.0), _X) * float(size if order % 2 else -size)
            return cast(value, x.dtype)
        is_low = _X < 0.5
        sine = apply("sin", (_X - _floor(_X)) * math.pi) / math.pi
        value = _zeta(constant(2.0), where(is_low, 1 - _X, _X))
        return cast(where(is_low, 1.0 / (sine * sine) - value, value), x.dtype)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, order: int) -> Gradients:
        return (lambda: binary.mul(d, polygamma(x, order=order + 1)),)


polygamma = declare(Polygamma)


class Zeta(Formulated):
    """The Hurwitz zeta function: the sum of (q + k)^-s over k = 0, 1, ...; no gradient for s."""

    name = "zeta"

    @staticmethod
    def infer(s: Operand, q: Operand) -> TensorType:
        require_float("zeta", s, q)
        return TensorType(broadcast("zeta", s, q), s.dtype)

    @staticmethod
    def formula(s: TensorType, q: TensorType) -> Expression:
        return cast(_zeta(_wide("s"), _wide("q")), s.dtype)

    @staticmethod
    def grad(d: Tensor, s: Tensor, q: Tensor, out: Tensor) -> Gradients:
        def d_q() -> Tensor:
            slope = binary.mul(s, zeta(scalar.scalar_add(s, value=1), q))
            return reduce.sum_to_shape(unary.neg(binary.mul(d, slope)), q.meta.shape)

        return None, d_q


zeta = declare(Zeta)
