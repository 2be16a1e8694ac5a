"""Arrays between host memory and this rank's device."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.core.device import Device


def to_host(array: Any) -> np.ndarray[Any, Any]:
    """A NumPy array of the values; the same object if it is one. Raises the error for which GPU
    collectives were given up, if any: their results are none."""
    if isinstance(array, np.ndarray):
        return array
    from oneflow.boxing.collectives.device_watch import raise_if_broken

    host: np.ndarray[Any, Any] = array.get()
    raise_if_broken()
    return host


def to_device(array: np.ndarray[Any, Any], kind: str) -> Any:
    """The array on this rank's device of that kind."""
    if kind == "cpu":
        return array
    from oneflow.tensor.convert import _array_on

    return _array_on(array, Device(kind))
