"""Change of dtype."""

from __future__ import annotations

from oneflow.core import expression
from oneflow.core.dtype import DType
from oneflow.core.expression import Expression, symbol
from oneflow.core.op import declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops import complex_numbers
from oneflow.ops.formulated import Formulated


class Cast(Formulated):
    """The elements of x as `dtype`; floats lose their fraction on the way to integers."""

    name = "cast"
    is_conversion = True
    reads_half = range(1)

    @staticmethod
    def infer(x: Operand, *, dtype: DType) -> TensorType:
        return x.meta.with_dtype(dtype)

    @staticmethod
    def formula(*_: TensorType, dtype: DType) -> Expression:
        return expression.cast(symbol("x"), dtype)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, *, dtype: DType) -> Gradients:
        if x.meta.dtype.is_floating_point and dtype.is_complex:
            return (lambda: cast(complex_numbers.real(d), dtype=x.meta.dtype),)
        if not all(t.is_floating_point or t.is_complex for t in (x.meta.dtype, dtype)):
            return (None,)
        return (lambda: cast(d, dtype=x.meta.dtype),)


cast = declare(Cast)
