"""Elementwise ops of two tensors of one dtype, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.expression import apply, symbols
from oneflow.core.op import row
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import cast, compare, reduce, scalar, unary, where
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
Both = tuple[Callable[[], Tensor], Callable[[], Tensor]]
Gradient = Callable[[Tensor, Tensor, Tensor, Tensor], Both]  # of (d_out, a, b, out)


def _binary(name: str, grad: Gradient | None = None, *, accepts: str = NUMBER) -> BinaryFunction:
    """Declares one row of the table and returns its function.

    grad: gives two functions without arguments, of the broadcast shape; summing to the inputs'
    shapes is done here.
    """

    def infer(a: Operand, b: Operand) -> TensorType:
        dtype = require_same_dtype(name, a, b)
        require(name, a, accepts)
        return a.type if a.shape == b.shape else TensorType(broadcast(name, a, b), dtype)

    members: dict[str, object] = {"is_named_formula": True}
    root = apply(name, *symbols("a b"))
    members["formula"] = lambda *_: root
    if grad is not None:
        rule = grad

        def both(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Gradients:
            d_a, d_b = rule(d, a, b, out)
            return (
                lambda: reduce.sum_to_shape(d_a(), a.type.shape),
                lambda: reduce.sum_to_shape(d_b(), b.type.shape),
            )

        members["grad"] = both
    doc = f"out = {name}(a, b), element by element."
    return row(name, infer, doc=doc, base=Formulated, **members)


def _maximum_grad(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Both:
    """The larger input gets the gradient; equal ones get half each."""
    return lambda: mul(d, _share(a, b)), lambda: mul(d, _share(b, a))


def _minimum_grad(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Both:
    return lambda: mul(d, _share(b, a)), lambda: mul(d, _share(a, b))


def _share(a: Tensor, b: Tensor) -> Tensor:
    """1 where a > b, 1/2 where equal, else 0; 1 where one is nan, for both may have decided."""
    dtype = a.type.dtype
    not_less, not_equal = unary.logical_not(compare.lt(a, b)), compare.ne(a, b)
    total = add(cast.cast(not_less, dtype=dtype), cast.cast(not_equal, dtype=dtype))
    total = sub(total, cast.cast(compare.lt(a, b), dtype=dtype))
    return scalar.scalar_mul(total, value=0.5)


def _pow_grad(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Both:
    def d_base() -> Tensor:
        # An exponent of 0 gives slope 0 even at base 0, where the formula says 0 * inf.
        lower = pow(a, scalar.scalar_add(b, value=-1))
        is_zero = compare.scalar_compare(b, value=0, kind="eq")
        return where.masked_fill(mul(d, mul(b, lower)), is_zero, value=0)

    def d_exponent() -> Tensor:
        is_zero = compare.scalar_compare(a, value=0, kind="eq")
        return where.masked_fill(mul(d, mul(out, unary.log(a))), is_zero, value=0)

    return d_base, d_exponent


def _atan2_grad(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Both:
    def scaled() -> Tensor:
        return div(d, add(unary.square(a), unary.square(b)))

    return lambda: mul(scaled(), b), lambda: unary.neg(mul(scaled(), a))


def _zero_of(d: Tensor) -> Tensor:
    return unary.full_like(d, value=0)


add: BinaryFunction = _binary("add", lambda d, a, b, y: (lambda: d, lambda: d), accepts=ANY)
sub: BinaryFunction = _binary("sub", lambda d, a, b, y: (lambda: d, lambda: unary.neg(d)))
mul: BinaryFunction = _binary(
    "mul",
    lambda d, a, b, y: (lambda: mul(d, b), lambda: mul(d, a)),
    accepts=ANY,
)
div: BinaryFunction = _binary(
    "div",
    lambda d, a, b, y: (lambda: div(d, b), lambda: unary.neg(div(mul(d, y), b))),
    accepts=FIELD,
)
pow: BinaryFunction = _binary("pow", _pow_grad)
maximum: BinaryFunction = _binary("maximum", _maximum_grad, accepts=ANY)
minimum: BinaryFunction = _binary("minimum", _minimum_grad, accepts=ANY)
fmod: BinaryFunction = _binary(  # the remainder has the sign of a
    "fmod",
    lambda d, a, b, y: (lambda: d, lambda: unary.neg(mul(d, unary.trunc(div(a, b))))),
)
floor_divide: BinaryFunction = _binary(  # steps
    "floor_divide",
    lambda d, a, b, y: (lambda: _zero_of(d), lambda: _zero_of(d)),
)
atan2: BinaryFunction = _binary("atan2", _atan2_grad, accepts=FLOAT)
bitwise_and: BinaryFunction = _binary("bitwise_and", accepts=INTEGRAL)
bitwise_or: BinaryFunction = _binary("bitwise_or", accepts=INTEGRAL)
bitwise_xor: BinaryFunction = _binary("bitwise_xor", accepts=INTEGRAL)
bitwise_left_shift: BinaryFunction = _binary("bitwise_left_shift", accepts=INTEGRAL)
bitwise_right_shift: BinaryFunction = _binary("bitwise_right_shift", accepts=INTEGRAL)
gcd: BinaryFunction = _binary("gcd", accepts=INTEGRAL)
lcm: BinaryFunction = _binary("lcm", accepts=INTEGRAL)
hypot: BinaryFunction = _binary(
    "hypot",
    lambda d, a, b, y: (lambda: mul(d, div(a, y)), lambda: mul(d, div(b, y))),
    accepts=FLOAT,
)
copysign: BinaryFunction = _binary(
    "copysign",
    lambda d, a, b, y: (lambda: mul(d, _turned(a, y)), lambda: _zero_of(d)),
    accepts=FLOAT,
)
nextafter: BinaryFunction = _binary("nextafter", accepts=FLOAT)


def _turned(a: Tensor, y: Tensor) -> Tensor:
    """1 where a kept its sign on the way to y, -1 where it changed it, 0 where it has none."""
    is_zero = compare.scalar_compare(a, value=0, kind="eq")
    quotient = div(y, where.masked_fill(a, is_zero, value=1))
    return where.masked_fill(quotient, is_zero, value=0)
