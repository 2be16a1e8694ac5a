"""Products of stacks of matrices by cuBLAS, in the dtypes and strides in which they lie.

CuPy copies matrices with gaps, as the heads of an attention are, and has no stacks of bfloat16.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from oneflow.kernels.array import Array, address

_DATA = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType
_COMPUTE, _COMPUTE_64, _COMPUTE_TF32 = 68, 70, 77  # cublasComputeType; the first in float32
_DEFAULT_ALGORITHM = -1
_ONE = {kind: np.ones((), kind) for kind in ("float32", "float64")}
_ZERO = {kind: np.zeros((), kind) for kind in ("float32", "float64")}


class _Stack(NamedTuple):
    """Matrices as cuBLAS takes them. is_turned: it is to transpose them.  leading: elements from a
    row (or column) to the next.  stride: elements from a matrix to the next.
    """

    array: Array
    is_turned: bool
    leading: int
    stride: int


def fits(out: Array) -> bool:
    """Can `stack_product` write into `out`?"""
    return out.dtype.name in _DATA and out.flags.c_contiguous and out.size > 0


def stack_product(a: Array, b: Array, out: Array) -> None:
    """out <- a @ b for stacks, which broadcast. out: without gaps, of the dtype of a and b."""
    from cupy.cuda import cublas, device

    lead = out.shape[:-2]
    (rows, columns), depth = out.shape[-2:], a.shape[-1]
    if depth == 0:
        out.fill(0)
        return
    count = int(np.prod(lead))
    left, right = _stack_of(a, lead), _stack_of(b, lead)
    kind = "float64" if out.dtype.name == "float64" else "float32"
    data = _DATA[out.dtype.name]
    # cuBLAS counts columns first: to it the memory holds the transposed matrices, whose product
    # has its factors in the other order.
    cublas.gemmStridedBatchedEx(
        device.get_cublas_handle(), int(right.is_turned), int(left.is_turned),
        columns, rows, depth, _ONE[kind].ctypes.data,
        address(right.array), data, right.leading, right.stride,
        address(left.array), data, left.leading, left.stride,
        _ZERO[kind].ctypes.data, address(out), data, columns, rows * columns,
        count, _compute_type(out.dtype), _DEFAULT_ALGORITHM,
    )  # fmt: skip


def _stack_of(x: Array, lead: tuple[int, ...]) -> _Stack:
    """x over the dims `lead`; a copy if cuBLAS cannot go through it with one stride."""
    import cupy

    found = _as_it_lies(x, lead)
    if found is None:
        found = _as_it_lies(cupy.ascontiguousarray(x), lead)
    if found is None:  # broadcast along some dims only
        whole = cupy.ascontiguousarray(cupy.broadcast_to(x, (*lead, *x.shape[-2:])))
        found = _as_it_lies(whole, lead)
    assert found is not None
    return found


def _as_it_lies(x: Array, lead: tuple[int, ...]) -> _Stack | None:
    rows, columns = x.shape[-2:]
    down, along = (s // x.itemsize for s in x.strides[-2:])
    down, along = (columns if rows == 1 else down), (1 if columns == 1 else along)
    if along == 1 and down >= columns:
        is_turned, leading = False, down
    elif (down == 1 or rows == 1) and along >= rows:
        is_turned, leading = True, along
    else:
        return None
    stride = _one_stride(x, lead)
    return None if stride is None else _Stack(x, is_turned, leading, stride)


def _one_stride(x: Array, lead: tuple[int, ...]) -> int | None:
    """Elements from a matrix to the next, counted over all of `lead`; None if it is not always the
    same."""
    missing = len(lead) - (x.ndim - 2)
    moves = [0] * missing + [
        0 if n == 1 else s // x.itemsize for n, s in zip(x.shape[:-2], x.strides, strict=False)
    ]
    step, inner = None, 1
    for size, move in zip(reversed(lead), reversed(moves), strict=True):
        if size == 1:
            continue
        if step is None:
            step = move
        elif move != step * inner:
            return None
        inner *= size
    return step or 0


def _compute_type(dtype: np.dtype[Any]) -> int:
    if dtype.name == "float64":
        return _COMPUTE_64
    from cupy._core import _routines_linalg as linalg

    is_tf32 = dtype.name == "float32" and (
        linalg.get_compute_type(dtype) == linalg.COMPUTE_TYPE_TF32
    )
    return _COMPUTE_TF32 if is_tf32 else _COMPUTE
