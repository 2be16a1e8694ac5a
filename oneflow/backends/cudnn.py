"""`flow.backends.cudnn`: convolutions on GPUs use no cuDNN here, so its switches change nothing."""

from __future__ import annotations

from oneflow.backends.switches import declare_switches
from oneflow.core.no_effect import without_effect

__all__ = [
    "allow_tf32",
    "benchmark",
    "deterministic",
    "enable_conv_heuristic_search_algo",
    "enable_fused_normalization_add_relu",
    "enabled",
    "is_available",
    "set_reserved_mem_mbytes",
    "version",
]

NO_CUDNN = "kernels of this runtime do not use cuDNN"

enabled = False
benchmark = False
deterministic = True
allow_tf32 = False
declare_switches(
    __name__,
    dict.fromkeys(("enabled", "benchmark", "allow_tf32"), NO_CUDNN)
    | {"deterministic": "there is no other kernel to choose"},
)


def is_available() -> bool:
    """False: no kernel here uses cuDNN."""
    return False


def version() -> None:
    """None: no kernel here uses cuDNN."""


def set_reserved_mem_mbytes(mbytes: int) -> None:
    """Warn once: there is no cuDNN to reserve memory for."""
    without_effect("backends.cudnn.set_reserved_mem_mbytes", NO_CUDNN)


def enable_fused_normalization_add_relu(enabled: bool) -> None:
    """Warn once: the compiler fuses these ops by itself."""
    without_effect("backends.cudnn.enable_fused_normalization_add_relu", NO_CUDNN)


def enable_conv_heuristic_search_algo(enabled: bool) -> None:
    """Warn once: there is no search for convolution algorithms."""
    without_effect("backends.cudnn.enable_conv_heuristic_search_algo", NO_CUDNN)
