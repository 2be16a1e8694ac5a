"""Elementwise ops of two tensors of one dtype, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.expression import Expression, apply, symbols
from oneflow.core.expression import where as expression_where
from oneflow.core.op import REGISTRY, row
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import elementwise, reduce, unary
from oneflow.ops.checks import (
    ANY,
    FIELD,
    FLOAT,
    INTEGRAL,
    NUMBER,
    broadcast,
    require,
    require_same_dtype,
)
from oneflow.ops.formulated import Formulated

BinaryFunction = Callable[[Operand, Operand], Tensor]


def remainder_formula(a: Expression, b: Expression) -> Expression:
    """The rest of the division rounded down, exact, and `a` itself or an infinite `b` where b is
    infinite.
    """
    rest = apply("fmod", a, b)
    is_other_side = apply("logical_xor", rest < 0, b < 0)
    is_moved = apply("logical_and", is_other_side, apply("ne", rest, 0))
    return expression_where(is_moved, rest + b, rest)


def _binary(
    name: str,
    *,
    accepts: str = NUMBER,
    derived: bool = False,
    formula: Callable[[Expression, Expression], Expression] | None = None,
    grad: Callable[[Tensor, Tensor, Tensor, Tensor], Gradients] | None = None,
) -> BinaryFunction:
    """Declares one row of the table and returns its function.

    derived: it has a gradient, which follows from the formula.  formula: the function of
    expressions that is called `name` unless told.  grad: that of d, a, b, out, if not derived.
    """

    def infer(a: Operand, b: Operand) -> TensorType:
        dtype = require_same_dtype(name, a, b)
        require(name, a, accepts)
        return a.meta if a.shape == b.shape else TensorType(broadcast(name, a, b), dtype)

    a, b = symbols("a b")
    root = apply(name, a, b) if formula is None else formula(a, b)
    members: dict[str, object] = {"is_named_formula": formula is None, "formula": lambda *_: root}
    if derived:
        members["grad"] = lambda d, a, b, out: elementwise.formula_gradients(
            REGISTRY[name], d, (a, b), out, {}
        )
    if grad is not None:
        members["grad"] = grad
    doc = f"out = {name}(a, b), element by element."
    return row(name, infer, doc=doc, base=Formulated, **members)


def _remainder_grad(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Gradients:
    """The quotient is constant between its steps, and the gradient of `a` reads nothing."""
    return (
        lambda: reduce.sum_to_shape(d, a.meta.shape),
        lambda: reduce.sum_to_shape(unary.neg(mul(d, floor_divide(a, b))), b.meta.shape),
    )


add: BinaryFunction = _binary("add", accepts=ANY, derived=True)
sub: BinaryFunction = _binary("sub", derived=True)
mul: BinaryFunction = _binary("mul", accepts=ANY, derived=True)
div: BinaryFunction = _binary("div", accepts=FIELD, derived=True)
pow: BinaryFunction = _binary("pow", derived=True)
maximum: BinaryFunction = _binary("maximum", accepts=ANY, derived=True)
minimum: BinaryFunction = _binary("minimum", accepts=ANY, derived=True)
fmod: BinaryFunction = _binary("fmod", derived=True)  # the remainder has the sign of a
remainder: BinaryFunction = _binary(  # that of floats; integers go through their quotient
    "remainder", accepts=FLOAT, formula=remainder_formula, grad=_remainder_grad
)
floor_divide: BinaryFunction = _binary("floor_divide", derived=True)
atan2: BinaryFunction = _binary("atan2", accepts=FLOAT, derived=True)
bitwise_and: BinaryFunction = _binary("bitwise_and", accepts=INTEGRAL)
bitwise_or: BinaryFunction = _binary("bitwise_or", accepts=INTEGRAL)
bitwise_xor: BinaryFunction = _binary("bitwise_xor", accepts=INTEGRAL)
bitwise_left_shift: BinaryFunction = _binary("bitwise_left_shift", accepts=INTEGRAL)
bitwise_right_shift: BinaryFunction = _binary("bitwise_right_shift", accepts=INTEGRAL)
gcd: BinaryFunction = _binary("gcd", accepts=INTEGRAL)
lcm: BinaryFunction = _binary("lcm", accepts=INTEGRAL)
hypot: BinaryFunction = _binary("hypot", accepts=FLOAT, derived=True)
copysign: BinaryFunction = _binary("copysign", accepts=FLOAT, derived=True)
nextafter: BinaryFunction = _binary("nextafter", accepts=FLOAT, derived=True)
