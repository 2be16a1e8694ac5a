"""Arrays between host memory and this rank's device."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.core.device import META, Device, require_kind
from oneflow.core.errors import OneFlowError
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import class_of, hardware_for


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """A NumPy array of the values; the same object if it is one. Raises the error for which GPU
    collectives were given up, if any: their results are none."""
    if isinstance(array, np.ndarray):
        return array
    # Late: it watches GPU collectives, and with them come sockets and an event loop.
    from oneflow.boxing.collectives.device_watch import raise_if_broken

    host = class_of(array).to_host(array)
    raise_if_broken()
    return host


def to_device(array: np.ndarray[Any, Any], kind: str) -> Any:
    """The array on this rank's device of that kind."""
    if kind == "cpu":
        return array
    return array_on(array, Device(kind))


def array_on(array: Array, device: Device, non_blocking: bool = False) -> Any:
    """A copy of an array on a device.

    non_blocking: from pinned memory to a GPU beside its kernels; the array must stay as it is until
    the copy is there.
    """
    if device.type == META:
        return without_values(array.shape, array.dtype)
    if device.type == "cpu":
        return array.copy() if isinstance(array, np.ndarray) else to_host(array)
    require_kind(device.type)
    hardware = hardware_for(device.type, device.index)
    if isinstance(array, np.ndarray):
        return hardware.from_host(array, non_blocking)
    kind = class_of(array)
    if kind.kind != device.type:
        return hardware.from_host(to_host(array))
    return hardware.use().array(array)


def without_values(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The array of a tensor on `meta`: one element's memory, which cannot be written."""
    return np.broadcast_to(np.zeros((), dtype), shape)


def check_has_values(kind: str, type_: TensorType) -> None:
    """Raises OneFlowError for a tensor on `meta`. kind: of its device."""
    if kind == META:
        raise OneFlowError(
            f"Cannot copy out of meta tensor; no data! {type_} has a shape and a dtype only"
        )
