"""`torch._utils`: the functions that packages take from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType

from oneflow.compat.torch.settings import get_device_module
from oneflow.core.device import Device, DeviceLike
from oneflow.core.dtype import DType
from oneflow.core.errors import CallError
from oneflow.functional.concat_split import cat
from oneflow.kernels.cuda_device import gpu_count
from oneflow.tensor.tensor import Tensor

__all__ = [
    "_element_size",
    "_flatten_dense_tensors",
    "_get_available_device_type",
    "_get_device_index",
    "_get_device_module",
    "_unflatten_dense_tensors",
]


def _flatten_dense_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Return the elements of all tensors, one after the other, in one dim."""
    return cat([x.reshape(-1) for x in tensors], dim=0)


def _unflatten_dense_tensors(flat: Tensor, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return views of `flat`, one after the other, in the shapes of the tensors."""
    found, start = [], 0
    for x in tensors:
        found.append(flat[start : start + x.numel()].reshape(x.meta.shape))
        start += x.numel()
    return tuple(found)


def _element_size(dtype: DType) -> int:
    """Return the bytes of an element."""
    return dtype.np.itemsize


def _get_available_device_type() -> str | None:
    """Return "cuda" if a GPU can be used, or None."""
    return "cuda" if gpu_count() else None


def _get_device_module(device_type: str) -> ModuleType:
    """Return `torch.cuda` or `torch.cpu`."""
    return get_device_module(device_type)


def _get_device_index(
    device: DeviceLike | int, optional: bool = False, allow_cpu: bool = False
) -> int:
    """Return the number of a device; -1 for the CPU, if it is allowed. Raises CallError else."""
    if isinstance(device, int):
        return device
    found = Device(device)
    if found.type == "cpu" and not allow_cpu:
        raise CallError(f"a GPU is needed, got {found}")
    return -1 if found.type == "cpu" else found.index
