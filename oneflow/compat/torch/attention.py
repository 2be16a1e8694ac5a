"""`torch.nn.attention`: a program may name the kernels that attention is to use; there is one
for each device here, which computes the same as all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum

from oneflow.core.errors import ArgumentError

__all__ = ["WARN_FOR_UNFUSED_KERNELS", "SDPBackend", "sdpa_kernel"]

WARN_FOR_UNFUSED_KERNELS = False


class SDPBackend(IntEnum):
    """Kernels of PyTorch for attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(
    backends: SDPBackend | Sequence[SDPBackend], set_priority: bool = False
) -> Iterator[None]:
    """Change nothing inside: attention has one kernel for each device."""
    listed = [backends] if isinstance(backends, SDPBackend) else list(backends)
    if not listed or not all(isinstance(one, SDPBackend) for one in listed):
        raise ArgumentError(f"sdpa_kernel: expected SDPBackend or a list of them, got {backends!r}")
    yield
