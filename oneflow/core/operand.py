"""The types of the operands, attributes and results of ops, for declarations and type checkers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from oneflow.core.dtype import DType
from oneflow.core.tensor_type import TensorType

Number: TypeAlias = bool | int | float

Attr: TypeAlias = "bool | int | float | str | DType | tuple[Attr, ...] | None"
"""One attribute of an op."""

Attrs: TypeAlias = dict[str, Any]
"""The attributes of an op, an `Attr` each: of the type that `infer` of that op gives its name."""


def attrs_key(attrs: Attrs) -> str:
    """Text that is equal exactly for equal attributes (1, 1.0 and True differ); one object for
    each, so that tables find it without comparing."""
    return sys.intern(repr(sorted(attrs.items()))) if attrs else ""


class Operand(Protocol):
    """An input of an op: a tensor where the op is called, its TensorType in `infer`.

    The parameters of `Op.infer` have this type, so that the one signature there holds for both.
    """

    @property
    def meta(self) -> TensorType: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def ndim(self) -> int: ...


if TYPE_CHECKING:
    from types import EllipsisType

    import numpy as np

    # Only the name: a caller in the front end gets its own class back from an op.
    from oneflow.tensor.tensor import Tensor as Tensor
else:
    Tensor = Operand

Tensors: TypeAlias = "Tensor | Sequence[Tensor]"
"""One tensor, or several."""

TensorLike: TypeAlias = "Tensor | Number | np.ndarray[Any, Any] | np.number[Any] | np.bool_"
"""An operand as users give it: a number is one for every element."""

ShapeLike: TypeAlias = "Tensor | tuple[int, ...] | list[int] | int"
"""Sizes as users give them: `f(2, 3)`, `f((2, 3))`, `f(x.shape)`, also as a tensor of integers."""

IndexItem: TypeAlias = (
    "int | slice | Tensor | np.ndarray[Any, Any] | np.integer[Any] | np.bool_ | list[Any]"
    " | range | EllipsisType | None"
)
Index: TypeAlias = "IndexItem | tuple[IndexItem, ...]"
"""The index in `x[index]`."""

DimLike: TypeAlias = "int | tuple[int, ...] | list[int] | None"
"""A dim, several, or None for all."""

Gradient: TypeAlias = Tensor | Callable[[], Tensor | None] | None
"""One input's gradient: a tensor, None, or a function called only if that gradient is needed."""

Gradients: TypeAlias = tuple[Gradient, ...]
