"""Elementwise ops of one tensor: a table of (name, accepted types, gradient), then those with
attributes.

The gradients of the hot activations are ops of their own; most others follow from the formula.
Those of the sine and its kin are written out of ops: NumPy computes a cosine five times as fast
alone as a compiled loop, which calls a library for each element, computes the whole gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from oneflow.core import expression as expressions
from oneflow.core.dtype import DType, bool_
from oneflow.core.errors import DTypeError
from oneflow.core.expression import Expression, apply, symbols
from oneflow.core.expression import scalar as number
from oneflow.core.op import REGISTRY, Op, declare, row
from oneflow.core.operand import Gradients, Number, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, compare, elementwise, scalar, where
from oneflow.ops.checks import (
    ANY,
    FIELD,
    FLOAT,
    INTEGRAL,
    NUMBER,
    require,
    require_same_dtype,
    require_scalar,
    require_shape,
)
from oneflow.ops.formulated import Formulated

if TYPE_CHECKING:
    from oneflow.core.precision import Precision

UnaryFunction = Callable[[Operand], Tensor]
BinaryFunction = Callable[[Operand, Operand], Tensor]
Gradient = Callable[[Tensor, Tensor, Tensor], Tensor | None]  # of (d_out, x, out)


_X, _D, _SAVED = symbols("x d saved")


_HOLOMORPHIC = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "sin",
    "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "sigmoid",
)  # fmt: skip
"""Functions that are differentiable as complex ones."""


def _unary(
    name: str,
    grad: Gradient | None = None,
    *,
    accepts: str = FLOAT,
    result: DType | None = None,
    derived: bool = False,
    formula: Callable[[TensorType], Expression] | None = None,
    precision: Precision | None = None,
) -> UnaryFunction:
    """Declares one row of the table and returns its function.

    derived: the gradient follows from the formula.  formula: the function of expressions that is
    called `name` unless told.
    """
    plain = apply(name, _X) if formula is None else _X
    accepts = FIELD if name in _HOLOMORPHIC else accepts

    def infer(x: Operand) -> TensorType:
        require(name, x, accepts)
        return x.meta.with_dtype(result) if result else x.meta

    members: dict[str, object] = {"formula": formula or (lambda *_: plain), "precision": precision}
    members["is_named_formula"] = formula is None
    if derived:
        members["grad"] = lambda d, x, out: elementwise.formula_gradients(
            REGISTRY[name], d, (x,), out, {}
        )
    elif grad is not None:
        rule = grad
        members["grad"] = lambda d, x, out: (rule(d, x, out),)
    doc = f"out = {name}(x), element by element."
    return row(name, infer, doc=doc, base=Formulated, **members)


def _fused_gradient(
    name: str,
    saved: str,
    formula: Expression,
    grad: Callable[[Tensor, Tensor, Tensor, Tensor], Gradients],
) -> BinaryFunction:
    """Declares `name(d, saved)`, the gradient of an activation as one op; saved: "x" or "y"."""

    def infer(d: Operand, saved: Operand) -> TensorType:
        require_same_dtype(name, d, saved)
        require_shape(name, saved.shape, d=d)
        return d.meta

    doc = f"The gradient of {name[:-5]} at ({saved}) times d."
    return row(name, infer, doc=doc, base=Formulated, formula=lambda *_: formula, grad=grad)


def _zero(d: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Steps have slope zero wherever they have one."""
    return full_like(x, value=0)


def _sign_formula(x: TensorType) -> Expression:
    """0 for nan, as (x > 0) - (x < 0) is; a bool is its own sign."""
    if x.dtype is bool_:
        return _X
    if not x.dtype.is_floating_point:
        return expressions.sign(_X)
    return expressions.where(apply("isnan", _X), 0, expressions.sign(_X))


# ---- the table -----------------------------------------------------------------------------------

neg: UnaryFunction = _unary("neg", lambda d, x, y: neg(d), accepts=NUMBER)
abs: UnaryFunction = _unary("abs", lambda d, x, y: binary.mul(d, sign(x)), accepts=NUMBER)
exp: UnaryFunction = _unary("exp", derived=True)
exp2: UnaryFunction = _unary("exp2", derived=True)
expm1: UnaryFunction = _unary("expm1", derived=True)
log: UnaryFunction = _unary("log", derived=True)
log1p: UnaryFunction = _unary("log1p", derived=True)
log2: UnaryFunction = _unary("log2", derived=True)
log10: UnaryFunction = _unary("log10", derived=True)
sqrt: UnaryFunction = _unary("sqrt", derived=True)
rsqrt: UnaryFunction = _unary(
    "rsqrt", lambda d, x, y: scalar.scalar_mul(binary.mul(d, binary.mul(y, square(y))), value=-0.5)
)
square: UnaryFunction = _unary("square", derived=True, accepts=NUMBER)
reciprocal: UnaryFunction = _unary("reciprocal", derived=True)
sin: UnaryFunction = _unary("sin", lambda d, x, y: binary.mul(d, cos(x)))
cos: UnaryFunction = _unary("cos", lambda d, x, y: neg(binary.mul(d, sin(x))))
tan: UnaryFunction = _unary("tan", derived=True)
asin: UnaryFunction = _unary("asin", derived=True)
acos: UnaryFunction = _unary("acos", derived=True)
atan: UnaryFunction = _unary("atan", derived=True)
sinh: UnaryFunction = _unary("sinh", lambda d, x, y: binary.mul(d, cosh(x)))
cosh: UnaryFunction = _unary("cosh", lambda d, x, y: binary.mul(d, sinh(x)))
tanh: UnaryFunction = _unary("tanh", lambda d, x, y: tanh_grad(d, y))
asinh: UnaryFunction = _unary("asinh", derived=True)
acosh: UnaryFunction = _unary("acosh", lambda d, x, y: binary.mul(d, _acosh_slope(x)))
atanh: UnaryFunction = _unary("atanh", derived=True)
erf: UnaryFunction = _unary("erf", derived=True)
sigmoid: UnaryFunction = _unary("sigmoid", lambda d, x, y: sigmoid_grad(d, y))
relu: UnaryFunction = _unary("relu", lambda d, x, y: relu_grad(d, y), accepts=NUMBER)
silu: UnaryFunction = _unary(
    "silu", lambda d, x, y: silu_grad(d, x), formula=lambda x: _X * expressions.sigmoid(_X)
)
sign: UnaryFunction = _unary("sign", _zero, accepts=ANY, formula=_sign_formula)
nonzero_steps: UnaryFunction = _unary(  # 1 where x is not 0; no gradient, not even zeros
    "nonzero_steps",
    lambda d, x, y: None,
    formula=lambda x: expressions.cast(apply("ne", _X, 0.0), x.dtype),
)
floor: UnaryFunction = _unary("floor", _zero, accepts=NUMBER)
ceil: UnaryFunction = _unary("ceil", _zero, accepts=NUMBER)
round: UnaryFunction = _unary("round", _zero, accepts=NUMBER)  # halves go to the even neighbour
trunc: UnaryFunction = _unary("trunc", _zero, accepts=NUMBER)
logical_not: UnaryFunction = _unary("logical_not", accepts=ANY, result=bool_)
bitwise_not: UnaryFunction = _unary("bitwise_not", accepts=INTEGRAL)
isnan: UnaryFunction = _unary("isnan", accepts=ANY, result=bool_)
isinf: UnaryFunction = _unary("isinf", accepts=ANY, result=bool_)
isfinite: UnaryFunction = _unary("isfinite", accepts=ANY, result=bool_)
copy: UnaryFunction = _unary("copy", lambda d, x, y: d, accepts=ANY, formula=lambda x: _X)
# Copies that a graph in mixed precision makes in half precision, or in float32.
amp_white_identity: UnaryFunction = _unary(
    "amp_white_identity",
    lambda d, x, y: d,
    accepts=ANY,
    formula=lambda x: _X,
    precision="lower",
)
amp_black_identity: UnaryFunction = _unary(
    "amp_black_identity",
    lambda d, x, y: d,
    accepts=ANY,
    formula=lambda x: _X,
    precision="keep",
)


def _acosh_slope(x: Tensor) -> Tensor:
    """1 / sqrt(x^2 - 1); of complex numbers the root of each factor, as the root of the product has
    the wrong sign where the real part is negative."""
    if not x.meta.dtype.is_complex:
        return rsqrt(scalar.scalar_add(square(x), value=-1))
    below, above = scalar.scalar_add(x, value=-1), scalar.scalar_add(x, value=1)
    return binary.mul(rsqrt(below), rsqrt(above))


def _one_minus_square(x: Tensor) -> Tensor:
    return scalar.scalar_add(neg(square(x)), value=1)


def _silu_slope() -> Expression:
    s = expressions.sigmoid(_SAVED)
    return _D * s * (1 + _SAVED * (1 - s))


# Second derivatives: relu has none; the others follow from out = d * f(saved).
relu_grad: BinaryFunction = _fused_gradient(
    "relu_grad",
    "y",
    expressions.where(_SAVED <= 0, 0, _D),
    lambda dd, d, y, out: (relu_grad(dd, y), None),
)
tanh_grad: BinaryFunction = _fused_gradient(
    "tanh_grad",
    "y",
    _D * (1 - _SAVED * _SAVED),
    lambda dd, d, y, out: (
        tanh_grad(dd, y),
        lambda: scalar.scalar_mul(binary.mul(binary.mul(dd, d), y), value=-2),
    ),
)
sigmoid_grad: BinaryFunction = _fused_gradient(
    "sigmoid_grad",
    "y",
    _D * (_SAVED * (1 - _SAVED)),
    lambda dd, d, y, out: (
        sigmoid_grad(dd, y),
        lambda: binary.mul(
            binary.mul(dd, d), scalar.scalar_add(scalar.scalar_mul(y, value=-2), value=1)
        ),
    ),
)
silu_grad: BinaryFunction = _fused_gradient(
    "silu_grad",
    "x",
    _silu_slope(),
    lambda dd, d, x, out: (silu_grad(dd, x), lambda: binary.mul(binary.mul(dd, d), _silu_curve(x))),
)


def _silu_curve(x: Tensor) -> Tensor:
    """The second derivative of silu: s (1 - s) (2 + x (1 - 2 s)), s = sigmoid(x)."""
    s = sigmoid(x)
    slope = scalar.scalar_add(scalar.scalar_mul(s, value=-2), value=1)
    bump = binary.mul(s, scalar.scalar_add(neg(s), value=1))
    return binary.mul(bump, scalar.scalar_add(binary.mul(x, slope), value=2))


# ---- with attributes -----------------------------------------------------------------------------


class Clamp(Formulated):
    """min(max(x, min), max); a bound that is None does not bind. The gradient passes at the
    bounds."""

    name = "clamp"

    @staticmethod
    def infer(x: Operand, *, min: Number | None = None, max: Number | None = None) -> TensorType:
        require("clamp", x, NUMBER)
        if min is None and max is None:
            raise DTypeError(f"clamp of {x}: At least one of 'min' or 'max' must not be None")
        for bound in (min, max):
            if bound is not None:
                require_scalar("clamp", x, bound)
        return x.meta

    @staticmethod
    def formula(*_: TensorType, min: Number | None = None, max: Number | None = None) -> Expression:
        above = _X if min is None else expressions.maximum(_X, number("min"))
        return above if max is None else expressions.minimum(above, number("max"))

    @staticmethod
    def grad(
        d: Tensor, x: Tensor, out: Tensor, *, min: Number | None, max: Number | None
    ) -> Gradients:
        for bound, kind in ((min, "ge"), (max, "le")):
            if bound is not None:  # NaN is on no side of a bound, and gets none
                is_inside = compare.scalar_compare(x, value=bound, kind=kind)
                d = where.masked_fill(d, logical_not(is_inside), value=0)
        return (d,)


class FullLike(Op):
    """A tensor of the type of x, filled with `value`. The values of x are not read."""

    name = "full_like"
    precision = "follow"
    is_flat = True

    @staticmethod
    def infer(x: Operand, *, value: Number) -> TensorType:
        require_scalar("full_like", x, value)
        return x.meta

    @staticmethod
    def sbp(x: TensorType, *, value: Number) -> list[SbpSignature]:
        # A dim of 1 too: what is like a parameter lies as it does, also where that leaves ranks
        # without elements.
        splits = [SbpSignature((Split(i),), (Split(i),)) for i in range(x.ndim)]
        if x.dtype is bool_:
            return splits
        # The values are not read: partial sums of x need not be added up first.
        partial = SbpSignature((PARTIAL,), (PARTIAL if value == 0 else BROADCAST,))
        return [*splits, partial]

    @staticmethod
    def uniform(x: TensorType, *, value: Number) -> Collection[int]:
        return range(x.ndim)


class PiecewiseLinear(Formulated):
    """x itself. Its gradient depends on x too, with derivative 0. It makes a piecewise linear
    function of ops that do not read its input in their gradients.
    """

    name = "piecewise_linear"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        return x.meta

    @staticmethod
    def formula(*_: TensorType) -> Expression:
        return _X

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (d,)

    @staticmethod
    def recorded_grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: where.flat_in(d, x),)


piecewise_linear = declare(PiecewiseLinear)
clamp = declare(Clamp)
_full_like = declare(FullLike)


def full_like(x: Tensor, *, value: Number) -> Tensor:
    """FullLike, also in a gradient of a tensor that was written to since: its values are not
    read.
    """
    unread: Tensor | None = getattr(x, "_unread", None)
    return _full_like(x if unread is None else unread, value=value)
