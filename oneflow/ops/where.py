"""Choice by a mask."""

from __future__ import annotations

from oneflow.core.dtype import bool_
from oneflow.core.expression import Expression, apply, scalar, symbols
from oneflow.core.op import Op, declare, elementwise_signatures
from oneflow.core.operand import Gradients, Number, Operand, Tensor
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import reduce, unary
from oneflow.ops.checks import (
    broadcast,
    require_dtype,
    require_same_dtype,
    require_scalar,
)
from oneflow.ops.formulated import Formulated


class Where(Formulated):
    """x where condition (bool), else y; all three are broadcast."""

    name = "where"

    @staticmethod
    def infer(condition: Operand, x: Operand, y: Operand) -> TensorType:
        require_dtype("where", "the condition", condition, bool_)
        dtype = require_same_dtype("where", x, y)
        return TensorType(broadcast("where", condition, x, y), dtype)

    @staticmethod
    def formula(*_: TensorType) -> Expression:
        return apply("where", *symbols("condition x y"))

    @staticmethod
    def grad(d: Tensor, condition: Tensor, x: Tensor, y: Tensor, out: Tensor) -> Gradients:
        def d_x() -> Tensor:
            kept = masked_fill(d, unary.logical_not(condition), value=0)
            return reduce.sum_to_shape(kept, x.meta.shape)

        def d_y() -> Tensor:
            return reduce.sum_to_shape(masked_fill(d, condition, value=0), y.meta.shape)

        return None, d_x, d_y


class MaskedFill(Op):
    """`value` where mask (bool), else x; both are broadcast."""

    name = "masked_fill"

    @staticmethod
    def infer(x: Operand, mask: Operand, *, value: Number) -> TensorType:
        require_dtype("masked_fill", "the mask", mask, bool_)
        require_scalar("masked_fill", x, value)
        return TensorType(broadcast("masked_fill", x, mask), x.dtype)

    @staticmethod
    def formula(*_: TensorType, value: Number) -> Expression:
        x, mask = symbols("x mask")
        return apply("where", mask, scalar("value"), x)

    @staticmethod
    def sbp(x: TensorType, mask: TensorType, *, value: Number) -> list[SbpSignature]:
        is_linear = value == 0 and x.dtype is not bool_
        sums = [signature("P B -> P")] if is_linear else []
        return [*elementwise_signatures(x, mask), *sums]

    @staticmethod
    def grad(d: Tensor, x: Tensor, mask: Tensor, out: Tensor, *, value: Number) -> Gradients:
        return (
            lambda: reduce.sum_to_shape(masked_fill(d, mask, value=0), x.meta.shape),
            None,
        )


where = declare(Where)
masked_fill = declare(MaskedFill)


def flat_in(d_x: Tensor, x: Tensor) -> Tensor:
    """The gradient of a piecewise linear op, as a function of x too: its derivative is 0, where
    the ops that made it do not read x at all.
    """
    never = unary.logical_not(unary.full_like(d_x, value=1))
    return where(never, x, d_x)


def flat_in_first(gradients: Gradients, x: Tensor) -> Gradients:
    """The gradients of an op, that by its first input x as `flat_in` makes it."""
    first, *others = gradients

    def made() -> Tensor | None:
        d_x = first() if callable(first) else first
        return None if d_x is None else flat_in(d_x, x)

    return made, *others
