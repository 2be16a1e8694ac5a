"""`torch.__config__`: how the library was built."""

from __future__ import annotations

import os
import platform

import numpy as np

from oneflow.compat.torch.settings import get_num_threads

__all__ = ["parallel_info", "show"]


def show() -> str:
    """Return the versions of Python, NumPy and the system, one a line."""
    return "\n".join(
        (
            "oneflow built with:",
            f"  - Python {platform.python_version()}",
            f"  - NumPy {np.__version__}",
            f"  - {platform.system()} {platform.machine()}",
            "",
        )
    )


def parallel_info() -> str:
    """Return how many threads kernels may use."""
    return f"Threads of kernels: {get_num_threads()}\nProcessors: {os.cpu_count()}\n"


def _cxx_flags() -> str:
    """Return an empty text: nothing is compiled when the library is built."""
    return ""
