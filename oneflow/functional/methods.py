"""Operators of Tensor, and its methods that are no functions of `oneflow.functional`.

The public table (oneflow/api) says which methods there are; `install` attaches them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from oneflow import surfaces
from oneflow.autograd.api import backward
from oneflow.core.device import DeviceLike
from oneflow.core.dispatch import call, current_mode
from oneflow.core.dtype import DTypeLike, bool_, dtype_of
from oneflow.core.errors import ArgumentError, CallError, OneFlowError, PlacementError
from oneflow.core.op import OpClass
from oneflow.core.operand import Number, TensorLike, Tensors
from oneflow.core.placement import Placement
from oneflow.core.sbp import SbpLike, all_broadcast
from oneflow.functional import (
    arithmetic,
    complex_numbers,
    conversion,
    creation,
    elementwise,
    indexing,
    rearrange,
    shaping,
    strides,
)
from oneflow.functional.arithmetic import operator
from oneflow.functional.creation import full_like
from oneflow.functional.from_data import as_tensor, legacy_tensor, tensor
from oneflow.functional.linalg import products
from oneflow.functional.random_state import Generator
from oneflow.functional.shaping import expand
from oneflow.kernels.array import is_pinned as lies_pinned
from oneflow.kernels.hardware import address_of, hardware_class, hardware_for
from oneflow.ops import unary
from oneflow.tensor import on_ranks
from oneflow.tensor.convert import deep_copy, reduce_tensor, to_numpy, values_of
from oneflow.tensor.creation_like import Place, layout_of
from oneflow.tensor.formats import memory_format
from oneflow.tensor.grad_mode import is_grad_enabled, no_grad
from oneflow.tensor.inplace import check_writable, in_place, overwrite
from oneflow.tensor.layout import as_placement
from oneflow.tensor.printing import tensor_text
from oneflow.tensor.shortcuts import shortcut
from oneflow.tensor.tensor import Tensor, adopt, cpu_device, extra, needs_data, raw
from oneflow.tensor.views import become, owner_of, place_of, stand_in, view_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack


def _table(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = surfaces.find("flow", name)
    return function


def _later(name: str) -> Callable[..., Any]:
    """The function of the table, found when it is first called: its module is rarely needed."""

    def function(*args: object) -> Any:
        return _table(name)(*args)

    function.__name__ = name
    return function


OPERATORS: dict[str, Callable[..., Any]] = {
    "add": arithmetic.add,
    "sub": arithmetic.sub,
    "mul": arithmetic.mul,
    "truediv": arithmetic.div,
    "floordiv": arithmetic.floor_divide,
    "mod": arithmetic.remainder,
    "pow": arithmetic.pow,
    "and": _table("bitwise_and"),
    "lshift": _later("bitwise_left_shift"),
    "rshift": _later("bitwise_right_shift"),
    "or": _table("bitwise_or"),
    "xor": _table("bitwise_xor"),
    "matmul": products.matmul,
}
UNARY: dict[str, Callable[..., Any]] = {
    "neg": _table("neg"),
    "pos": lambda self: self,
    "abs": _table("abs"),
    "invert": _table("bitwise_not"),
    "getitem": shortcut(indexing.getitem),
    "setitem": indexing.setitem,
}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": arithmetic.eq,
    "ne": arithmetic.ne,
    "lt": arithmetic.lt,
    "le": arithmetic.le,
    "gt": arithmetic.gt,
    "ge": arithmetic.ge,
}


def _construct(cls: type[Tensor], *args: ArrayLike, **kwargs: Any) -> Tensor:
    """`Tensor(2, 3)`: an uninitialised float32 tensor of that shape; `Tensor([1, 2])`: of that
    data.

    Takes sizes, a list, an array or a tensor, and `device=`, or `placement=` with `sbp=`.
    """
    made = legacy_tensor(*args, **kwargs)
    return made if cls is Tensor else adopt(cls, made)


def _backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = False,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Adds d self / d leaf to `.grad` of every leaf that requires a gradient.

    gradient: of the same shape; may be left out for a tensor of one element.  inputs: the tensors
    whose `.grad` is added to, instead of all leaves.
    """
    backward(self, gradient, retain_graph, create_graph, inputs=inputs)


COMPLETING: dict[str, Callable[..., Any]] = {
    "__new__": _construct,
    "backward": _backward,
    "numpy": to_numpy,
    "_read_values": values_of,
    "__repr__": tensor_text,
    "__deepcopy__": deep_copy,
    "__reduce_ex__": reduce_tensor,
}
"""Methods of the class itself, made of what stands above."""


def _matrix_transpose(self: Tensor) -> Tensor:
    return shaping.permute(self, tuple(reversed(range(self.ndim))))


def install() -> None:
    """Gives Tensor its methods, operators and properties. Done once, when `oneflow.functional` is
    imported.
    """
    surfaces.install_methods(Tensor)
    type.__setattr__(OpClass, "__call__", shortcut(call))
    for name, function in OPERATORS.items():
        setattr(Tensor, f"__{name}__", shortcut(operator(function)))
        setattr(Tensor, f"__r{name}__", shortcut(operator(function, swap=True)))
        if name != "matmul":  # x @= y makes a new x, as in PyTorch: its shape may differ
            setattr(Tensor, f"__i{name}__", in_place(function))
    for name, function in COMPARISONS.items():
        setattr(Tensor, f"__{name}__", shortcut(operator(function)))
    for name, function in UNARY.items():
        setattr(Tensor, f"__{name}__", function)
    for name, function in PROPERTIES.items():
        setattr(Tensor, name, property(function))
    for name, function in COMPLETING.items():
        setattr(Tensor, name, function)


# ---- small ones that belong to tensors alone -----------------------------------------------------


def copy_(self: Tensor, source: ArrayLike, non_blocking: bool = False) -> Tensor:
    """Copies the values of `source`, broadcast and cast, into this tensor. non_blocking changes
    nothing.

    A global tensor takes a global one, through its own placement and sbp, or a number or an array
    that is the same on every rank. Arrays may also be written to a leaf that requires a gradient,
    outside of its history, as in OneFlow.
    """
    is_parameter = self._requires_grad and self._grad_fn is None
    if isinstance(source, np.ndarray) and is_parameter and is_grad_enabled():
        with no_grad():
            return copy_(self, source)
    check_writable(self)
    new = _source_of_copy(self, source)
    if self._placement is None and new._device != self._device:
        new = conversion.to(new, self._device)
    if new.meta.shape != self.meta.shape:
        new = expand(new, self.meta.shape)
    if self._requires_grad and is_grad_enabled():  # what was here before has a gradient: zeros
        everywhere = elementwise.cast(full_like(self.detach(), 1), bool_)
        new = elementwise.pick(everywhere, elementwise.cast(new, self.meta.dtype), self)
    return overwrite(self, new)


def _source_of_copy(x: Tensor, source: ArrayLike) -> Tensor:
    if not isinstance(source, Tensor) and x._placement is not None:
        return tensor(source, placement=x._placement, sbp=all_broadcast(x._placement.ndim))
    new = as_tensor(source)
    if x.is_global is not new.is_global:
        mine, other = ("global", "local") if x.is_global else ("local", "global")
        advice = "source.to_global(placement, sbp)" if x.is_global else "source.to_local()"
        raise PlacementError(
            f"copy_: Only {mine} tensor can be assigned to self when self is {mine}, but got a "
            f"{other} one, {new.meta}; copy {advice} instead"
        )
    return new


def fill_(self: Tensor, value: Number | Tensor) -> Tensor:
    """Sets every element to `value`, a number or a 0-d tensor, to which gradients go."""
    if isinstance(value, Tensor):
        return in_place(_table("fill"))(self, value)
    return overwrite(self, full_like(self, value))


def zero_(self: Tensor) -> Tensor:
    """Sets every element to 0."""
    return fill_(self, 0)


def uniform_(
    self: Tensor, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with numbers uniform over [a, b)."""
    if a > b:
        raise ArgumentError(
            f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}"
        )
    drawn = creation.rand_like(self, generator=generator)
    return _refilled(self, arithmetic.add(arithmetic.mul(drawn, b - a), a))


def normal_(
    self: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with normally distributed numbers."""
    if std < 0:
        raise ArgumentError(f"normal_ expects std >= 0.0, but found std {std}")
    drawn = creation.randn_like(self, generator=generator)
    return _refilled(self, arithmetic.add(arithmetic.mul(drawn, std), mean))


def exponential_(self: Tensor, lambd: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fills the tensor with numbers of the exponential distribution."""
    if not lambd > 0:
        raise ArgumentError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    drawn = creation.rand_like(self, generator=generator)
    rest = unary.log1p(unary.neg(drawn))
    return _refilled(self, arithmetic.div(rest, -lambd))


def random_(
    self: Tensor, low: int = 0, high: int | None = None, *, generator: Generator | None = None
) -> Tensor:
    """Fills the tensor with integers of low .. high - 1; `random_(high)` starts at 0."""
    bounds = (0, 2**31) if high is None and low == 0 else (0, low) if high is None else (low, high)
    return _refilled(self, creation.randint_like(self, *bounds, generator=generator))


def _refilled(x: Tensor, values: Tensor) -> Tensor:
    return overwrite(x, values)


def _dtype_method(name: str) -> Callable[..., Tensor]:
    dtype = dtype_of(name)

    def method(self: Tensor, memory_format: memory_format | None = None) -> Tensor:
        return elementwise.cast(self, dtype)

    method.__doc__ = f"The elements as {name}."
    return method


def size(self: Tensor, dim: int | None = None) -> Any:
    """The shape, or the size of one dim."""
    return self.shape if dim is None else self.shape[dim]


def stride(self: Tensor, dim: int | None = None) -> Any:
    """Steps between neighbours along each dim, in elements; of a global tensor: as if the whole
    lay in one memory.
    """
    array = stand_in(self)
    if array is None or not array.size:
        steps: list[int] = []
        step = 1
        for n in reversed(self.meta.shape):
            steps.insert(0, step)
            step *= max(n, 1)
        strides = tuple(steps)
    else:
        strides = tuple(s // array.itemsize for s in array.strides)
    return strides if dim is None else strides[dim]


def is_contiguous(self: Tensor, memory_format: str | None = None) -> bool:
    """Is the memory in row-major order without gaps?"""
    array = stand_in(self)
    return array is None or bool(array.flags.c_contiguous)


def contiguous(self: Tensor, memory_format: str | None = None) -> Tensor:
    """The tensor itself if contiguous, else a contiguous copy."""
    return self if is_contiguous(self) else elementwise.clone(self)


def data_ptr(self: Tensor) -> int:
    """Address of the first element."""
    needs_data(self, "data_ptr()")
    return address_of(self._array)


def storage_offset(self: Tensor) -> int:
    """Elements between the start of the tensor this is a view of and its own first element."""
    current_mode().need_rows(owner_of(self), "storage_offset", whole=True)
    return place_of(self)


def to_global(
    input: Tensor,
    placement: Placement | None = None,
    sbp: SbpLike | None = None,
    *,
    grad_sbp: SbpLike | None = None,
    check_meta: bool | None = None,
    copy: bool = False,
) -> Tensor:
    """Local to global: this rank's part (or copy) of a global tensor. Global to global: another
    placement or sbp.
    """
    given = as_placement(placement, "to_global")
    made: Tensor = current_mode().lay_out(
        input, given, sbp, grad_sbp=grad_sbp, check_meta=check_meta, copy=copy
    )
    return made


def local_to_global(
    input: Tensor,
    placement: Placement | None = None,
    sbp: SbpLike | None = None,
    *,
    check_meta: bool = True,
    copy: bool = False,
) -> Tensor:
    """`to_global` of a local tensor."""
    if input.is_global:
        raise OneFlowError("Expected local tensor for local_to_global but got global tensor!")
    return to_global(input, placement, sbp, check_meta=check_meta, copy=copy)


def global_to_global(
    input: Tensor,
    placement: Placement | None = None,
    sbp: SbpLike | None = None,
    *,
    grad_sbp: SbpLike | None = None,
    check_meta: bool = False,
    copy: bool = False,
) -> Tensor:
    """`to_global` of a global tensor."""
    if input.is_local:
        raise OneFlowError("Expected global tensor for global_to_global but got local tensor!")
    return to_global(input, placement, sbp, grad_sbp=grad_sbp, check_meta=check_meta, copy=copy)


def to_local(input: Tensor, copy: bool = False) -> Tensor:
    """This rank's part of a global tensor. Raises OneFlowError for a local one."""
    if input.is_local:
        raise OneFlowError("Expected global tensor for to_local but got local tensor!")

    return on_ranks.to_local(input, copy=copy)


def check_meta_consistency(self: Tensor) -> None:
    """Collective: have all ranks the same shape, dtype, placement and sbp? Raises if not."""
    on_ranks.check_meta_consistency(self)


def global_id(self: Tensor) -> int:
    """A number for a global tensor, the same on all ranks if they ask in the same order. Raises
    for a local one.
    """
    if self.is_local:
        raise OneFlowError("Only global tensors have 'global_id', but got a local tensor.")
    more = extra(self)
    if more.global_id is None:
        more.global_id = next(_global_ids)
    return more.global_id


_global_ids = itertools.count(1)


def _removed(name: str, instead: str) -> Callable[..., Any]:
    def gone(self: Tensor, *_: object, **__: object) -> NoReturn:
        raise OneFlowError(f".{name} has been removed, please use {instead} instead")

    return gone


def pin_memory(self: Tensor, *_: object) -> Tensor:
    """A copy in memory that a GPU reads by itself, so that `to(..., non_blocking=True)` runs beside
    kernels; the tensor itself if it lies there already, is not on the CPU, or there is no GPU.
    """
    array = self._array
    if self._placement is not None or not isinstance(array, np.ndarray) or lies_pinned(array):
        return self
    if not hardware_class("cuda").count():
        return self
    return raw(self.meta, hardware_for("cuda").pinned(array), self._device)


def new(self: Tensor, *args: ArrayLike, **where: Unpack[Place]) -> Tensor:
    """`Tensor(...)` with this tensor's dtype, and in its place unless another is given."""
    if not where and (self._placement is not None or self._device != cpu_device()):
        where = layout_of(self)
    return legacy_tensor(*args, dtype=self.meta.dtype, **where)


def new_tensor(
    self: Tensor,
    data: ArrayLike,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    requires_grad: bool = False,
    placement: Placement | None = None,
    sbp: SbpLike | None = None,
) -> Tensor:
    """`tensor(data)` with this tensor's dtype and place unless others are given."""
    where: Place = {"device": device, "placement": placement, "sbp": sbp}
    if device is None and placement is None:
        ndim = np.ndim(data) if not isinstance(data, Tensor) else data.ndim
        where = {"sbp": sbp, **layout_of(self, no_partial=True, ndim=ndim)}
    return tensor(data, dtype=dtype or self.meta.dtype, requires_grad=requires_grad, **where)


def where_self(
    self: Tensor,
    condition: TensorLike | None = None,
    other: TensorLike | None = None,
    *,
    x: TensorLike | None = None,
    y: TensorLike | None = None,
) -> Tensor:
    """`x.where(condition, other)`: x where the condition is true, else other, as PyTorch has it.

    `condition.where(x, y)`, as OneFlow has it, if this tensor is one of bools, or of integers
    beside an x that is no tensor of bools.
    """
    first, second = condition if x is None else x, other if y is None else y
    if first is None or second is None:
        raise CallError("where() needs a condition and another tensor or number")
    is_chosen_by = isinstance(first, Tensor) and first.meta.dtype is bool_
    if self.meta.dtype is bool_ or (self.meta.dtype.is_integer and not is_chosen_by):
        return elementwise.pick(self, first, second)
    if not isinstance(first, Tensor):
        raise CallError(f"where() needs a tensor of bools, got {type(first).__name__}")
    return elementwise.pick(first, self, second)


def reshaping(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`x.f_()` of a function that only changes the shape: the memory stays, the tensor gets
    another type.
    """

    def method(self: Tensor, *args: object, **keywords: object) -> Tensor:
        check_writable(self)
        become(self, lambda old: function(old, *args, **keywords))
        return self

    return method


squeeze_ = reshaping(shaping.squeeze)
unsqueeze_ = reshaping(shaping.unsqueeze)
as_strided_ = reshaping(strides.as_strided)
to_consistent = _removed("to_consistent", ".to_global")
to_float32 = _dtype_method("float32")
to_float64 = _dtype_method("float64")
to_float16 = _dtype_method("float16")
to_bfloat16 = _dtype_method("bfloat16")
to_int32 = _dtype_method("int32")
to_int64 = _dtype_method("int64")
to_int16 = _dtype_method("int16")
to_uint8 = _dtype_method("uint8")
to_int8 = _dtype_method("int8")
to_bool = _dtype_method("bool")


def is_offloaded(self: Tensor) -> bool:
    """False: no tensor is ever moved out of its device's memory behind the user's back."""
    return False


def is_pinned(self: Tensor) -> bool:
    """Whether a GPU reads its memory by itself: see `pin_memory`."""
    return lies_pinned(self._array)


def is_view(self: Tensor) -> bool:
    """Does the tensor share the memory of another that it was made from?"""
    return view_of(self) is not None


def dim(self: Tensor) -> int:
    """The number of dims."""
    return self.ndim


def numel(self: Tensor) -> int:
    """The number of elements, of all ranks together if the tensor is global."""
    return self.meta.numel


def element_size(self: Tensor) -> int:
    """Bytes of one element."""
    return int(self.meta.dtype.bytes)


def is_floating_point(self: Tensor) -> bool:
    """Are the elements real floating-point numbers?"""
    return self.meta.dtype.is_floating_point


PROPERTIES: dict[str, Callable[[Tensor], Any]] = {
    "T": _matrix_transpose,
    "mT": rearrange.matrix_transpose,
    "H": rearrange.conjugate_transpose,
    "mH": rearrange.conjugate_transpose,
    "real": complex_numbers.real,
    "imag": complex_numbers.imag,
    "itemsize": lambda self: self.element_size(),
    "nbytes": lambda self: self.element_size() * self.numel(),
    "is_meta": lambda self: (self._placement or self._device).type == "meta",
    **dict.fromkeys(
        (
            "is_sparse",
            "is_sparse_csr",
            "is_quantized",
            "is_nested",
            "is_mkldnn",
            "is_mps",
            "is_xpu",
        ),
        lambda _: False,
    ),
    "is_consistent": _removed("is_consistent", ".is_global"),
}
