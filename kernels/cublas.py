"""Products by cuBLAS, called past CuPy.

CuPy refuses every product while a CUDA graph is recorded, and has none for matrices at addresses of
their own in half precision.

A handle belongs to a thread and a GPU; its workspace is allocated with it, so that a recorded
product allocates nothing.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from oneflow.core.errors import DeviceError

DATA = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
"""cudaDataType of the dtypes that products take."""

_COMPUTE, _COMPUTE_64, _COMPUTE_TF32 = 68, 70, 77  # cublasComputeType; the first in float32
_DEFAULT_ALGORITHM = -1
_WORKSPACE_NBYTES = 32 << 20  # what NVIDIA advises for its newest GPUs
_ONE = {kind: np.ones((), kind) for kind in ("float32", "float64")}
_ZERO = {kind: np.zeros((), kind) for kind in ("float32", "float64")}
_handles = threading.local()


class Factor(NamedTuple):
    """Matrices as cuBLAS takes them: it counts columns first.

    address: of the first matrix, or of an array of addresses.  is_turned: it is to transpose them.
    leading: elements from a column to the next.  stride: elements from a matrix to the next.
    """

    address: int
    is_turned: bool
    leading: int
    stride: int


class Sizes(NamedTuple):
    """Rows and columns of the result as cuBLAS sees it, depth of the sums, products of a stack."""

    rows: int
    columns: int
    depth: int
    products: int


def multiply(sizes: Sizes, left: Factor, right: Factor, out: Factor, dtype: str) -> None:
    """out <- left @ right, a stack of them at equal strides. Raises DeviceError."""
    alpha, beta, data, compute = _numbers(dtype)
    _check(
        _library().cublasGemmStridedBatchedEx(
            _handle(), int(left.is_turned), int(right.is_turned), *sizes[:3], alpha,
            ctypes.c_void_p(left.address), data, left.leading, ctypes.c_longlong(left.stride),
            ctypes.c_void_p(right.address), data, right.leading, ctypes.c_longlong(right.stride),
            beta, ctypes.c_void_p(out.address), data, out.leading, ctypes.c_longlong(out.stride),
            sizes.products, compute, _DEFAULT_ALGORITHM,
        ),
        sizes,
    )  # fmt: skip


def multiply_at(sizes: Sizes, left: Factor, right: Factor, out: Factor, dtype: str) -> None:
    """out <- left @ right, for matrices whose addresses lie in arrays on the GPU. Raises
    DeviceError.
    """
    alpha, beta, data, compute = _numbers(dtype)
    _check(
        _library().cublasGemmBatchedEx(
            _handle(), int(left.is_turned), int(right.is_turned), *sizes[:3], alpha,
            ctypes.c_void_p(left.address), data, left.leading,
            ctypes.c_void_p(right.address), data, right.leading,
            beta, ctypes.c_void_p(out.address), data, out.leading,
            sizes.products, compute, _DEFAULT_ALGORITHM,
        ),
        sizes,
    )  # fmt: skip


def _numbers(dtype: str) -> tuple[ctypes.c_void_p, ctypes.c_void_p, int, int]:
    """1 and 0 as cuBLAS reads them, its numbers of the dtype and of the arithmetic."""
    kind = "float64" if dtype == "float64" else "float32"
    one, zero = (ctypes.c_void_p(x[kind].ctypes.data) for x in (_ONE, _ZERO))
    return one, zero, DATA[dtype], arithmetic(dtype)


def arithmetic(dtype: str) -> int:
    """Return the cublasComputeType for operands of a dtype: sums in float32, or in float64;
    products in TF32 where CuPy is told to (CUPY_TF32).
    """
    if dtype == "float64":
        return _COMPUTE_64
    from cupy._core import _routines_linalg as linalg

    is_tf32 = dtype == "float32" and (
        linalg.get_compute_type(np.dtype(dtype)) == linalg.COMPUTE_TYPE_TF32
    )
    return _COMPUTE_TF32 if is_tf32 else _COMPUTE


@cache
def _library() -> ctypes.CDLL:
    """The library that CuPy has loaded, found by its name."""
    import cupy
    from cupy.cuda import cublas  # noqa: F401  # loads it, wherever it is

    major = cupy.cuda.runtime.runtimeGetVersion() // 1000
    return ctypes.CDLL(f"libcublas.so.{major}")


class _Handle:
    """cuBLAS for the current thread on the current GPU."""

    def __init__(self) -> None:
        import cupy

        self.pointer = ctypes.c_void_p()
        _check(_library().cublasCreate_v2(ctypes.byref(self.pointer)), None)
        self.workspace: Any = cupy.cuda.alloc(_WORKSPACE_NBYTES)

    def on(self, stream: int) -> ctypes.c_void_p:
        """Itself, its products in the order of `stream`."""
        library = _library()
        # A new stream takes the workspace back to cuBLAS's own, which a recording cannot use.
        _check(library.cublasSetStream_v2(self.pointer, ctypes.c_void_p(stream)), None)
        workspace = ctypes.c_void_p(self.workspace.ptr)
        size = ctypes.c_size_t(_WORKSPACE_NBYTES)
        _check(library.cublasSetWorkspace_v2(self.pointer, workspace, size), None)
        return self.pointer


def _handle() -> ctypes.c_void_p:
    import cupy

    return _own_handle().on(cupy.cuda.get_current_stream().ptr)


def workspace() -> tuple[int, int]:
    """The address and the bytes of the memory that products of this thread may use on the current
    GPU: one after another, as their stream has them.
    """
    return _own_handle().workspace.ptr, _WORKSPACE_NBYTES


def _own_handle() -> _Handle:
    """The handle of this thread on the current GPU."""
    import cupy

    made: dict[int, _Handle] = _handles.__dict__.setdefault("made", {})
    index = cupy.cuda.runtime.getDevice()
    if index not in made:
        made[index] = _Handle()
    return made[index]


def _check(status: int, sizes: Sizes | None) -> None:
    if status:
        what = f"a product of {sizes}" if sizes else "its set-up"
        raise DeviceError(f"cuBLAS refused {what} with status {status} (cublasStatus_t)")
