"""`flow.utils.tensor`: tensors to and from PyTorch over the same memory."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from oneflow.core.dtype import STORED_DTYPES, bfloat16
from oneflow.functional.properties import from_dlpack
from oneflow.surfaces import accept_paths
from oneflow.tensor.convert import from_numpy
from oneflow.tensor.tensor import Tensor, needs_data, wrap

if TYPE_CHECKING:
    import torch

__all__ = ["from_torch", "to_torch"]

_FOREIGN = {d.name for d in (bfloat16, *STORED_DTYPES) if d.np.kind != "u"}  # to NumPy's users


def from_torch(torch_tensor: torch.Tensor) -> Tensor:
    """A tensor over the memory of one of PyTorch's: writing to one writes to the other."""
    given = torch_tensor.detach()
    is_foreign = str(given.dtype).removeprefix("torch.") in _FOREIGN
    return from_dlpack(given) if given.is_cuda or is_foreign else from_numpy(given.numpy())


def to_torch(flow_tensor: Tensor) -> torch.Tensor:
    """PyTorch's tensor over the memory of a local tensor; its history does not come along. Of a
    global one a copy of the whole on the CPU, for which all ranks call it.
    """
    import torch

    needs_data(flow_tensor, "to_torch")
    if flow_tensor.is_global:
        warnings.warn(
            "Only local tensors share memory with PyTorch's: to_torch gives a copy of the whole "
            "global tensor on the CPU",
            stacklevel=2,
        )
        return to_torch(wrap(flow_tensor.numpy()))
    array = flow_tensor._array
    if isinstance(array, np.ndarray) and flow_tensor.dtype.name not in _FOREIGN:
        return torch.from_numpy(array)
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(flow_tensor)
    return made


accept_paths(__name__)
