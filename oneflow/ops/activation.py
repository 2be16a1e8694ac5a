"""Activations: a formula each, from which the op, its kernels and its gradient follow; and GELU.

    @activation()
    def leaky_relu(x: Expression, *, negative_slope: float = 0.01) -> Expression:
        return where(x > 0, x, x * negative_slope)

The keyword-only parameters are the attrs of the op. Numbers reach the formula as scalars that each
call brings along, so one compiled loop serves all of them. The public table makes of this the
function, with the attrs as further parameters, and the layer (functional/declared.py,
nn/modules/activation.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.core.expression import (
    Expression,
    absolute,
    apply,
    exp,
    expm1,
    gauss,
    log1p,
    maximum,
    minimum,
    normal_tail,
    scalar,
    sigmoid,
    symbol,
    symbols,
    tanh,
    where,
)
from oneflow.core.op import Declared, declare
from oneflow.core.operand import Attr, Gradients, Number, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import FLOAT, NUMBER, require, require_float, require_same
from oneflow.ops.elementwise import Elementwise

if TYPE_CHECKING:
    from oneflow.core.precision import Precision

P = ParamSpec("P")
_Declared = Declared[Concatenate[Operand, P], Tensor]

_FORMS = ("none", "tanh")
_X, _D = symbols("x d_out")
_GAUSS = gauss(_X)  # shared by Phi and its derivative
_ROOT_2_OVER_PI, _CUBIC = math.sqrt(2.0 / math.pi), 0.044715


def _check_form(who: str, approximate: str) -> None:
    if approximate not in _FORMS:
        raise ShapeError(f"{who}: approximate is one of {_FORMS}, got {approximate!r}")


def _phi(approximate: str) -> Expression:
    """Phi(x), exact or by (1 + tanh u) / 2 = sigmoid(2 u).

    Through its tail: by 1 + erf(x / sqrt(2)) the values below -4 would be wrong in every digit.
    """
    if approximate == "tanh":
        return sigmoid(_X * (2.0 * _ROOT_2_OVER_PI) * (1 + _X * _X * _CUBIC))
    tail = _GAUSS * normal_tail(absolute(_X))
    return where(_X > 0, 1 - tail, tail)


class Gelu(Elementwise):
    """x * Phi(x), Phi the standard normal distribution (Hendrycks and Gimpel, arXiv 1606.08415).

    approximate: "none" for Phi itself, "tanh" for x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715
    x^3))).
    """

    name = "gelu"

    @staticmethod
    def infer(x: Operand, *, approximate: str = "none") -> TensorType:
        require_float("gelu", x)
        _check_form("gelu", approximate)
        return x.meta

    @staticmethod
    def formula(*_: TensorType, approximate: str) -> Expression:
        return _X * _phi(approximate)

    @classmethod
    def grad(cls, d_out: Tensor, *tensors: Tensor, **attrs: Any) -> Gradients:
        return (lambda: gelu_grad(d_out, tensors[0], **attrs),)


gelu = declare(Gelu)


class GeluGrad(Elementwise):
    """d_x = d_out * gelu'(x), with Phi' the normal density, or 2 p (1 - p) u' where p = Phi."""

    name = "gelu_grad"

    @staticmethod
    def infer(d_out: Operand, x: Operand, *, approximate: str = "none") -> TensorType:
        require_same("gelu_grad", d_out, x)
        _check_form("gelu_grad", approximate)
        return x.meta

    @staticmethod
    def formula(*_: TensorType, approximate: str) -> Expression:
        p = _phi(approximate)
        if approximate == "tanh":
            slope = (1 + _X * _X * (3.0 * _CUBIC)) * (2.0 * _ROOT_2_OVER_PI)
            return _D * (p + _X * (p * (1 - p) * slope))
        return _D * (p + _X * (_GAUSS * (1.0 / math.sqrt(2.0 * math.pi))))


gelu_grad = declare(GeluGrad)


# ---- the table -----------------------------------------------------------------------------------


class _Activation(Elementwise):
    """Base of the rows below."""

    accepts = FLOAT

    @classmethod
    def infer(cls, x: Operand, **attrs: Attr) -> TensorType:
        require(cls.name, x, cls.accepts)
        if cls.check is not None:
            cls.check(**attrs)
        return x.meta


def activation(
    accepts: str = FLOAT,
    *,
    derivative: Callable[..., Expression] | None = None,
    check: Callable[..., None] | None = None,
    precision: Precision | None = None,
) -> Callable[[Callable[Concatenate[Expression, P], Expression]], _Declared[P]]:
    """Declare the function of expressions below as an op of one tensor: `@activation()`.

    accepts: the kind of its elements (ops/checks.py).  derivative: of (d_out, x, attrs), where the
    formula's own would be inexact or costly.  check, precision: see `Op`.
    """

    if not isinstance(accepts, str):
        raise TypeError(f"write @activation() above {accepts!r}, with the parentheses")

    def made(function: Callable[Concatenate[Expression, P], Expression]) -> _Declared[P]:
        def of_scalars(root: Callable[..., Expression], *operands: Expression) -> Any:
            def formula(*_: TensorType, **attrs: Attr) -> Expression:
                return root(*operands, **{name: _as_scalar(name, attrs[name]) for name in attrs})

            return formula

        members: dict[str, Any] = {
            "name": function.__name__,
            "__doc__": function.__doc__,
            "accepts": accepts,
            "precision": precision,
            "declared_by": staticmethod(function),
            "formula": staticmethod(of_scalars(function, _X)),
        }
        if derivative is not None:
            members["derivative"] = staticmethod(of_scalars(derivative, symbol("adjoint"), _X))
        if check is not None:
            members["check"] = staticmethod(check)
        title = "".join(part.capitalize() for part in function.__name__.split("_"))
        op: _Declared[P] = declare(type(title, (_Activation,), members))
        return op

    return made


def _as_scalar(name: str, value: Attr) -> Any:
    return scalar(name) if isinstance(value, (int, float)) else value


def _within(
    d: Expression, x: Expression, *, min_val: Number = 0.0, max_val: Number = 6.0
) -> Expression:
    """The gradient between two bounds; a NaN is not between them."""
    return where(apply("logical_and", x > min_val, x < max_val), d, 0)


@activation(NUMBER, derivative=_within)
def relu6(x: Expression) -> Expression:
    """min(max(x, 0), 6)."""
    return where(x <= 0, 0, where(x >= 6, 6, x))


def _is_ordered(*, min_val: Number, max_val: Number) -> None:
    if min_val > max_val:
        raise ArgumentError(f"hardtanh: min_val {min_val} is greater than max_val {max_val}")


@activation(NUMBER, derivative=_within, check=_is_ordered)
def hardtanh(x: Expression, *, min_val: Number = -1.0, max_val: Number = 1.0) -> Expression:
    """x, kept within [min_val, max_val]; the gradient is 0 at the bounds, too."""
    return where(x <= min_val, min_val, where(x >= max_val, max_val, x))


def _hardsigmoid_slope(d: Expression, x: Expression) -> Expression:
    return where(absolute(x) < 3, d / 6, 0)


@activation(derivative=_hardsigmoid_slope)
def hardsigmoid(x: Expression) -> Expression:
    """min(max(x / 6 + 1/2, 0), 1)."""
    return where(x <= -3, 0, where(x >= 3, 1, (x + 3) / 6))


def _hardswish_slope(d: Expression, x: Expression) -> Expression:
    return where(x <= -3, 0, where(x >= 3, d, d * (x / 3 + 0.5)))  # as on each corner's outer side


@activation(derivative=_hardswish_slope)
def hardswish(x: Expression) -> Expression:
    """x * hardsigmoid(x)."""
    return where(x <= -3, 0, where(x >= 3, x, x * (x + 3) / 6))


def _outside(d: Expression, x: Expression, *, lambd: float) -> Expression:
    return where(absolute(x) > lambd, d, 0)  # 0 for a NaN


@activation(derivative=_outside)
def hardshrink(x: Expression, *, lambd: float = 0.5) -> Expression:
    """0 where |x| <= lambd, else x."""
    return where(absolute(x) <= lambd, 0, x)


def _is_no_less_than_zero(*, lambd: float) -> None:
    if not lambd >= 0:
        raise ArgumentError(f"softshrink: lambda must be at least 0, but found {lambd}")


@activation(derivative=_outside, check=_is_no_less_than_zero)
def softshrink(x: Expression, *, lambd: float = 0.5) -> Expression:
    """x moved toward 0 by lambd, and 0 where |x| <= lambd."""
    return x - minimum(maximum(x, -lambd), lambd)


@activation(NUMBER)
def threshold(x: Expression, *, threshold: float, value: Number) -> Expression:
    """x where x > threshold, else value."""
    return where(x <= threshold, value, x)


def _softplus_slope(d: Expression, x: Expression, *, beta: float, threshold: float) -> Expression:
    steep = x * beta
    return where(steep > threshold, d, d * sigmoid(steep))


@activation(derivative=_softplus_slope)
def softplus(x: Expression, *, beta: float = 1.0, threshold: float = 20.0) -> Expression:
    """log(1 + exp(beta x)) / beta; x itself where beta x > threshold."""
    steep = x * beta
    return where(steep > threshold, x, log1p(exp(steep)) / beta)


def _logsigmoid_slope(d: Expression, x: Expression) -> Expression:
    return d * sigmoid(-x)


@activation(derivative=_logsigmoid_slope, precision="follow")
def logsigmoid(x: Expression) -> Expression:
    """log(sigmoid(x)), without overflow."""
    return minimum(x, 0) - log1p(exp(-absolute(x)))


@activation()
def softsign(x: Expression) -> Expression:
    """x / (1 + |x|)."""
    return x / (absolute(x) + 1)


@activation()
def tanhshrink(x: Expression) -> Expression:
    """x - tanh(x)."""
    return x - tanh(x)


def _mish_parts(x: Expression) -> tuple[Expression, Expression]:
    """w = e^x and n = w (w + 2), so that tanh(log(1 + w)) is n / (n + 2): one exponential in all.

    Beyond 20 the quotient is 1, to the last bit of float64.
    """
    w = exp(minimum(x, 20))
    return w, w * (w + 2)


def _mish_slope(d: Expression, x: Expression) -> Expression:
    w, n = _mish_parts(x)
    return d * ((n + minimum(x, 20) * w * ((w + 1) * 4 / (n + 2))) / (n + 2))


@activation(derivative=_mish_slope, precision="follow")
def mish(x: Expression) -> Expression:
    """x * tanh(softplus(x))."""
    _, n = _mish_parts(x)
    return x * (n / (n + 2))


@activation()
def quick_gelu(x: Expression) -> Expression:
    """x * sigmoid(1.702 x)."""
    return x * sigmoid(x * 1.702)


@activation(NUMBER, precision="follow")
def square_relu(x: Expression) -> Expression:
    """max(x, 0) squared."""
    return apply("square", apply("relu", x))


def _leaky_slope(d: Expression, x: Expression, *, negative_slope: float) -> Expression:
    return where(x > 0, d, d * negative_slope)


@activation(derivative=_leaky_slope)
def leaky_relu(x: Expression, *, negative_slope: float = 0.01) -> Expression:
    """x where x > 0, else negative_slope x."""
    return where(x > 0, x, x * negative_slope)


def _elu(x: Expression, alpha: float, steep: float = 1.0) -> Expression:
    """x where x > 0, else alpha (exp(steep x) - 1); large x never reach the exponential."""
    return where(x <= 0, expm1(where(x <= 0, x, 0) * steep) * alpha, x)


def _elu_slope(d: Expression, x: Expression, *, alpha: float, steep: float = 1.0) -> Expression:
    return where(x > 0, d, d * exp(where(x > 0, 0, x) * steep) * (alpha * steep))  # NaN for NaN


@activation(derivative=_elu_slope, precision="follow")
def elu(x: Expression, *, alpha: float = 1.0) -> Expression:
    """x where x > 0, else alpha (exp(x) - 1)."""
    return _elu(x, alpha)


def _celu_slope(d: Expression, x: Expression, *, alpha: float) -> Expression:
    return _elu_slope(d, x, alpha=alpha, steep=1 / alpha)


@activation(derivative=_celu_slope, precision="follow")
def celu(x: Expression, *, alpha: float = 1.0) -> Expression:
    """x where x > 0, else alpha (exp(x / alpha) - 1)."""
    return _elu(x, alpha, 1 / alpha)


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _selu_slope(d: Expression, x: Expression) -> Expression:
    return _elu_slope(d * _SELU_SCALE, x, alpha=_SELU_ALPHA)


@activation(derivative=_selu_slope, precision="follow")
def selu(x: Expression) -> Expression:
    """The self-normalising elu, scale elu(x, alpha): Klambauer et al., 2017."""
    return _elu(x, _SELU_ALPHA) * _SELU_SCALE
