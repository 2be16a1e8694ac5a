"""A tensor that a module owns and an optimizer may update."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike, float32
from oneflow.core.sbp import Split
from oneflow.functional.creation import empty
from oneflow.functional.from_data import tensor
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.shortcuts import count_as_tensor
from oneflow.tensor.tensor import Tensor, adopt

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class ParameterClass(type):
    """The class of Parameter. A program with subclasses of Tensor lets `isinstance` find tensors of
    these that are parameters (compat/torch/subclasses.py).
    """


class Parameter(Tensor, metaclass=ParameterClass):
    """`Parameter(data, requires_grad=True)`: over the memory of `data`, without its history.

    data: a tensor, or data that `tensor()` takes. Assigned to a module's attribute it becomes one
    of its parameters.
    """

    keeps_attributes = False

    def __new__(cls, data: ArrayLike | None = None, requires_grad: bool = True) -> Parameter:
        source = data if isinstance(data, Tensor) else tensor([] if data is None else data)
        made: Parameter = adopt(cls, source.detach())
        made.requires_grad = requires_grad
        return made

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


count_as_tensor(Parameter)


class RowTable(Parameter):
    """The shadow of tables whose rows are no tensors (oneflow/ops/one_embedding.py): a parameter by
    which optimizers update rows.

    table: the description of the tables.  forget: called when the gradient is taken away, as that
    of rows then is, too.  As a global tensor a shadow is split over the ranks, for any layout of
    its module: so rows are.
    """

    table: str
    forget: Callable[[], None] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_grad" and value is None and self.forget is not None:
            self.forget()
        if name in ("grad", "_grad") and isinstance(value, Tensor) and value.dtype is not float32:
            value = value.to(float32)  # of a module made half or double: the shadow stays float32
        super().__setattr__(name, _split(value) if name == "data" else value)


def _split(new: object) -> object:
    """A shadow as it is to lie: each rank its part."""
    if not isinstance(new, Tensor):
        return new
    whole = new.to(float32)
    if whole.is_global:
        whole = whole.to_global(sbp=tuple(Split(0) for _ in range(whole.placement.ndim)))
    return whole


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


class _Uninitialized(Tensor):
    """The common part of parameters and buffers whose shape is not known yet."""

    becomes: type[Tensor]

    def materialize(
        self,
        shape: tuple[int, ...],
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        """Gives it a shape and memory, and the class of an initialized one."""
        with no_grad():
            self.data = empty(
                shape,
                device=self.device if device is None else device,
                dtype=self.dtype if dtype is None else dtype,
            )
        changed: Any = self
        changed.__class__ = self.becomes

    @property
    def shape(self) -> Any:
        raise RuntimeError(
            "the shape of an uninitialized parameter or buffer is not known; call the lazy "
            "layer once, or load its state dict"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


class UninitializedParameter(_Uninitialized, Parameter):
    """A parameter whose shape is not known before `materialize(shape)`."""

    becomes = Parameter

    def __new__(
        cls,
        requires_grad: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> UninitializedParameter:
        blank = empty((0,), device=device, dtype=dtype)
        made: UninitializedParameter = adopt(cls, blank)
        made.requires_grad = requires_grad
        return made


class UninitializedBuffer(_Uninitialized, Buffer):
    """A buffer whose shape is not known before `materialize(shape)`."""

    becomes = Buffer

    def __new__(
        cls,
        requires_grad: bool = False,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> UninitializedBuffer:
        made: UninitializedBuffer = adopt(cls, empty((0,), device=device, dtype=dtype))
        made.persistent = True
        made.requires_grad = requires_grad
        return made


def is_lazy(x: object) -> bool:
    """Whether `x` is a parameter or buffer whose shape is not known yet."""
    return isinstance(x, _Uninitialized)


def materialize(x: Tensor | None, shape: tuple[int, ...]) -> None:
    """Gives a parameter or buffer its shape, if it has none yet."""
    if isinstance(x, _Uninitialized):
        x.materialize(shape)
