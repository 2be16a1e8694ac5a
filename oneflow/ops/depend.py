"""An op that does nothing but wait."""

from __future__ import annotations

from oneflow.core.dtype import bool_
from oneflow.core.op import Op, declare
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, Sbp, SbpSignature, Split
from oneflow.core.tensor_type import TensorType


def _layouts(x: TensorType) -> list[Sbp]:
    splits: list[Sbp] = [Split(dim) for dim in range(x.ndim)]
    return [*splits, BROADCAST, *([] if x.dtype is bool_ else [PARTIAL])]


class Depend(Op):
    """x, once `after` is made. In a graph a reader of the result runs later than the maker of
    `after`; no element is copied.
    """

    name = "depend"
    stays_wide = reads_half = range(1, 2)
    precision = "either"
    is_alias = True

    @staticmethod
    def infer(x: Operand, after: Operand) -> TensorType:
        return x.meta

    @staticmethod
    def sbp(x: TensorType, after: TensorType) -> list[SbpSignature]:
        return [
            SbpSignature((mine, other), (mine,))
            for mine in _layouts(x)
            for other in _layouts(after)
        ]

    @staticmethod
    def grad(d: Tensor, x: Tensor, after: Tensor, out: Tensor) -> Gradients:
        return d, None


depend = declare(Depend)
