"""The one tensor class: local (an array), global (this rank's shard) or traced (a value of a graph
being built).

Internal code makes tensors with `wrap`, `wrap_global` and `wrap_traced`; `Tensor(...)` is the
constructor users know. Methods that compute are functions of `oneflow.functional`, attached by
`oneflow/functional/methods.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np

from oneflow.core.config import current_config
from oneflow.core.device import Device
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import (
    AutogradError,
    CallError,
    DeviceError,
    DTypeError,
    GraphError,
    OneFlowError,
    PlacementError,
    ShapeError,
)
from oneflow.core.location import called_function
from oneflow.core.operand import Index, Number, TensorLike, Tensors
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.size import Size
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, GpuArray
from oneflow.kernels.hardware import class_of
from oneflow.tensor.formats import layout, strided
from oneflow.tensor.grad_mode import switches
from oneflow.tensor.modes import current_global_mode
from oneflow.tensor.table_methods import TableMethods

if TYPE_CHECKING:
    from typing import TypeGuard

    from numpy.typing import ArrayLike
    from typing_extensions import Unpack

    from oneflow.core.graph import Value
    from oneflow.tensor.creation_like import Place
    from oneflow.tensor.overlapping import Later
    from oneflow.tensor.views import View

T = TypeVar("T", bound="Tensor")
Hook = Callable[["Tensor"], Any]


class Extra:
    """The rare members of a tensor: gradient hooks, the tensor it is a view of, the one that it was
    before its shape was changed in place, a wish to keep the gradient, the calls of workers that
    its memory waits for (oneflow/tensor/overlapping.py).
    """

    __slots__ = (
        "copied",
        "former",
        "global_id",
        "hooks",
        "later",
        "post_accumulate",
        "retains",
        "root",
        "view",
    )

    def __init__(self) -> None:
        self.hooks: dict[int, Hook] = {}
        self.post_accumulate: dict[int, Hook] = {}
        self.view: View | None = None
        self.root: Tensor | None = None
        self.former: tuple[int, Tensor] | None = None
        """The last version with another shape, and the tensor of that shape (views.become)."""
        self.copied = False
        """Is it a copy in a graph where eager code has a view? Then it cannot be written to."""
        self.retains = False
        self.global_id: int | None = None
        self.later: Later | None = None


class UnseenVersion(list[int]):
    """The version of an alias whose writes autograd does not see: they are counted for it, and
    besides, behind the version of the tensor, for callers that keep results of the values.
    """

    def __init__(self, seen: list[int]) -> None:
        super().__init__((0,))
        self._seen = seen

    def __setitem__(self, index: object, value: object) -> None:
        assert isinstance(index, int) and isinstance(value, int)
        super().__setitem__(index, value)
        if len(self._seen) == 1:
            self._seen.append(0)
        self._seen[1] += 1


class Tensor(TableMethods):
    """An n-dimensional array of one element type.

    meta: shape and dtype (global ones if global).  data: the same memory as a tensor that autograd
    does not watch.  value: the graph value if traced, else None.  grad: the accumulated gradient or
    None.  Internal code finds the local array, or this rank's shard, in `_array` (None if traced).
    Attributes of a user's own are kept by deepcopy and pickle, and by no op.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "_array",
        "_device",
        "_extra",
        "_grad",
        "_grad_fn",
        "_out_index",
        "_placement",
        "_requires_grad",
        "_sbp",
        "_version",
        "meta",
        "value",
    )
    __array_priority__ = 1000
    _unread: Tensor | None = None
    """The tensor to hand to an op that reads its type alone, if it is another (modified.py)."""
    keeps_attributes = True
    """Whether deepcopy copies attributes of a user's own."""

    meta: TensorType
    value: Any
    grad: Tensor | None
    _array: Any
    _device: Device
    _placement: Placement | None
    _sbp: NdSbp | None
    _requires_grad: bool
    _grad: Tensor | None
    _grad_fn: Any
    _out_index: int
    _version: list[int]
    """The number of writes; that of writes which autograd does not see; and the numbers at which
    the shape of a tensor of this memory was changed in place."""
    _extra: Extra | None

    if TYPE_CHECKING:
        # What functional/methods.py attaches; operators must be named for type checkers.
        def __new__(
            cls,
            *args: ArrayLike,
            dtype: DType | None = None,
            requires_grad: bool = False,
            **where: Unpack[Place],
        ) -> Tensor: ...
        def backward(
            self,
            gradient: Tensor | None = None,
            retain_graph: bool | None = False,
            create_graph: bool = False,
            inputs: Tensors | None = None,
        ) -> None: ...
        def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]: ...
        def _read_values(self) -> np.ndarray[Any, Any]: ...
        def __repr__(self) -> str: ...
        def __deepcopy__(self, memo: dict[int, Any]) -> Tensor: ...
        def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]: ...
        def __getitem__(self, index: Index) -> Tensor: ...
        def __setitem__(self, index: Index, value: ArrayLike) -> None: ...
        def __add__(self, other: TensorLike) -> Tensor: ...
        def __radd__(self, other: TensorLike) -> Tensor: ...
        def __sub__(self, other: TensorLike) -> Tensor: ...
        def __rsub__(self, other: TensorLike) -> Tensor: ...
        def __mul__(self, other: TensorLike) -> Tensor: ...
        def __rmul__(self, other: TensorLike) -> Tensor: ...
        def __truediv__(self, other: TensorLike) -> Tensor: ...
        def __rtruediv__(self, other: TensorLike) -> Tensor: ...
        def __floordiv__(self, other: TensorLike) -> Tensor: ...
        def __mod__(self, other: TensorLike) -> Tensor: ...
        def __pow__(self, other: TensorLike) -> Tensor: ...
        def __rpow__(self, other: TensorLike) -> Tensor: ...
        def __matmul__(self, other: TensorLike) -> Tensor: ...
        def __and__(self, other: TensorLike) -> Tensor: ...
        def __or__(self, other: TensorLike) -> Tensor: ...
        def __xor__(self, other: TensorLike) -> Tensor: ...
        def __lt__(self, other: Tensor | Number) -> Tensor: ...
        def __le__(self, other: Tensor | Number) -> Tensor: ...
        def __gt__(self, other: Tensor | Number) -> Tensor: ...
        def __ge__(self, other: Tensor | Number) -> Tensor: ...
        def __eq__(self, other: TensorLike) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: TensorLike) -> Tensor: ...  # type: ignore[override]
        def __neg__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...

    # ---- what it is ------------------------------------------------------------------------------

    @property
    def shape(self) -> Size:
        return Size(self.meta.shape)

    @property
    def dtype(self) -> DType:
        return self.meta.dtype

    @property
    def ndim(self) -> int:
        return len(self.meta.shape)

    @property
    def data(self) -> Tensor:
        """A tensor over the same memory, without history, whose writes autograd does not see:
        `p.data.fill_(0)` works on a leaf, and a backward pass that saved `p` uses the new values.

        `p.data = t` makes `p` a tensor over the memory of `t` (a tensor or an array), with its
        shape, dtype and place; history, gradient and identity of `p` stay.

        While nn.Graph.build is traced, a backward pass is told of such writes: it would have saved
        the old values.
        """
        if self._is_apart():
            return self.detach()
        other = alias(self)
        other._version = UnseenVersion(self._version)
        return other

    @data.setter
    def data(self, new: Tensor | Array) -> None:
        source = new if isinstance(new, Tensor) else wrap(np.asarray(new))
        if source.value is not None and self.value is None:
            needs_data(source, "assigning to .data of a tensor made outside the graph")
        if source._array is not self._array:
            switches.count += 1  # graphs work on the memory that it had
            if self._extra is not None:
                self._extra.view = None
                self._version = [self._version[0]]
        if _place_and_type(source) != _place_and_type(self):
            self._version[0] += 1  # what a backward pass saved of it no longer fits
        self.meta, self._array, self.value = source.meta, source._array, source.value
        self._placement, self._sbp, self._device = source._placement, source._sbp, source._device

    @property
    def device(self) -> Device:
        """The device of a local tensor. Raises for a global one, which is on many devices."""
        if self._placement is not None:
            if current_global_mode().is_enabled:
                return Device(self._placement.type)
            raise DeviceError(
                "Only local tensors have 'device'. Please use '.placement' for global tensors."
            )
        return self._device

    @property
    def placement(self) -> Placement:
        """The ranks that hold a global tensor. Raises for a local one."""
        if self._placement is None:
            raise PlacementError(
                "Only global tensors have 'placement'. Please use '.device' for local tensors."
            )
        return self._placement

    @property
    def layout(self) -> layout:
        """`flow.strided`: tensors of no other kind exist."""
        return strided

    @property
    def sbp(self) -> NdSbp:
        """The layout of a global tensor, one SBP per axis of its placement. Raises for a local
        tensor.

        While nn.Graph.build is traced: the choice of eager execution, where the user has not
        chosen. The compiler, which chooses otherwise, keeps to a layout that was asked for.
        """
        if self._placement is None:
            raise PlacementError("Only global tensors have 'sbp', but got a local tensor.")
        if self._sbp is None:
            self._sbp = current_mode().layout(self, is_fixed=True)
        return self._sbp

    @property
    def is_global(self) -> bool:
        return self._placement is not None

    @property
    def is_local(self) -> bool:
        return self._placement is None

    @property
    def is_lazy(self) -> bool:
        """True for a value of a graph under construction."""
        return self.value is not None

    @property
    def is_eager(self) -> bool:
        return self.value is None

    @property
    def is_cuda(self) -> bool:
        return device_type(self) == "cuda"

    @property
    def is_cpu(self) -> bool:
        return device_type(self) == "cpu"

    # ---- autograd --------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        if self._extra is not None and self._extra.view is not None:
            return bool(self._extra.view.is_differentiable(self))
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, wanted: bool) -> None:
        if wanted and not (self.meta.dtype.is_floating_point or self.meta.dtype.is_complex):
            raise AutogradError(
                f"only Tensors of floating point can require gradients, this one is {self.meta}"
            )
        if not wanted and self._grad_fn is not None:
            raise AutogradError(
                "you can only change requires_grad flags of leaf variables; use detach() instead"
            )
        if wanted != self._requires_grad:
            switches.count += 1
        self._requires_grad = bool(wanted)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Sets `requires_grad` and returns self."""
        self.requires_grad = requires_grad
        return self

    def _set_grad(self, new: Tensor | None) -> None:
        if new is not None:
            check_assigned(self, new)
        self._grad = new

    def _del_grad(self) -> None:
        self._grad = None

    if not TYPE_CHECKING:
        grad = property(
            attrgetter("_grad"),
            _set_grad,
            _del_grad,
            "The accumulated gradient; None if there is none. Assigning one of another type or "
            "place than the tensor's is an error.",
        )

    @property
    def grad_fn(self) -> Any:
        self._renew()
        return self._grad_fn

    @property
    def is_leaf(self) -> bool:
        self._renew()
        return self._grad_fn is None

    def _renew(self) -> None:
        """Bring the history up to date, if this is a view whose base has been written to."""
        if self._extra is not None and self._extra.view is not None:
            self._extra.view.renew(self)

    def __init_subclass__(cls, **options: object) -> None:
        """Calls with an instance of a class that a program defines ask it; see
        compat/torch/subclasses.py.
        """
        super().__init_subclass__(**options)
        if cls.__module__.partition(".")[0] != "oneflow":
            getattr(cls, "_subclassed")(cls)  # noqa: B009 - a method of the public table

    def detach(self) -> Tensor:
        """The same memory without history."""
        other = alias(self)
        other._requires_grad = False
        if self._is_apart() or (self._extra is not None and self._extra.view is not None):
            current_mode().share(self, other)
        return other

    def _is_apart(self) -> bool:
        """Whether writes to an alias do not reach all by themselves: to a value of a graph, or to a
        view whose values are its own."""
        view = self._extra.view if self._extra is not None else None
        return self.value is not None or (view is not None and view.taken_at >= 0)

    def retain_grad(self) -> None:
        """Keeps `.grad` of a tensor that is not a leaf."""
        self._renew()
        if not self._requires_grad:
            raise AutogradError("can't retain_grad on Tensor that has requires_grad=False")
        extra(self).retains = True
        if self._grad_fn is not None:
            self._grad_fn.watch(self)

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Call `hook(grad)` when the gradient of this tensor is known; the result replaces it."""
        self._renew()
        if not self._requires_grad:
            raise AutogradError("cannot register a hook on a tensor that doesn't require gradient")
        if self._grad_fn is not None:
            return RemovableHandle(self._grad_fn.hooks_of(self._out_index), hook)
        return RemovableHandle(extra(self).hooks, hook)

    def _register_post_grad_accumulation_hook(self, hook: Hook) -> RemovableHandle:
        """Calls `hook(grad)` each time `.grad` of this leaf has been added to."""
        if self._grad_fn is not None or not self._requires_grad:
            raise AutogradError("a post grad accumulation hook needs a leaf that requires gradient")
        return RemovableHandle(extra(self).post_accumulate, hook)

    def register_post_accumulate_grad_hook(self, hook: Hook) -> RemovableHandle:
        """Calls `hook(tensor)` each time `.grad` of this leaf has been added to."""
        me = weakref.ref(self)  # which holds the hooks

        def accumulated(_: Tensor) -> None:
            leaf = me()
            if leaf is not None and hook(leaf) is not None:
                raise AutogradError("hooks registered to post_accumulate_grad must return None")

        return self._register_post_grad_accumulation_hook(accumulated)

    # ---- python ----------------------------------------------------------------------------------

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def item(self) -> Any:
        """The only element as a Python number. Global: every rank of the world must call it."""
        if self.meta.numel != 1:
            raise OneFlowError(
                "only one element tensors can be converted to Python scalars, "
                f"but got {self.meta} with {self.meta.numel} elements"
            )
        if self.value is not None:
            needs_data(self, "item()")
        return self._read_values().item()

    def tolist(self) -> Any:
        if self.value is not None:
            needs_data(self, "tolist()")
        return self._read_values().tolist()

    def __bool__(self) -> bool:
        if self.meta.numel != 1:
            raise OneFlowError(
                "bool value of Tensor with more than one value is ambiguous"
                if self.meta.numel
                else "bool value of Tensor with no values is ambiguous"
            )
        if self.value is not None:
            needs_data(self, "a condition", _CHOICE)
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.meta.dtype.is_integer:
            raise CallError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __dlpack__(self, **options: object) -> object:
        """A DLPack capsule over the memory of a local tensor, for `from_dlpack` of any library."""
        needs_data(self, "__dlpack__()")
        from oneflow.tensor.dlpack import capsule_of  # few programs need it

        return capsule_of(self._array, options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and number of the device that the memory is on, in DLPack's words."""
        needs_data(self, "__dlpack_device__()")
        kind, index = self._array.__dlpack_device__()
        return int(kind), int(index)

    def __len__(self) -> int:
        if not self.meta.shape:
            raise CallError("len() of a 0-d tensor")
        return self.meta.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.meta.shape:
            raise CallError("iteration over a 0-d tensor")
        return iter([self[i] for i in range(self.meta.shape[0])])

    def __contains__(self, element: TensorLike) -> bool:
        return bool((self == element).any())

    __hash__ = object.__hash__

    def __format__(self, spec: str) -> str:
        return (
            format(self.item(), spec) if not self.meta.shape and self.value is None else repr(self)
        )


class RemovableHandle:
    """Takes a hook away again: `handle.remove()`, or leave a with-block."""

    _next = 0

    def __init__(self, hooks: dict[int, Any], hook: Callable[..., Any] | None = None) -> None:
        """hook: entered under the handle's id; None if the caller enters it."""
        RemovableHandle._next += 1
        self.id = RemovableHandle._next
        self._hooks = hooks
        if hook is not None:
            hooks[self.id] = hook

    def remove(self) -> None:
        self._hooks.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


# ---- how internal code makes tensors -------------------------------------------------------------

_new = object.__new__
_cpu: Device | None = None


def cpu_device() -> Device:
    """`cpu:<local rank>`."""
    global _cpu
    if _cpu is None or _cpu.index != current_config().local_rank:
        _cpu = Device("cpu")
    return _cpu


def raw(type_: TensorType, array: Array | GpuArray | None, device: Device) -> Tensor:
    """A local tensor without any check; `array` must be of that type and on that device."""
    x: Tensor = _new(Tensor)
    x.meta = type_
    x._array = array
    x._device = device
    x._placement = x._sbp = x.value = x._grad = x._grad_fn = x._extra = None
    x._requires_grad = False
    x._out_index = 0
    x._version = [0]
    return x


def wrap(array: Array, device: Device | None = None, *, requires_grad: bool = False) -> Tensor:
    """A local tensor over `array` (NumPy or CuPy; memory is shared)."""
    if device is None:
        device = cpu_device() if isinstance(array, np.ndarray) else _device_of(array)
    x = raw(TensorType(tuple(array.shape), dtype_of(array.dtype)), array, device)
    if requires_grad:
        x.requires_grad = True
    return x


def _device_of(array: Array) -> Device:
    kind = class_of(array)
    return Device(kind.kind, kind.index_of(array))


def wrap_global(shard: Array, type_: TensorType, placement: Placement, sbp: NdSbp) -> Tensor:
    """A global tensor. shard: this rank's array; outside the placement any empty array.  type_: of
    the whole.
    """
    x = raw(type_, shard, cpu_device() if placement.type == "cpu" else Device(placement.type))
    x._placement, x._sbp = placement, sbp
    return x


def wrap_traced(
    value: Value,
    type_: TensorType,
    *,
    placement: Placement | None = None,
    sbp: NdSbp | None = None,
    device: Device | None = None,
) -> Tensor:
    """A tensor that stands for `value` of a graph under construction; global if it has a
    placement.
    """
    if device is None:
        kind = "cpu" if placement is None else placement.type
        device = cpu_device() if kind == "cpu" else Device(kind)
    x = raw(type_, None, device)
    x.value, x._placement, x._sbp = value, placement, sbp
    return x


def _place_and_type(x: Tensor) -> tuple[Any, ...]:
    return x.meta, x._device, x._placement, x._sbp


def alias(x: Tensor) -> Tensor:
    """Another tensor object over the same values and version counter, without history."""
    if x._extra is not None and x._extra.view is not None:
        x._extra.view.refresh(x)
    y = raw(x.meta, x._array, x._device)
    y.value, y._placement, y._sbp, y._version = x.value, x._placement, x._sbp, x._version
    return y


MEMBERS: tuple[str, ...] = Tensor.__slots__[2:]
"""The members of a tensor, without the attributes of a user's own."""


def adopt(cls: type[T], x: Tensor) -> T:
    """`x` as an instance of a subclass (nn.Parameter), over the same memory and without history."""
    y: T = _new(cls)
    for name in MEMBERS:
        setattr(y, name, getattr(x, name))
    y._grad_fn = y._extra = y._grad = None
    return y


def extra(x: Tensor) -> Extra:
    found = x._extra
    if found is None:
        found = x._extra = Extra()
    return found


def device_type(x: Tensor) -> str:
    """The kind of device ("cpu", "cuda", ...), of local and global tensors alike."""
    return x._placement.type if x._placement is not None else x._device.type


READ_OUTSIDE = "return the tensor from build() and read it outside"
KEEP_SHAPE = (
    "flow.where(mask, x, 0), masked_fill and products with a mask keep the shape; what is to have "
    "fewer elements is taken outside of build()"
)
_NUMBER = (
    "keep it a tensor, as ops take one without dims where they take a number, or return it from "
    "build() and read it outside"
)
_COUNT = (
    "take sizes, bounds and places from shapes, or from numbers made outside of build(); "
    "flow.gather and index_select take places that are tensors"
)
_CHOICE = (
    "flow.where(condition, a, b), maximum and minimum choose in a graph, and a check may be left "
    "out where flow.jit.is_tracing()"
)
_VALUES = {
    "item": ("item()", _NUMBER),
    "to_numpy": ("numpy()", READ_OUTSIDE),
    "__array__": ("np.asarray(x)", READ_OUTSIDE),
    "__float__": ("float(x)", _NUMBER),
    "__complex__": ("complex(x)", _NUMBER),
    "__int__": ("int(x)", _COUNT),
    "__index__": ("a tensor as an int", _COUNT),
    "__bool__": ("a condition (`if x`, `and`, `max(x, y)`)", _CHOICE),
    "__contains__": ("`y in x`", _CHOICE),
    "tensor": ("tensor()", "flow.stack joins tensors to one"),
    "equal": ("equal()", _CHOICE),
    "allclose": ("allclose()", _CHOICE),
}
"""The user's words for a call that wants values, and what to write instead, by function."""
_OPERATORS = {"getitem": "x[...]", "setitem": "x[...] = y"}


def needs_data(x: Tensor, what: str, instead: str = READ_OUTSIDE) -> None:
    """Raises GraphError if `x` is traced: `what` wants values, and a graph under construction has
    none; BatchingError if each of many samples has its own. instead: what to write.
    """
    if x.value is None:
        return
    called = called_function()
    if called in _VALUES:
        what, instead = _VALUES[called]
    elif called not in what:
        called = _OPERATORS.get(called, f"{called}()")
        is_number = what in ("item()", "tolist()")
        what = f"{called} with a tensor in place of a number" if is_number else f"{called}: {what}"
        instead = _COUNT if is_number else instead
    if hasattr(x.value, "refuse"):
        x.value.refuse(what, x.meta)
        return
    raise GraphError(
        f"{what} needs the values of {x.meta}, which do not exist while nn.Graph.build is traced; "
        f"{instead}"
    )


def is_tensor(x: object) -> TypeGuard[Tensor]:
    """True for a Tensor."""
    return isinstance(x, Tensor)


# ---- gradients that users give: assigned to `.grad`, or returned by hooks ------------------------


def check_assigned(x: Tensor, grad: object) -> None:
    """Raise an error unless `grad` can be the gradient of `x`: of its type and in its place."""
    if not isinstance(grad, Tensor):
        raise CallError(
            f"assigned grad expected to be a Tensor or None but got grad of type "
            f"{type(grad).__name__}"
        )
    if grad is x:
        raise AutogradError("can't assign Variable as its own grad")
    have, want = grad.meta, x.meta
    if have.shape != want.shape:
        raise ShapeError(
            f"attempting to assign a gradient of size '{list(have.shape)}' to a tensor of size "
            f"'{list(want.shape)}'. Please ensure that the gradient and the tensor are the same "
            "size"
        )
    if have.dtype is not want.dtype:
        raise DTypeError(
            f"attempting to assign a gradient with dtype '{have.dtype.name}' to a tensor of dtype "
            f"'{want.dtype.name}'. The gradient must have the dtype of the tensor; "
            f"use grad.to({want.dtype})"
        )
    if x.value is None and grad.value is None:
        _check_place(x, grad)


def _check_place(x: Tensor, grad: Tensor) -> None:
    if (grad._placement is None) != (x._placement is None):
        kinds = ["local" if t._placement is None else "global" for t in (grad, x)]
        raise DeviceError(
            f"attempting to assign a {kinds[0]} gradient to a {kinds[1]} tensor; "
            "use to_global(placement, sbp), or to_local()"
        )
    have, want = grad._device.type, x._device.type
    if have != want:
        raise DeviceError(
            f"attempting to assign a gradient with device type '{have}' to a tensor with device "
            f"type '{want}'. Please ensure that the gradient and the tensor are on the same device"
        )


def check_replaced(hook: Callable[..., Any], old: Tensor, new: object) -> None:
    """Raise an error unless `new`, which `hook` returned for the gradient `old`, can replace
    it.
    """
    name = f"hook '{getattr(hook, '__name__', type(hook).__name__)}'"
    if not isinstance(new, Tensor):
        raise CallError(
            f"expected Variable, but hook returned '{type(new).__name__}': {name} must return a "
            "Tensor or None"
        )
    if new.meta.dtype is not old.meta.dtype:
        raise DTypeError(
            f"{name} has changed the type of value (was {old.meta.dtype} got {new.meta.dtype})"
        )
    if new.meta.shape != old.meta.shape:
        raise ShapeError(
            f"{name} has changed the size of value (was {list(old.meta.shape)} got "
            f"{list(new.meta.shape)})"
        )
    if (new._placement is None) != (old._placement is None):
        kinds = ["local" if t._placement is None else "global" for t in (old, new)]
        raise DeviceError(f"{name} has changed the value from a {kinds[0]} to a {kinds[1]} tensor")
