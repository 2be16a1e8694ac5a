"""Tensors of given data: tensor, as_tensor, frombuffer and the legacy constructor `Tensor(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.device import Device, DeviceLike, chosen_device
from oneflow.core.dtype import DType, DTypeLike, dtype_of
from oneflow.core.errors import CallError, OneFlowError
from oneflow.core.placement import Placement
from oneflow.core.sbp import SbpLike, all_broadcast
from oneflow.core.size import Size
from oneflow.functional.creation import empty
from oneflow.functional.promotion import get_default_dtype
from oneflow.kernels.array import Array
from oneflow.tensor.convert import as_array, from_numpy
from oneflow.tensor.creation_like import Place
from oneflow.tensor.devices import array_on
from oneflow.tensor.from_same_data import from_same_data
from oneflow.tensor.modes import where_to_create
from oneflow.tensor.tensor import Tensor, wrap

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from typing_extensions import Unpack


def tensor(
    data: ArrayLike,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | None = None,
    placement: Placement | None = None,
    sbp: SbpLike | None = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A new tensor that holds a copy of `data` (numbers, nested lists, an array, a tensor).

    Python floats become float32, ints int64; arrays keep their dtype. placement with sbp: a global
    tensor; every rank must give the same data.
    """
    wanted = None if dtype is None else dtype_of(dtype)
    if isinstance(data, Tensor) and (data.is_global or (placement is None and device is None)):
        x = _copied(data, wanted, device, placement, sbp)
    else:
        array = as_array(data, wanted, get_default_dtype())
        x = place(array, device, placement, sbp)
    if requires_grad:
        x.requires_grad = True
    return x


def _copied(
    x: Tensor,
    dtype: DTypeLike | None,
    device: DeviceLike | None,
    placement: Placement | None,
    sbp: SbpLike | None,
) -> Tensor:
    """A copy without history, of another dtype or elsewhere if that is asked for; on a device: of a
    global tensor this rank's part.
    """
    copied: Tensor = x.detach().clone()
    if dtype is not None:
        copied = copied.to(dtype)
    if device is not None:
        copied = (copied.to_local() if copied.is_global else copied).to(device)
    if placement is not None or sbp is not None:
        copied = copied.to_global(placement=placement, sbp=sbp)
    return copied


def place(
    array: np.ndarray[Any, Any],
    device: DeviceLike | None,
    placement: Placement | None,
    sbp: SbpLike | None,
) -> Tensor:
    """The tensor of an array on a device, or on a placement (the array is the whole, on every
    rank).
    """
    placement, nd_sbp = where_to_create("tensor", device, placement, sbp)
    if placement is not None and nd_sbp is not None:
        return from_same_data(array, placement, nd_sbp, "tensor")
    device = chosen_device() if device is None else device
    if device is None or Device(device).type == "cpu":
        return wrap(array, None if device is None else Device(device))
    where = Device(device)
    return wrap(array_on(array, where), where)


def beside(x: Tensor, array: np.ndarray[Any, Any]) -> Tensor:
    """Computed values where `x` is, whole on every rank."""
    if x._placement is not None:
        return place(array, None, x._placement, all_broadcast(x._placement.ndim))
    return place(array, x._device, None, None)


def as_tensor(
    data: ArrayLike, dtype: DTypeLike | None = None, device: DeviceLike | None = None
) -> Tensor:
    """`data` as a tensor; a tensor or array of the right dtype and device keeps its memory."""
    if isinstance(data, Tensor):
        return data if dtype is None and device is None else data.to(device=device, dtype=dtype)
    wanted = None if dtype is None else dtype_of(dtype)
    if isinstance(data, np.ndarray) and wanted in (None, dtype_of(data.dtype)):
        x = from_numpy(data)
        return x if device is None else x.to(device)
    return tensor(data, dtype=wanted, device=device)


def frombuffer(
    buffer: bytes | bytearray | memoryview | Array,
    *,
    dtype: DTypeLike,
    count: int = -1,
    offset: int = 0,
    requires_grad: bool = False,
) -> Tensor:
    """A 1-D tensor over the memory of `buffer`.  count: of elements, -1 for all.  offset: bytes."""
    array = np.frombuffer(buffer, dtype=dtype_of(dtype).np, count=count, offset=offset)
    return wrap(array, requires_grad=requires_grad)


def legacy_tensor(
    *args: ArrayLike,
    dtype: DType | None = None,
    requires_grad: bool = False,
    **where: Unpack[Place],
) -> Tensor:
    """Make the tensor of `Tensor(...)`: of sizes (zeros), of data, or of nothing (an empty one).

    dtype: None: as a given tensor, else the default one.
    """
    if len(args) == 1 and isinstance(args[0], Tensor):
        if not where and dtype in (None, args[0].meta.dtype):
            return args[0].detach()
        dtype = dtype or args[0].meta.dtype
    sizes = all(isinstance(a, (int, np.integer)) for a in args)
    if not args or (sizes and args) or _is_size(args):
        x = empty(*(args or (0,)), dtype=dtype, **where)
    else:
        dtype = dtype or get_default_dtype()
        try:
            x = tensor(args[0], dtype=dtype, **where)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, OneFlowError):
                raise
            raise CallError(
                f"Tensor(): a tensor of {dtype} cannot be made of {args[0]!r}"
            ) from None
    if requires_grad:
        x.requires_grad = True
    return x


def _is_size(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], Size)
