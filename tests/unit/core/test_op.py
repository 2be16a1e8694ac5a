"""A declaration is called, and says which attrs it takes."""

from __future__ import annotations

from typing import Any

import pytest

from oneflow.core.dispatch import use_mode
from oneflow.core.dtype import float32
from oneflow.core.errors import CallError, InternalError
from oneflow.core.op import Op, infer_types, row
from oneflow.core.tensor_type import TensorType
from oneflow.ops.conv import Conv, ConvDataGrad
from oneflow.ops.matmul import Matmul, matmul


class Recorder:
    """A mode that remembers the calls."""

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        return op, inputs, attrs


def test_calling_a_declaration_runs_it_with_what_is_given() -> None:
    with use_mode(Recorder()):
        assert matmul("a", "b", transpose_b=True) == (Matmul, ("a", "b"), {"transpose_b": True})


def test_attrs_come_from_the_signature_of_infer_and_from_its_typed_dict() -> None:
    assert Matmul.attrs == {"transpose_a", "transpose_b"}
    assert ConvDataGrad.attrs == {"spatial", "stride", "padding", "dilation", "groups"}


def test_a_wrong_or_missing_attr_is_named_with_those_the_op_has() -> None:
    x = TensorType((2, 2), float32)
    with pytest.raises(CallError, match=r"matmul has no attribute 'transpse_b'; .*transpose_b"):
        infer_types(Matmul, (x, x), {"transpse_b": True})
    with pytest.raises(CallError, match=r"conv needs the attribute padding; .*stride"):
        infer_types(Conv, (x, x), {"stride": (1,), "dilation": (1,), "groups": 1})


def test_a_name_is_declared_once() -> None:
    with pytest.raises(InternalError, match="'matmul' is missing or taken"):
        row("matmul", Matmul.infer, doc="a second one")
