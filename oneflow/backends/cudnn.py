"""`flow.backends.cudnn`: attention and convolutions on GPUs go by cuDNN where it is installed. Its
switches change nothing.
"""

from __future__ import annotations

from oneflow.backends.switches import declare_switches
from oneflow.core.no_effect import without_effect
from oneflow.kernels.cudnn import library
from oneflow.surfaces import accept_paths

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

NO_SEARCH = "cuDNN's own estimates choose among its kernels"
FUSED = "the compiler joins normalization with what follows"

enabled = True
benchmark = False
deterministic = True
allow_tf32 = False
accept_paths(__name__)
declare_switches(
    __name__,
    {
        "enabled": "cuDNN is used where it is installed; ONEFLOW_CUDNN=0 leaves it out",
        "benchmark": NO_SEARCH,
        "deterministic": "convolutions give the same bits in every run",
        "allow_tf32": "convolutions of float32 are computed in float32",
    },
)


def is_available() -> bool:
    """True if cuDNN is installed, runs on this machine's GPU and is not switched off."""
    return library() is not None


def version() -> int | None:
    """The version of cuDNN, 91000 for 9.10.0; None where it is not available."""
    found = library()
    return None if found is None else int(found.backend_version())


def set_reserved_mem_mbytes(mbytes: int) -> None:
    """Warn once: the memory of plans is part of that of their graph."""
    reason = "workspaces are planned with the memory of a graph"
    without_effect("backends.cudnn.set_reserved_mem_mbytes", reason)


def enable_fused_normalization_add_relu(enabled: bool) -> None:
    """Warn once: the compiler fuses these ops by itself."""
    without_effect("backends.cudnn.enable_fused_normalization_add_relu", FUSED)


def enable_conv_heuristic_search_algo(enabled: bool) -> None:
    """Warn once: there is no search for convolution algorithms."""
    without_effect("backends.cudnn.enable_conv_heuristic_search_algo", NO_SEARCH)
