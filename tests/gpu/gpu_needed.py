"""`need_gpu()` skips a test file, with the reason, where there is no CuPy or no CUDA device."""

from __future__ import annotations

from typing import Any

import pytest


def need_gpu(count: int = 1) -> Any:
    """CuPy, where at least `count` CUDA devices are there."""
    cupy = pytest.importorskip("cupy", reason="no CuPy")
    try:
        found = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no CUDA device: {error}", allow_module_level=True)
    if found < count:
        pytest.skip(f"needs {count} CUDA devices, found {found}", allow_module_level=True)
    return cupy
