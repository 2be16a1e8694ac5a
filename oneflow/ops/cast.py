"""Change of dtype."""

from __future__ import annotations

from oneflow.core import expression
from oneflow.core.dtype import DType, bool_
from oneflow.core.expression import Expression, symbol
from oneflow.core.op import Op, declare, elementwise_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import complex_numbers


class Cast(Op):
    """The elements of x as `dtype`; floats lose their fraction on the way to integers."""

    name = "cast"

    @staticmethod
    def infer(x: Operand, *, dtype: DType) -> TensorType:
        return x.type.with_dtype(dtype)

    @staticmethod
    def formula(*_: TensorType, dtype: DType) -> Expression:
        return expression.cast(symbol("x"), dtype)

    @staticmethod
    def sbp(x: TensorType, *, dtype: DType) -> list[SbpSignature]:
        # Truncation does not commute with sums, and sums of bools are no bools.
        loses_fraction = not x.dtype.is_integer and dtype.is_integer
        linear = not loses_fraction and bool_ not in (x.dtype, dtype)
        return elementwise_signatures(x, linear=linear)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dtype: DType) -> Gradients:
        if x.type.dtype.is_floating_point and dtype.is_complex:
            return (lambda: cast(complex_numbers.real(d), dtype=x.type.dtype),)
        if not all(t.is_floating_point or t.is_complex for t in (x.type.dtype, dtype)):
            return (None,)
        return (lambda: cast(d, dtype=x.type.dtype),)


cast = declare(Cast)
