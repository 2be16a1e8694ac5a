"""Names of PyTorch's compiled module, `torch._C`, for which packages ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from oneflow.compat.torch.subclasses import without_subclasses
from oneflow.core.device import Device, DeviceLike
from oneflow.core.dispatch import current_mode, is_traced
from oneflow.core.dtype import DType, dtype_of
from oneflow.core.errors import CallError
from oneflow.functional.conversion import Target, _wanted
from oneflow.functional.from_data import tensor
from oneflow.kernels.cuda_device import gpu_count
from oneflow.tensor.formats import memory_format


def _get_tracing_state() -> Any:
    """Return the tracer of the code, or None."""
    return current_mode() if is_traced() else None


def _never() -> bool:
    """Return False: there are no such modes."""
    return False


_are_functorch_transforms_active = _never
_is_torch_function_enabled = _is_torch_function_mode_enabled = _never
_is_torch_function_all_disabled = _never
_cuda_isInBadFork = _jit_can_fuse_on_cpu = _jit_can_fuse_on_gpu = _never


def _get_privateuse1_backend_name() -> str:
    """Return "privateuseone": no kind of device has another name."""
    return "privateuseone"


def _get_accelerator(check: bool | None = None) -> Device:
    """Return the kind of device beside the CPU; the CPU itself where there is no GPU."""
    return Device("cuda" if gpu_count() else "cpu")


def _get_default_device() -> str:
    """Return "cpu": tensors are in host memory if a program names no device."""
    return "cpu"


def _jit_set_texpr_fuser_enabled(enabled: object) -> bool:
    """Change nothing: TorchScript compiles nothing here."""
    return False


_jit_set_profiling_executor = _jit_set_profiling_mode = _jit_set_texpr_fuser_enabled
_jit_override_can_fuse_on_cpu = _jit_override_can_fuse_on_gpu = _jit_set_texpr_fuser_enabled
_jit_set_nvfuser_enabled = _jit_set_nvfuser_guard_mode = _jit_set_texpr_fuser_enabled
_set_math_sdp_allow_fp16_bf16_reduction = _jit_set_texpr_fuser_enabled


def _cuda_clearCublasWorkspaces() -> None:
    """Change nothing: workspaces are planned with a graph's memory."""


DisableTorchFunctionSubclass = DisableTorchFunction = without_subclasses


def _disabled_torch_function_impl(
    func: Callable[..., Any],
    types: object,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call the function: as `__torch_function__` of a class, it lets calls ask nobody."""
    return func(*args, **(kwargs or {}))


vars(_disabled_torch_function_impl)["asks_nobody"] = True


def _parse_to(
    *args: Target, **kwargs: Any
) -> tuple[Device | None, DType | None, bool, memory_format | None]:
    """Parse the arguments of `module.to`: device, dtype, non_blocking, format.

    Raises CallError for a dtype that is no float.
    """
    non_blocking = bool(kwargs.pop("non_blocking", False))
    kwargs.pop("copy", None)
    form = kwargs.pop("memory_format", None)
    device, dtype = _wanted(tensor(0), args, kwargs)
    found = None if dtype is None else dtype_of(dtype)
    if found is not None and not (found.is_floating_point or found.is_complex):
        raise CallError(
            "nn.Module.to only accepts floating point or complex dtypes, but got desired "
            f"dtype={found}"
        )
    where = None if device is None else Device(cast(DeviceLike, device))
    return where, found, non_blocking, form
