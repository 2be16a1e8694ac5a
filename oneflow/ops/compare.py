"""Comparisons and logic: bool results of two tensors, or of a tensor and a Python number. No
gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from oneflow.core.dtype import bool_
from oneflow.core.errors import DTypeError
from oneflow.core.expression import Expression, apply, scalar, symbol, symbols
from oneflow.core.op import Attr, Op, declare, elementwise_signatures
from oneflow.core.sbp import SbpSignature
from oneflow.core.tensor_type import TensorType
from oneflow.ops.checks import Value, broadcast, require_same_dtype

KINDS = ("eq", "ne", "lt", "le", "gt", "ge")


def _comparison(name: str) -> Callable[[Value, Value], Value]:
    def infer(a: TensorType, b: TensorType) -> TensorType:
        require_same_dtype(name, a, b)
        return TensorType(broadcast(name, a, b), bool_)

    def sbp(a: TensorType, b: TensorType) -> list[SbpSignature]:
        return elementwise_signatures(a, b)

    members: dict[str, Any] = {"name": name, "infer": staticmethod(infer), "sbp": staticmethod(sbp)}
    members["__doc__"] = f"bool: {name}(a, b), element by element, with broadcasting."
    root = apply(name, *symbols("a b"))
    members["formula"] = staticmethod(lambda *_: root)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    return declare(type(class_name, (Op,), members))


eq = _comparison("eq")
ne = _comparison("ne")
lt = _comparison("lt")
le = _comparison("le")
gt = _comparison("gt")
ge = _comparison("ge")
logical_and = _comparison("logical_and")
logical_or = _comparison("logical_or")
logical_xor = _comparison("logical_xor")


class ScalarCompare(Op):
    """The result, bool, is x `kind` value, where kind is eq, ne, lt, le, gt or ge. Integers may
    meet a float value.
    """

    name = "scalar_compare"

    @staticmethod
    def infer(x: TensorType, *, value: Attr, kind: str) -> TensorType:
        if kind not in KINDS:
            raise DTypeError(f"scalar_compare knows {', '.join(KINDS)}, got {kind!r}")
        return x.with_dtype(bool_)

    @staticmethod
    def formula(*_: TensorType, value: Attr, kind: str) -> Expression:
        return apply(kind, symbol("x"), scalar("value"))

    @staticmethod
    def sbp(x: TensorType, **attrs: Attr) -> list[SbpSignature]:
        return elementwise_signatures(x)


scalar_compare: Any = declare(ScalarCompare)
