"""`cuda.amp.autocast` and `cpu.amp.autocast`: blocks of mixed precision that name no device."""

from __future__ import annotations

from oneflow.amp.autocasting import autocast
from oneflow.core.dtype import DTypeLike, bfloat16, float16

__all__ = ["cpu_autocast", "cuda_autocast"]


class cuda_autocast(autocast):
    """`autocast("cuda")`."""

    def __init__(
        self, enabled: bool = True, dtype: DTypeLike = float16, cache_enabled: bool = True
    ) -> None:
        super().__init__("cuda", dtype, enabled, cache_enabled)


class cpu_autocast(autocast):
    """`autocast("cpu")`."""

    def __init__(
        self, enabled: bool = True, dtype: DTypeLike = bfloat16, cache_enabled: bool = True
    ) -> None:
        super().__init__("cpu", dtype, enabled, cache_enabled)
