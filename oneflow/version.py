"""`flow.version`: the version of this package, and the toolkits it was built with."""

from __future__ import annotations

from oneflow import __version__
from oneflow.kernels.cuda_device import cuda_version
from oneflow.surfaces import accept_paths

__all__ = ["__version__", "cuda", "debug", "git_version", "hip", "xpu"]


def _dotted(number: int) -> str | None:
    """12040 as "12.4"; None without CUDA."""
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


git_version = "unknown"
debug = False
cuda: str | None = _dotted(cuda_version())
hip: str | None = None
xpu: str | None = None

accept_paths(__name__)
