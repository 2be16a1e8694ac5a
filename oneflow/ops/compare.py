"""Comparisons and logic: bool results of two tensors, or of a tensor and a Python number. No
gradients."""

from __future__ import annotations

from collections.abc import Callable

from oneflow.core.dtype import bool_
from oneflow.core.errors import DTypeError
from oneflow.core.expression import Expression, apply, scalar, symbol, symbols
from oneflow.core.op import declare, row
from oneflow.core.operand import Number, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import broadcast, require_same_dtype
from oneflow.ops.formulated import Formulated

KINDS = ("eq", "ne", "lt", "le", "gt", "ge")


def _comparison(name: str) -> Callable[[Operand, Operand], Tensor]:
    def infer(a: Operand, b: Operand) -> TensorType:
        require_same_dtype(name, a, b)
        return TensorType(broadcast(name, a, b), bool_)

    root = apply(name, *symbols("a b"))
    doc = f"bool: {name}(a, b), element by element, with broadcasting."
    return row(name, infer, doc=doc, base=Formulated, formula=lambda *_: root)


eq = _comparison("eq")
ne = _comparison("ne")
lt = _comparison("lt")
le = _comparison("le")
gt = _comparison("gt")
ge = _comparison("ge")
logical_and = _comparison("logical_and")
logical_or = _comparison("logical_or")
logical_xor = _comparison("logical_xor")


class ScalarCompare(Formulated):
    """The result, bool, is x `kind` value, where kind is eq, ne, lt, le, gt or ge. Integers may
    meet a float value.
    """

    name = "scalar_compare"

    @staticmethod
    def infer(x: Operand, *, value: Number, kind: str) -> TensorType:
        if kind not in KINDS:
            raise DTypeError(f"scalar_compare knows {', '.join(KINDS)}, got {kind!r}")
        return x.meta.with_dtype(bool_)

    @staticmethod
    def formula(*_: TensorType, value: Number, kind: str) -> Expression:
        return apply(kind, symbol("x"), scalar("value"))


scalar_compare = declare(ScalarCompare)
