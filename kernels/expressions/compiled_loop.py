"""The compiled loop of a spec, and its pieces in threads: machine code of the text that `loops`
writes for it.

Imports llvmlite, which takes a moment: import this in the functions that compile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from oneflow.kernels.expressions.loops import Loop, Spec, loop_parameters
from oneflow.kernels.native.machine_code import address_of, called, vector_bytes
from oneflow.kernels.native.thread_pool import hand_out_loop, piece_caller

__all__ = ["compile_spec", "hand_out_loop", "piece_caller"]


@lru_cache(maxsize=4096)
def compile_spec(spec: Spec) -> Callable[..., int]:
    """The function of a spec (loops.py); from the cache on disk where it is there."""
    address = address_of(Loop(spec, vector_bytes()).text("KERNEL"), steps=True)
    function: Callable[..., int] = called(_prototype(spec), address)
    return function


def _prototype(spec: Spec) -> Any:
    parameters = loop_parameters(len(spec.outputs) + len(spec.inputs), spec.scalars, spec.draws)
    kinds = [_CTYPES[kind] for kind in parameters]
    kinds += [ctypes.c_void_p, *[ctypes.c_int64] * 3]
    return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)


_CTYPES: dict[str, Any] = {
    "O": ctypes.py_object, "d": ctypes.c_double, "q": ctypes.c_int64, "Q": ctypes.c_uint64
}  # fmt: skip
