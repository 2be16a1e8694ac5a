"""PyTorch's dtypes, devices and tensors as ours, and back, over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oneflow.core import dtype as dtypes
from oneflow.core.device import Device
from oneflow.core.errors import DTypeError
from oneflow.utils.tensor import from_torch, to_torch

if TYPE_CHECKING:
    import torch

__all__ = ["from_torch", "our_argument", "our_dtype", "to_torch"]


def our_dtype(dtype: torch.dtype) -> dtypes.DType:
    """Our dtype of the same name. Raises DTypeError if there is none."""
    name = str(dtype).removeprefix("torch.")
    found = getattr(dtypes, {"bool": "bool_"}.get(name, name), None)
    if not isinstance(found, dtypes.DType):
        raise DTypeError(f"{dtype} has no counterpart here")
    return found


def our_argument(value: object) -> Any:
    """An argument of an operator, in which types of PyTorch become ours."""
    kind = type(value)
    if kind.__module__ != "torch":
        return value
    given: Any = value
    if kind.__name__ == "dtype":
        return our_dtype(given)
    if kind.__name__ == "device":
        return Device(given.type, given.index or 0)
    if kind.__name__ in ("SymInt", "SymFloat", "SymBool"):
        raise DTypeError(f"{value} is not known")
    return value
