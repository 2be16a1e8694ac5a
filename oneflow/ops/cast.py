"""Change of dtype."""

from __future__ import annotations

from typing import Any

from oneflow.core import expression
from oneflow.core.dtype import DType, bool_
from oneflow.core.expression import Expression, symbol
from oneflow.core.op import Op, declare, elementwise_signatures
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import Value


class Cast(Op):
    """The elements of x as `dtype`; floats lose their fraction on the way to integers."""

    name = "cast"

    @staticmethod
    def infer(x: TensorType, *, dtype: DType) -> TensorType:
        return x.with_dtype(dtype)

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
    def grad(d: Value, x: Value, out: Value, *, dtype: DType) -> tuple[Any, ...]:
        if not (x.type.dtype.is_floating_point and dtype.is_floating_point):
            return (None,)
        return (lambda: cast(d, dtype=x.type.dtype),)


cast: Any = declare(Cast)
