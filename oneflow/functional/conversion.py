"""Moves to another device or dtype: `.to`, `.cpu`, `.cuda`, `.type_as`."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

from oneflow.core.device import META, Device, DeviceLike, is_device_name, is_device_type
from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import DType, DTypeLike, dtype_of, is_dtype
from oneflow.core.errors import CallError, DeviceError, PlacementError
from oneflow.core.placement import Placement
from oneflow.functional.promotion import as_type
from oneflow.ops.unary import copy as copy_op
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.modes import current_global_mode
from oneflow.tensor.tensor import Tensor, device_type

Target: TypeAlias = "DeviceLike | DTypeLike | Placement | Tensor | int | None"
"""A device, a dtype, the number of a GPU, or a tensor whose place and dtype are wanted."""


def to(input: Tensor, *args: Target, **kwargs: Any) -> Tensor:
    """`to(device)`, `to(dtype)`, `to(device, dtype)`, `to(other)`, with copy=False and
    non_blocking=False: True copies from pinned memory to a GPU while its kernels run.

    Of a global tensor only the device *type* can be changed. The tensor itself if nothing changes.
    `to(flow.Tensor)` is the tensor itself.
    """
    if args and isinstance(args[0], type):
        if isinstance(input, args[0]):
            return input
        raise CallError(f"to(): a tensor is no {args[0].__name__}")
    copy = bool(kwargs.pop("copy", False))
    non_blocking = bool(kwargs.pop("non_blocking", False))
    kwargs.pop("memory_format", None)
    device, dtype = _wanted(input, args, kwargs)
    out = input if dtype is None else as_type(input, dtype)
    if device is not None:
        out = _to_device(out, device, non_blocking)
    return copy_op(out) if copy and out is input else out


def _wanted(
    input: Tensor, args: tuple[Target, ...], kwargs: dict[str, Any]
) -> tuple[DeviceLike | Placement | None, DType | None]:
    device, dtype = kwargs.pop("device", None), kwargs.pop("dtype", None)
    other = kwargs.pop("other", None)
    if kwargs:
        raise CallError(f"to() got unexpected keyword arguments: {', '.join(kwargs)}")
    for arg in args if other is None else (*args, other):
        if isinstance(arg, Tensor):
            if arg._placement is not None and input._placement is None:
                raise PlacementError(
                    "tensor.to(other) can only be called when tensor and other are both local or "
                    "both global, but other is global: use to_global(placement, sbp), or type_as"
                )
            device = arg._placement.type if arg._placement is not None else arg._device
            dtype = arg.meta.dtype
        elif isinstance(arg, (Device, Placement)) or (
            isinstance(arg, str) and is_device_name(arg.split(":")[0])
        ):
            device = arg
        elif isinstance(arg, int) and not isinstance(arg, bool):
            device = Device("cuda", arg)
        elif isinstance(arg, str) and not is_dtype(arg):
            device = arg  # a misspelt one, as a rule: Device says so
        elif arg is not None and not isinstance(arg, bool):
            dtype = arg
    return device, None if dtype is None else dtype_of(dtype)


def _to_device(x: Tensor, device: DeviceLike | Placement, non_blocking: bool) -> Tensor:
    if x._placement is not None:
        return _global_to_device(x, x._placement, device)
    wanted = Device(cast(DeviceLike, device))  # which refuses a placement
    if wanted == x._device:
        return x
    moved: Tensor = current_mode().to_device(x, wanted, non_blocking)
    return moved


def _global_to_device(x: Tensor, placement: Placement, device: DeviceLike | Placement) -> Tensor:
    if current_global_mode().is_enabled:
        device = Device(cast(DeviceLike, device)).type  # code written for one device names one
    if not isinstance(device, str) or not (device == META or is_device_type(device)):
        raise DeviceError(
            'Only string device without device id (eg. "cpu" or "cuda") is expected for global '
            f"tensor, but got {device!r}"
        )
    if device == placement.type:
        return x
    return x.to_global(placement=Placement(device, placement.ranks), sbp=x._sbp)


def cpu(input: Tensor, memory_format: object = None) -> Tensor:
    """The tensor on the CPU. memory_format changes nothing."""
    return to(input, "cpu")


def cuda(
    input: Tensor, device: DeviceLike | None = None, non_blocking: bool = False, **_: object
) -> Tensor:
    """The tensor on a GPU: this rank's unless another is named. non_blocking: as of `to`."""
    return to(input, "cuda" if device is None else device, non_blocking=non_blocking)


def type_as(input: Tensor, target: Tensor) -> Tensor:
    """The tensor in the dtype and place of `target`, and global or local as it is: a local tensor
    becomes this rank's part of a global one, a global one its part on this rank. A global tensor
    beside another keeps its own layout.
    """
    cast_ = as_type(input, target.meta.dtype)
    if cast_ is target or (target._placement is not None and cast_._placement is not None):
        return cast_
    if target._placement is not None:
        place = layout_of(target, ndim=input.ndim)
        return cast_.to_global(place["placement"], place["sbp"])
    if cast_._placement is not None:
        cast_ = cast_.to_local()
    return to(cast_, target)


def get_device(input: Tensor) -> int:
    """Index of the GPU; -1 for a CPU tensor."""
    return -1 if device_type(input) == "cpu" else input.device.index
