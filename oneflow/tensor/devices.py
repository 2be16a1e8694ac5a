"""Arrays between host memory and this rank's device."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.core.device import META, Device
from oneflow.kernels.array import Array
from oneflow.kernels.cuda_device import use_device


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """A NumPy array of the values; the same object if it is one. Raises the error for which GPU
    collectives were given up, if any: their results are none."""
    if isinstance(array, np.ndarray):
        return array
    # Late: it watches GPU collectives, and with them come sockets and an event loop.
    from oneflow.boxing.collectives.device_watch import raise_if_broken

    host: np.ndarray[Any, Any] = array.get()
    raise_if_broken()
    return host


def to_device(array: np.ndarray[Any, Any], kind: str) -> Any:
    """The array on this rank's device of that kind."""
    if kind == "cpu":
        return array
    return array_on(array, Device(kind))


def array_on(array: Array, device: Device) -> Any:
    """A copy of an array on a device."""
    if device.type == META:
        return without_values(array.shape, array.dtype)
    if device.type == "cpu":
        return array.copy() if isinstance(array, np.ndarray) else to_host(array)
    return use_device(device.index).array(array)


def without_values(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The array of a tensor on `meta`: one element's memory, which cannot be written."""
    return np.broadcast_to(np.zeros((), dtype), shape)
