"""Tensors to and from arrays, other devices, copies in memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, current_mode
from oneflow.core.dtype import DType, dtype_of, int64
from oneflow.core.errors import ArgumentError, CallError
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array
from oneflow.tensor import on_ranks
from oneflow.tensor.devices import array_on, check_has_values, to_host
from oneflow.tensor.tape import nothing_saved, record_call
from oneflow.tensor.tensor import Tensor, adopt, needs_data, raw, wrap

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike


def to_numpy(
    x: Tensor, dtype: DTypeLike | None = None, *, force: bool = False
) -> np.ndarray[Any, Any]:
    """The values as a NumPy array, of `dtype` if that is given; bfloat16, which NumPy lacks, as
    float32.  force: changes nothing, as tensors with a history and on GPUs are taken, too.
    """
    if dtype is not None:
        return to_numpy(x).astype(dtype, copy=False)
    mode = current_mode()
    x = _with_values(x, mode)
    array = x._array
    mode.before_writing(array)  # the caller may write to it
    return _as_numpy(array, x)


def values_of(x: Tensor) -> np.ndarray[Any, Any]:
    """The values as an array that the caller copies from and leaves as it is. Waits for nobody but
    the call that makes them, where calls run later.
    """
    mode = current_mode()
    x = _with_values(x, mode)
    return _as_numpy(mode.to_copy(x), x)


def _with_values(x: Tensor, mode: Mode) -> Tensor:
    """`x`, whole. Raises an error if it has no values."""
    needs_data(x, "numpy()")
    check_has_values(x._device.type, x.meta)
    if mode.check_read is not None:
        mode.check_read(x)
    return x if x._placement is None else on_ranks.gather(x)


def _as_numpy(array: Array, x: Tensor) -> np.ndarray[Any, Any]:
    found = to_host(array)
    return found.astype(np.float32) if x.meta.dtype.name == "bfloat16" else found


def move(x: Tensor, device: Device, non_blocking: bool = False) -> Tensor:
    """A copy of a local tensor on another device, with history. non_blocking: see `array_on`."""
    source = x._device
    check_has_values(x._device.type, x.meta)
    out = raw(x.meta, array_on(x._array, device, non_blocking), device)
    record_call(
        "copy", (x,), (out,), lambda grads: [move(grads[0], source)], on_release=nothing_saved
    )
    return out


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A CPU tensor over the memory of `array`: writing to one writes to the other."""
    if not isinstance(array, np.ndarray):
        raise CallError(f"expected np.ndarray (got {type(array).__name__})")
    return wrap(array)


def deep_copy(x: Tensor, memo: dict[int, Any]) -> Tensor:
    """`copy.deepcopy(x)`: new memory, same requires_grad, no history. A tensor with a history is
    copied as `x.detach()` would be. Attributes of a user's own are copied, but those of parameters
    are not, as in PyTorch.
    """
    if id(x) in memo:
        known: Tensor = memo[id(x)]
        return known
    needs_data(x, "deepcopy()")
    y = raw(x.meta, x._array.copy(), x._device)
    y._placement, y._sbp = x._placement, x._sbp
    y._requires_grad = x._requires_grad and x._grad_fn is None
    if type(x) is not Tensor:
        y = adopt(type(x), y)
    memo[id(x)] = y
    if x._grad is not None:
        y._grad = deep_copy(x._grad, memo)
    if x.keeps_attributes and x.__dict__:
        y.__dict__.update(copy.deepcopy(x.__dict__, memo))
    return y


def reduce_tensor(x: Tensor, protocol: SupportsIndex | None = None) -> tuple[Any, ...]:
    """Pickling in memory (multiprocessing, copy): the shard, and for global tensors placement and
    sbp.
    """
    needs_data(x, "pickling")
    array = to_host(x._array)
    facts = (
        type(x),
        array,
        x.meta.shape,
        x.meta.dtype.name,
        x._device.type,
        x._placement,
        x._sbp,
        x._requires_grad,
    )
    return (rebuild, facts, x.__dict__) if x.__dict__ else (rebuild, facts)


def rebuild(
    cls: type[Tensor],
    array: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    dtype: str,
    device: str,
    placement: Placement | None,
    sbp: NdSbp | None,
    requires_grad: bool,
) -> Tensor:
    """The inverse of `reduce_tensor`."""
    where = Device(device)
    data = array if device == "cpu" else array_on(array, where)
    x = raw(TensorType(shape, dtype_of(dtype)), data, where)
    x._placement, x._sbp, x._requires_grad = placement, sbp, requires_grad
    return x if cls is Tensor else adopt(cls, x)


def as_array(data: ArrayLike, dtype: DType | None, default: DType) -> np.ndarray[Any, Any]:
    """Nested lists, numbers, arrays: as a new array. Python floats become `default`, ints int64."""
    if isinstance(data, Tensor):
        array = to_numpy(data)
    elif isinstance(data, (list, tuple)) and _holds_tensors(data):
        array = np.asarray(_plain(data))
    else:
        array = _evenly(data)
    if dtype is not None:
        if not isinstance(data, (np.ndarray, np.generic, Tensor)):
            _check_range(array, dtype)
        return array.astype(dtype.np)
    if not isinstance(data, (np.ndarray, np.generic, Tensor)) and not _holds_arrays(data):
        array = _default_kind(array, default)
    return np.array(array)


def _evenly(data: ArrayLike) -> np.ndarray[Any, Any]:
    """`data` as an array. Raises ArgumentError for parts of different shapes, by their place."""
    try:
        return np.asarray(data)
    except ValueError:
        if isinstance(data, (list, tuple)):
            _shape_of(data, "")
        raise


def _shape_of(data: object, place: str) -> tuple[int, ...]:
    """The shape of a nested list. Raises ArgumentError if it has none."""
    if not isinstance(data, (list, tuple)):
        return tuple(getattr(data, "shape", ()))
    shapes = [_shape_of(x, f"{place}[{i}]") for i, x in enumerate(data)]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ArgumentError(
                f"tensor(): data{place}[{i}] has shape {shape} and data{place}[0] {shapes[0]}; "
                "the parts of a tensor are of one shape"
            )
    return (len(shapes), *(shapes[0] if shapes else ()))


def _check_range(array: np.ndarray[Any, Any], dtype: DType) -> None:
    """Raises ArgumentError for a number that an integer dtype cannot hold. A negative
    integer that is small enough wraps around in an unsigned dtype.
    """
    if not dtype.is_integer or array.dtype.kind not in "iufO" or not array.size:
        return
    info = np.iinfo(dtype.np)
    least = info.min if array.dtype.kind == "f" else min(info.min, -info.max)
    inside = (array >= least) & (array <= info.max)
    if not inside.all():
        raise ArgumentError(
            f"the value {array[~inside].flat[0]} cannot be converted to {dtype.name} without "
            f"overflow: it holds {info.min} to {info.max}"
        )


def _default_kind(array: np.ndarray[Any, Any], default: DType) -> np.ndarray[Any, Any]:
    if array.size == 0 or array.dtype.kind == "f":
        return array.astype(default.np)
    if array.dtype.kind == "c":
        return array.astype(np.complex128 if default.bytes == 8 else np.complex64)
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "O" and all(isinstance(v, int) for v in array.flat):
        _check_range(array, int64)
    raise CallError(f"cannot make a tensor of {array.dtype} data")


def _holds_arrays(data: object) -> bool:
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return isinstance(data, (np.ndarray, np.generic))


def _holds_tensors(data: Iterable[object]) -> bool:
    return any(
        isinstance(d, Tensor) or (isinstance(d, (list, tuple)) and _holds_tensors(d)) for d in data
    )


def _plain(data: object) -> Any:
    if isinstance(data, Tensor):
        return data.tolist()
    return [_plain(d) for d in data] if isinstance(data, (list, tuple)) else data
