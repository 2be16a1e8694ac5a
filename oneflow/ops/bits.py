"""Floating-point numbers taken apart."""

from __future__ import annotations

from oneflow.core.dtype import int32
from oneflow.core.op import Op, declare, elementwise_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, cast, unary
from oneflow.ops.checks import require_float


class Frexp(Op):
    """(mantissa, exponent: int32): x = mantissa * 2^exponent, 1/2 <= |mantissa| < 1."""

    name = "frexp"
    precision = "follow"

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        require_float("frexp", x)
        return x.meta, x.meta.with_dtype(int32)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(x, num_outputs=2)

    @staticmethod
    def grad(
        d: Tensor | None, d_exponent: Tensor | None, x: Tensor, mantissa: Tensor, exponent: Tensor
    ) -> Gradients:
        if d is None:
            return (None,)
        power = unary.exp2(cast.cast(exponent, dtype=x.meta.dtype))
        return (lambda: binary.div(d, power),)


frexp = declare(Frexp)
