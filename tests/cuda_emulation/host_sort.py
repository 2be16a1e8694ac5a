"""`cupy.cuda.thrust` on the host: the emulated device's memory is host memory.

A sort takes its place in the stream, also where the stream is being captured into a graph.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable
from typing import Any

import cuda_emulation  # type: ignore[import-not-found]
import numpy as np
from cupy.cuda import stream

available = True
_kept: list[Any] = []  # a graph calls a function as long as it lives
_library = cuda_emulation.library()
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_LEGACY_STREAMS = 2  # handles up to this are CUDA's own streams, which cannot be captured


def get_build_version() -> int:
    return 0


def _array(address: int, dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def _enqueue(work: Callable[[], None]) -> None:
    if os.environ.get("EMU_MODE") == "count":
        return
    current = stream.get_current_stream()
    function = _FUNCTION(lambda _: work())
    if current.ptr > _LEGACY_STREAMS and current.is_capturing():
        _kept.append(function)
    if _library.cudaLaunchHostFunc(ctypes.c_void_p(current.ptr), function, None):
        raise RuntimeError("the emulated sort could not be enqueued")


def sort(dtype: Any, data: int, keys: int, shape: Any) -> None:
    array = _array(data, dtype, tuple(shape))
    _enqueue(lambda: array.sort(axis=-1, kind="stable"))


def argsort(dtype: Any, index: int, data: int, keys: int, shape: Any) -> None:
    array, out = _array(data, dtype, tuple(shape)), _array(index, np.intp, tuple(shape))
    _enqueue(lambda: np.copyto(out, np.argsort(array, axis=-1, kind="stable")))


def lexsort(dtype: Any, index: int, keys: int, k: int, n: int) -> None:
    array, out = _array(keys, dtype, (k, n)), _array(index, np.intp, (n,))
    _enqueue(lambda: np.copyto(out, np.lexsort(array)))
