"""`torch.backends.cpu`: the instruction sets of this processor."""

from __future__ import annotations

from pathlib import Path

__all__ = ["get_cpu_capability"]

LEVELS = (("avx512f", "AVX512"), ("avx2", "AVX2"))


def get_cpu_capability() -> str:
    """Return "AVX512", "AVX2" or "DEFAULT": the widest vectors of this processor."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return "DEFAULT"
    return next((level for flag, level in LEVELS if flag in words), "DEFAULT")
