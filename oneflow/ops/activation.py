"""GELU and its gradient."""

from __future__ import annotations

import math
from typing import Any

from oneflow.core.errors import ShapeError
from oneflow.core.expression import Expression, absolute, erfcx, exp_down, sigmoid, symbols, where
from oneflow.core.op import declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import require_float, require_same
from oneflow.ops.elementwise import Elementwise

_FORMS = ("none", "tanh")
_X, _D = symbols("x d_out")
_GAUSS = exp_down(_X * _X * -0.5)  # shared by Phi and its derivative
_ROOT_2_OVER_PI, _CUBIC = math.sqrt(2.0 / math.pi), 0.044715


def _check_form(who: str, approximate: str) -> None:
    if approximate not in _FORMS:
        raise ShapeError(f"{who}: approximate is one of {_FORMS}, got {approximate!r}")


def _phi(approximate: str) -> Expression:
    """Phi(x), exact or by (1 + tanh u) / 2 = sigmoid(2 u)."""
    if approximate == "tanh":
        return sigmoid(_X * (2.0 * _ROOT_2_OVER_PI) * (1 + _X * _X * _CUBIC))
    tail = _GAUSS * erfcx(absolute(_X) * math.sqrt(0.5)) * 0.5
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
        return x.type

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
        return x.type

    @staticmethod
    def formula(*_: TensorType, approximate: str) -> Expression:
        p = _phi(approximate)
        if approximate == "tanh":
            slope = (1 + _X * _X * (3.0 * _CUBIC)) * (2.0 * _ROOT_2_OVER_PI)
            return _D * (p + _X * (p * (1 - p) * slope))
        return _D * (p + _X * (_GAUSS * (1.0 / math.sqrt(2.0 * math.pi))))


gelu_grad = declare(GeluGrad)
