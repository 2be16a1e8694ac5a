"""Tensors out of nothing: constants and ranges. Random ones are in random.py."""

from __future__ import annotations

from collections.abc import Collection

from oneflow.core.dtype import DType, bool_
from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Boxes, Op, declare
from oneflow.core.operand import Attrs, Number
from oneflow.core.sbp import PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType

Shape = tuple[int, ...]


def source_type(name: str, shape: Shape, dtype: DType) -> TensorType:
    """The type of an output without inputs. Raises ShapeError."""
    if any(n < 0 for n in shape):
        raise ShapeError(f"{name}: a shape has no negative sizes, got {list(shape)}")
    return TensorType(tuple(shape), dtype)


def source_signatures(ndim: int) -> list[SbpSignature]:
    """A source may be split along any dim."""
    return [SbpSignature((), (Split(i),)) for i in range(ndim)]


class Constant(Op):
    """Every element is `value`."""

    name = "constant"

    @staticmethod
    def infer(*, shape: Shape, dtype: DType, value: Number) -> TensorType:
        if isinstance(value, float) and (dtype.is_integer or dtype is bool_):
            raise DTypeError(f"constant: {dtype.name} cannot hold the float {value}")
        return source_type("constant", shape, dtype)

    @staticmethod
    def sbp(*, shape: Shape, dtype: DType, value: Number) -> list[SbpSignature]:
        # Which rank of a group would hold the value is not known per axis; zeros need no such
        # choice.
        sums = [SbpSignature((), (PARTIAL,))] if value == 0 and dtype is not bool_ else []
        return source_signatures(len(shape)) + sums

    @staticmethod
    def uniform(*, shape: Shape, dtype: DType, value: Number) -> Collection[int]:
        return range(len(shape))


constant = declare(Constant)


class Arange(Op):
    """start + i * step for i in 0 .. length - 1. `offset` is the i of the first element of a
    shard."""

    name = "arange"

    @staticmethod
    def infer(*, start: Number, step: Number, length: int, dtype: DType) -> TensorType:
        return source_type("arange", (length,), dtype)

    @staticmethod
    def sbp(**_: object) -> list[SbpSignature]:
        return source_signatures(1)

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        box = out_boxes[0]
        return {**attrs, "offset": box.starts[0], "length": box.shape[0]}


arange = declare(Arange)


class Eye(Op):
    """Ones on the main diagonal of a (rows, columns) matrix. `offset`: how far a shard's own
    diagonal lies right of it."""

    name = "eye"

    @staticmethod
    def infer(*, rows: int, columns: int, dtype: DType) -> TensorType:
        return source_type("eye", (rows, columns), dtype)

    @staticmethod
    def sbp(**_: object) -> list[SbpSignature]:
        return source_signatures(2)

    @staticmethod
    def localize(attrs: Attrs, in_boxes: Boxes, out_boxes: Boxes) -> Attrs:
        box = out_boxes[0]
        rows, columns = box.shape
        offset = box.starts[0] - box.starts[1]
        return {**attrs, "rows": rows, "columns": columns, "offset": offset}


eye = declare(Eye)
