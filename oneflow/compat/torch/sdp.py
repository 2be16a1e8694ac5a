"""Questions of `torch.backends.cuda` about kernels for attention: there is one for each device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from oneflow.core.no_effect import without_effect

REASON = "attention has one kernel for each device"


@dataclass
class SDPAParams:
    """The operands of a call of attention, for the questions below."""

    query: Any
    key: Any
    value: Any
    attn_mask: Any = None
    dropout: float = 0.0
    is_causal: bool = False
    enable_gqa: bool = False


def can_use_flash_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Return False: attention has one kernel for each device."""
    return False


can_use_efficient_attention = can_use_cudnn_attention = can_use_flash_attention


def is_flash_attention_available() -> bool:
    """Return False: attention has one kernel for each device."""
    return False


def math_sdp_enabled() -> bool:
    """Return True: attention has one kernel for each device, which takes all operands."""
    return True


def flash_sdp_enabled() -> bool:
    """Return False: attention has one kernel for each device."""
    return False


mem_efficient_sdp_enabled = cudnn_sdp_enabled = flash_sdp_enabled
fp16_bf16_reduction_math_sdp_allowed = flash_sdp_enabled


def enable_math_sdp(enabled: bool) -> None:
    """Warn once if it is to be turned off: attention has one kernel for each device."""
    if not enabled:
        without_effect("backends.cuda.enable_math_sdp(False)", REASON)


def enable_flash_sdp(enabled: bool) -> None:
    """Change nothing: attention has one kernel for each device."""


enable_mem_efficient_sdp = enable_cudnn_sdp = enable_flash_sdp
allow_fp16_bf16_reduction_math_sdp = enable_flash_sdp


@contextmanager
def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Iterator[None]:
    """Change nothing inside: attention has one kernel for each device."""
    yield


def preferred_linalg_library(backend: object = None) -> str:
    """Return "default": each function of linear algebra has one library."""
    return "default"


preferred_blas_library = preferred_rocm_fa_library = preferred_linalg_library
