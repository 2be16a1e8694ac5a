"""Elementwise ops of a tensor and a Python number, which keep the tensor's dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from oneflow.core.errors import DTypeError
from oneflow.core.expression import Expression, apply, sqrt, symbol
from oneflow.core.expression import scalar as number
from oneflow.core.op import row
from oneflow.core.operand import Number, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, compare, unary, where
from oneflow.ops.checks import FIELD, FLOAT, NUMBER, require, require_scalar
from oneflow.ops.formulated import Formulated

Gradient = Callable[[Tensor, Tensor, Tensor, Number], Tensor]  # of (d_out, x, out, value)


class ScalarFunction(Protocol):
    """A declared op of a tensor and a number."""

    def __call__(self, x: Operand, *, value: Number) -> Tensor: ...


def _scalar(
    name: str,
    formula: str,
    expression: Callable[..., Expression],
    grad: Gradient | None = None,
    *,
    accepts: str = NUMBER,
    refuses: Callable[[Operand, Number], str] = lambda x, value: "",
) -> ScalarFunction:
    """Declares one row of the table and returns its function `f(x, *, value)`.

    refuses: of (type, value), says why they do not go together, or nothing.
    """

    def infer(x: Operand, *, value: Number) -> TensorType:
        require(name, x, accepts)
        require_scalar(name, x, value)
        reason = refuses(x, value)
        if reason:
            raise DTypeError(f"{name}: {reason}, got {x} and {value!r}")
        return x.meta

    members: dict[str, object] = {"formula": expression}
    if grad is not None:
        rule = grad
        members["grad"] = lambda d, x, out, *, value: (rule(d, x, out, value),)
    doc = f"{formula}, element by element."
    return row(name, infer, doc=doc, base=Formulated, **members)


_X, _VALUE = symbol("x"), number("value")


def _power(*_: TensorType, value: Number) -> Expression:
    """Common exponents go without `pow`, which is some fifty times slower than a product."""
    known = {
        2: _X * _X, 3: _X * _X * _X, 0.5: sqrt(_X), -1: apply("reciprocal", _X),
        -0.5: apply("rsqrt", _X),
    }  # fmt: skip
    return known.get(value, _X**_VALUE)


def _power_grad(d: Tensor, x: Tensor, out: Tensor, value: Number) -> Tensor:
    if value == 0:
        return unary.full_like(x, value=0)
    return binary.mul(d, scalar_mul(scalar_pow(x, value=value - 1), value=value))


def _rpow_grad(d: Tensor, x: Tensor, out: Tensor, value: Number) -> Tensor:
    if value == 0:  # 0 to the power of 0 and more has slope 0, where the formula says 0 * -inf
        steep = scalar_mul(binary.mul(d, out), value=-math.inf)
        return where.masked_fill(steep, compare.scalar_compare(x, value=0, kind="ge"), value=0)
    return scalar_mul(binary.mul(d, out), value=math.log(value) if value > 0 else math.nan)


def _negative_power(x: Operand, value: Number) -> str:
    is_inexact = value < 0 and x.dtype.is_integer
    return "integers cannot be raised to a negative power" if is_inexact else ""


def _zero_divisor(x: Operand, value: Number) -> str:
    return "integers cannot be divided by zero" if value == 0 and x.dtype.is_integer else ""


scalar_add: ScalarFunction = _scalar(
    "scalar_add", "x + value", lambda *_, value: _X + _VALUE, lambda d, x, y, v: d
)
scalar_mul: ScalarFunction = _scalar(
    "scalar_mul",
    "x * value",
    lambda *_, value: _X * _VALUE,
    lambda d, x, y, v: scalar_mul(d, value=v),
)
scalar_pow: ScalarFunction = _scalar(
    "scalar_pow", "x ** value", _power, _power_grad, refuses=_negative_power
)
scalar_rpow: ScalarFunction = _scalar(
    "scalar_rpow",
    "value ** x",
    lambda *_, value: _VALUE**_X,
    lambda d, x, y, v: _rpow_grad(d, x, y, v),
)
scalar_div: ScalarFunction = _scalar(  # a product with 1 / value would round twice
    "scalar_div",
    "x / value",
    lambda *_, value: _X / _VALUE,
    lambda d, x, y, v: scalar_div(d, value=v),
    accepts=FIELD,
)
scalar_rdiv: ScalarFunction = _scalar(
    "scalar_rdiv",
    "value / x",
    lambda *_, value: _VALUE / _X,
    lambda d, x, y, v: binary.div(binary.div(scalar_mul(d, value=-v), x), x),
    accepts=FIELD,
)
scalar_fmod: ScalarFunction = _scalar(
    "scalar_fmod",
    "fmod(x, value)",
    lambda *_, value: apply("fmod", _X, _VALUE),
    lambda d, x, y, v: d,
    refuses=_zero_divisor,
)
scalar_remainder: ScalarFunction = _scalar(
    "scalar_remainder",
    "the rest of x / value rounded down",
    lambda *_, value: binary.remainder_formula(_X, _VALUE),
    lambda d, x, y, v: d,
    accepts=FLOAT,
)
scalar_floor_divide: ScalarFunction = _scalar(
    "scalar_floor_divide",
    "floor(x / value)",
    lambda *_, value: apply("floor_divide", _X, _VALUE),
    lambda d, x, y, v: scalar_mul(d, value=0),
    refuses=_zero_divisor,
)
