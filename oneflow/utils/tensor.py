"""`flow.utils.tensor`: tensors to and from PyTorch over the same memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oneflow.core.dtype import bfloat16
from oneflow.core.errors import PlacementError
from oneflow.functional.extras import from_dlpack
from oneflow.surfaces import accept_paths
from oneflow.tensor.convert import from_numpy
from oneflow.tensor.tensor import Tensor, needs_data, wrap

if TYPE_CHECKING:
    import torch

__all__ = ["from_torch", "to_torch"]


def from_torch(torch_tensor: torch.Tensor) -> Tensor:
    """A tensor over the memory of one of PyTorch's: writing to one writes to the other."""
    given = torch_tensor.detach()
    if str(given.dtype) == "torch.bfloat16":  # NumPy has no such numbers: their bits, then
        import torch

        return wrap(given.view(torch.int16).numpy().view(bfloat16.np))
    return from_dlpack(given) if given.is_cuda else from_numpy(given.numpy())


def to_torch(flow_tensor: Tensor) -> torch.Tensor:
    """PyTorch's tensor over the memory of a local tensor; its history does not come along."""
    import torch

    needs_data(flow_tensor, "to_torch")
    if flow_tensor.is_global:
        raise PlacementError("to_torch needs a local tensor; take x.to_local() of a global one")
    array = flow_tensor._array
    if not isinstance(array, np.ndarray):
        made: torch.Tensor = torch.utils.dlpack.from_dlpack(array)
        return made
    if flow_tensor.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


accept_paths(__name__)
