"""One node of a model while it runs: its inputs as tensors or as numbers known here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from oneflow.core.dtype import DType, dtype_of
from oneflow.functional.from_data import beside, tensor
from oneflow.onnx.errors import OnnxImportError
from oneflow.surfaces import find
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    import onnx

Array = np.ndarray[Any, Any]
Value: TypeAlias = Tensor | Array
"""A tensor, or an array of numbers that are known while a program is traced, as shapes are."""


@dataclass
class Step:
    """A node and its inputs.

    numbers: of the inputs that are known, None for others.  opset: of the model.  like: a tensor
    beside which others are made.
    """

    node: onnx.NodeProto
    attrs: dict[str, Any]
    inputs: list[Value | None]
    numbers: list[Array | None]
    opset: int
    like: Tensor | None

    def has(self, index: int) -> bool:
        return index < len(self.inputs) and self.inputs[index] is not None

    def x(self, index: int = 0) -> Tensor:
        """An input as a tensor."""
        value = self.inputs[index] if self.has(index) else None
        if isinstance(value, Tensor):
            return value
        if value is None:
            raise self.refuse(f"lacks input {index}")
        made: Tensor = tensor(value) if self.like is None else beside(self.like, value)
        return made

    def maybe(self, index: int) -> Tensor | None:
        return self.x(index) if self.has(index) else None

    @property
    def tensors(self) -> list[Tensor]:
        return [self.x(i) for i in range(len(self.inputs))]

    def known(self, index: int) -> Array:
        """An input whose numbers are needed to trace the program. Raises OnnxImportError."""
        value = self.numbers[index]
        if value is None:
            raise self.refuse(
                f"needs input {index} ({self.node.input[index]}) as a constant, and it is computed "
                "from the inputs"
            )
        return value

    def ints(self, index: int, attr: str = "") -> list[int] | None:
        """Numbers of an input, or of the attribute that older operator sets have; None: neither."""
        if self.has(index):
            return [int(v) for v in self.known(index).reshape(-1)]
        found = self.attrs.get(attr)
        return None if found is None else [int(v) for v in found]

    def get(self, name: str, default: Any = None) -> Any:
        return self.attrs.get(name, default)

    def refuse(self, reason: str) -> OnnxImportError:
        name = self.node.name or ", ".join(self.node.output)
        return OnnxImportError(f"onnx.load: {self.node.op_type} (node {name!r}) {reason}")


Operator = Callable[[Step], Any]
OPERATORS: dict[str, Operator] = {}
"""The function that runs each operator: of a step, to a tensor or a tuple of these."""


def runs(*kinds: str) -> Callable[[Operator], Operator]:
    """Decorator: the function runs the operators of these names."""

    def enter(function: Operator) -> Operator:
        for kind in kinds:
            OPERATORS[kind] = function
        return function

    return enter


def flow(name: str) -> Callable[..., Any]:
    """A public function of tensors, by its name."""
    found: Callable[..., Any] = find("flow", name)
    return found


def layer(name: str) -> Callable[..., Any]:
    """A function of `nn.functional`, by its name."""
    found: Callable[..., Any] = find("F", name)
    return found


def dtype_numbered(number: int) -> DType:
    """The dtype for a number of ONNX."""
    from onnx import helper

    return dtype_of(helper.tensor_dtype_to_np_dtype(number))


def constant(like: Tensor, array: Array) -> Tensor:
    """An array as a tensor of the dtype of another one, beside it."""
    made: Tensor = beside(like, array.astype(like.dtype.np))
    return made
