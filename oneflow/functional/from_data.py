"""Tensors of given data: tensor, as_tensor, frombuffer and the legacy constructor `Tensor(...)`."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.device import Device
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import DesyncError
from oneflow.core.location import user_location
from oneflow.core.placement import Placement
from oneflow.core.size import Size
from oneflow.core.tensor_type import TensorType
from oneflow.distributed.world import world
from oneflow.functional.creation import empty
from oneflow.functional.promotion import get_default_dtype
from oneflow.tensor.convert import as_array, from_numpy
from oneflow.tensor.devices import array_on
from oneflow.tensor.eager_global import check_placement, from_whole
from oneflow.tensor.layout import check_layout
from oneflow.tensor.modes import where_to_create
from oneflow.tensor.tensor import Tensor, wrap


def tensor(
    data: Any,
    *,
    dtype: DType | None = None,
    device: Any = None,
    placement: Placement | None = None,
    sbp: Any = None,
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
    x: Tensor, dtype: DType | None, device: Any, placement: Placement | None, sbp: Any
) -> Tensor:
    """A copy without history, of another dtype or elsewhere if that is asked for."""
    copied: Tensor = x.detach().clone()
    if dtype is not None:
        copied = copied.to(dtype)
    if device is not None:
        copied = copied.to(device)
    if placement is not None or sbp is not None:
        copied = copied.to_global(placement=placement, sbp=sbp)
    return copied


def place(
    array: np.ndarray[Any, Any], device: Any, placement: Placement | None, sbp: Any
) -> Tensor:
    """The tensor of an array on a device, or on a placement (the array is the whole, on every
    rank).
    """
    placement, nd_sbp = where_to_create("tensor", device, placement, sbp)
    if placement is not None and nd_sbp is not None:
        check_placement(placement)
        check_layout(TensorType(array.shape, dtype_of(array.dtype)), nd_sbp, "tensor")
        _check_same_data(array, placement)
        return from_whole(array, placement, nd_sbp)
    if device is None or Device(device).type == "cpu":
        return wrap(array, None if device is None else Device(device))
    where = Device(device)
    return wrap(array_on(array, where), where)


def _check_same_data(array: np.ndarray[Any, Any], placement: Placement) -> None:
    """Raises DesyncError on all ranks of the placement unless they bring the same data."""
    if placement.size == 1 or world().rank not in placement:
        return
    said = f"{array.dtype.name}{list(array.shape)} {_checksum(array):x}\n{user_location()}"
    everyone = world().collectives(placement.rank_ids).gather_bytes(said.encode())
    (first, line), *others = (text.decode().split("\n") for text in everyone)
    for rank, (other, where) in zip(placement.rank_ids[1:], others, strict=True):
        if other != first:
            raise DesyncError(
                "Each rank must have same input sequence or numpy array, but what rank "
                f"{placement.rank_ids[0]} has (type and checksum: {first}; at {line}) is not what "
                f"rank {rank} has ({other}; at {where}). Make each rank's part global with "
                "to_global(placement, sbp) if they are meant to differ"
            )


def _checksum(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def as_tensor(data: Any, dtype: DType | None = None, device: Any = None) -> Tensor:
    """`data` as a tensor; a tensor or array of the right dtype and device keeps its memory."""
    if isinstance(data, Tensor):
        return data if dtype is None and device is None else data.to(device=device, dtype=dtype)
    wanted = None if dtype is None else dtype_of(dtype)
    if isinstance(data, np.ndarray) and wanted in (None, dtype_of(data.dtype)):
        x = from_numpy(data)
        return x if device is None else x.to(device)
    return tensor(data, dtype=wanted, device=device)


def frombuffer(
    buffer: Any, *, dtype: Any, count: int = -1, offset: int = 0, requires_grad: bool = False
) -> Tensor:
    """A 1-D tensor over the memory of `buffer`.  count: of elements, -1 for all.  offset: bytes."""
    array = np.frombuffer(buffer, dtype=dtype_of(dtype).np, count=count, offset=offset)
    return wrap(array, requires_grad=requires_grad)


def legacy_tensor(*args: Any, dtype: DType | None = None, **where: Any) -> Tensor:
    """Make what `Tensor(...)` means: a tensor of sizes (zeros), of data, or of nothing (an empty
    one).

    dtype: None: as a given tensor, else float32.
    """
    requires_grad = where.pop("requires_grad", False)
    if len(args) == 1 and isinstance(args[0], Tensor):
        if not where and dtype in (None, args[0].type.dtype):
            return args[0].detach()
        dtype = dtype or args[0].type.dtype
    sizes = all(isinstance(a, (int, np.integer)) for a in args)
    if not args or (sizes and args) or _is_size(args):
        x = empty(*(args or (0,)), dtype=dtype, **where)
    else:
        x = tensor(args[0], dtype=dtype or dtypes.float32, **where)
    if requires_grad:
        x.requires_grad = True
    return x


def _is_size(args: tuple[Any, ...]) -> bool:
    return len(args) == 1 and isinstance(args[0], Size)
