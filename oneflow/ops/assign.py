"""Overwriting a tensor: how a graph writes to a buffer that lives outside of it."""

from __future__ import annotations

from oneflow.core.dtype import bool_
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare
from oneflow.core.operand import Operand
from oneflow.core.sbp import PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType


class Assign(Op):
    """x <- new, in place.   Inputs: x, new, of one type."""

    name = "assign"
    mutates = {0: 0}
    has_effect = True

    @staticmethod
    def infer(x: Operand, new: Operand) -> TensorType:
        if x.shape != new.shape:
            raise ShapeError(f"assign: {new} does not fit {x}")
        if x.dtype is not new.dtype:
            raise DTypeError(f"assign: {new} must have the dtype of {x}; cast it first")
        return x.meta

    @staticmethod
    def sbp(x: TensorType, new: TensorType) -> list[SbpSignature]:
        # A dim of 1 too, as x may lie: what is written to stays where it is.
        splits = [SbpSignature((Split(i),) * 2, (Split(i),)) for i in range(x.ndim)]
        sums = [] if x.dtype is bool_ else [SbpSignature((PARTIAL,) * 2, (PARTIAL,))]
        return [*splits, *sums]


assign = declare(Assign)
