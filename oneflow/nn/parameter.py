"""A tensor that a module owns and an optimizer may update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oneflow.functional.from_data import tensor
from oneflow.tensor.tensor import Tensor, adopt

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class Parameter(Tensor):
    """`Parameter(data, requires_grad=True)`: over the memory of `data`, without its history.

    data: a tensor, or what `tensor()` takes. Assigned to a module's attribute it becomes one of its
    parameters.
    """

    def __new__(cls, data: ArrayLike | None = None, requires_grad: bool = True) -> Parameter:
        source = data if isinstance(data, Tensor) else tensor([] if data is None else data)
        made: Parameter = adopt(cls, source.detach())
        made.requires_grad = requires_grad
        return made

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """`Buffer(data, persistent=True)`: assigned to a module's attribute it becomes one of its
    buffers, over the memory of `data`.

    persistent: `state_dict()` contains it.
    """

    persistent: bool

    def __new__(cls, data: ArrayLike | None = None, *, persistent: bool = True) -> Buffer:
        source = data if isinstance(data, Tensor) else tensor([] if data is None else data)
        made: Buffer = adopt(cls, source.detach())
        made.persistent = persistent
        return made
