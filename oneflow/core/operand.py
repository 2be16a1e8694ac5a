"""The types of what goes into ops and comes out of them, for declarations and type checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from oneflow.core.dtype import DType
from oneflow.core.tensor_type import TensorType

Attr = Any  # None, bool, int, float, str, DType, or a tuple of these
Attrs: TypeAlias = dict[str, Attr]


class Operand(Protocol):
    """An input of an op: a tensor where the op is called, its TensorType in `infer`.

    The parameters of `Op.infer` have this type, so that the one signature there holds for both.
    """

    @property
    def type(self) -> TensorType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def ndim(self) -> int: ...


if TYPE_CHECKING:
    # Only the name: a caller in the front end gets its own class back from an op.
    from oneflow.tensor.tensor import Tensor as Tensor
else:
    Tensor = Operand

Gradient: TypeAlias = Tensor | Callable[[], Tensor | None] | None
"""One input's gradient: a tensor, None, or a function called only if that gradient is needed."""

Gradients: TypeAlias = tuple[Gradient, ...]
