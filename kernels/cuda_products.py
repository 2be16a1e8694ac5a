"""Products of matrices and of stacks of them by cuBLAS, in the dtypes and strides they lie in.

CuPy copies matrices with gaps, as the heads of an attention are, and has no stacks of bfloat16.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from oneflow.kernels import cublas
from oneflow.kernels.array import Array, address
from oneflow.kernels.cublas import Factor, Sizes

_KEPT = 1024  # sets of addresses; a step of a large graph uses some hundred
_addresses: OrderedDict[object, Any] = OrderedDict()
"""Arrays on the GPU that name the matrices of three stacks: made once for as long as registers stay
where they are. Their values follow from the key, so sharing them is safe.
"""
_recorded: dict[object, Any] = {}
"""Those that a recorded CUDA graph reads: they stay, 24 bytes a product of two matrices."""
_lock = threading.Lock()


class _Stack(NamedTuple):
    """Matrices as they lie. is_turned: cuBLAS is to transpose them.  leading: elements from a row
    (or column) to the next.  stride: elements from a matrix to the next, None if not always the
    same.  moves: bytes from one to the next along each dim.
    """

    array: Array
    is_turned: bool
    leading: int
    stride: int | None
    moves: tuple[int, ...]


def fits(a: Array, b: Array, out: Array) -> bool:
    """Can `product` write a @ b into `out`?"""
    name = out.dtype.name
    is_matrix = min(a.ndim, b.ndim) >= 2
    is_one_dtype = a.dtype.name == b.dtype.name == name
    return is_matrix and is_one_dtype and name in cublas.DATA and out.flags.c_contiguous


def product(a: Array, b: Array, out: Array) -> None:
    """out <- a @ b; the dims of stacks broadcast. out: without gaps, of the dtype of a and b."""
    lead, (rows, columns), depth = out.shape[:-2], out.shape[-2:], a.shape[-1]
    if not out.size:
        return
    if not depth:
        out.fill(0)
        return
    left, right = _stack_of(a, lead), _stack_of(b, lead)
    # cuBLAS counts columns first: to it the memory holds the transposed matrices, whose product
    # has its factors in the other order.
    sizes = Sizes(columns, rows, depth, int(np.prod(lead)))
    if left.stride is not None and right.stride is not None:
        target = Factor(address(out), False, columns, rows * columns)
        cublas.multiply(sizes, _factor(right), _factor(left), target, out.dtype.name)
        return
    target_moves = _moves(out, lead)
    stacks = [right, left, _Stack(out, False, columns, None, target_moves)]
    at, nbytes = _places(stacks, lead), 8 * sizes.products
    first, second, third = (
        Factor(at + i * nbytes, s.is_turned, s.leading, 0) for i, s in enumerate(stacks)
    )
    cublas.multiply_at(sizes, first, second, third, out.dtype.name)


def _factor(stack: _Stack) -> Factor:
    return Factor(address(stack.array), stack.is_turned, stack.leading, stack.stride or 0)


def _stack_of(x: Array, lead: tuple[int, ...]) -> _Stack:
    """x over the dims `lead`; a copy if cuBLAS cannot read its matrices."""
    import cupy

    found = _as_it_lies(x, lead)
    if found is None:
        found = _as_it_lies(cupy.ascontiguousarray(x), lead)
    assert found is not None
    return found


def _as_it_lies(x: Array, lead: tuple[int, ...]) -> _Stack | None:
    rows, columns = x.shape[-2:]
    down, along = (s // x.itemsize for s in x.strides[-2:])
    down, along = (columns if rows == 1 else down), (1 if columns == 1 else along)
    moves = _moves(x, lead)
    if along == 1 and down >= columns:
        return _Stack(x, False, down, _one_stride(moves, lead, x.itemsize), moves)
    if (down == 1 or rows == 1) and along >= rows:
        return _Stack(x, True, along, _one_stride(moves, lead, x.itemsize), moves)
    return None


def _moves(x: Array, lead: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes from a matrix to the next along each dim of `lead`; 0 where x broadcasts."""
    missing = len(lead) - (x.ndim - 2)
    own = (0 if n == 1 else s for n, s in zip(x.shape[:-2], x.strides, strict=False))
    return (*(0 for _ in range(missing)), *own)


def _one_stride(moves: tuple[int, ...], lead: tuple[int, ...], itemsize: int) -> int | None:
    """Elements from a matrix to the next, counted over all of `lead`; None if it is not always the
    same."""
    step, inner = None, 1
    for size, move in zip(reversed(lead), reversed(moves), strict=True):
        if size == 1:
            continue
        if step is None:
            step = move
        elif move != step * inner:
            return None
        inner *= size
    return (step or 0) // itemsize


def _places(stacks: list[_Stack], lead: tuple[int, ...]) -> int:
    """The address of an array on the GPU with those of all matrices, stack after stack."""
    import cupy

    bases = tuple(address(s.array) for s in stacks)
    key = (cupy.cuda.runtime.getDevice(), lead, bases, tuple(s.moves for s in stacks))
    with _lock:
        made = _addresses.get(key)
        if made is None:
            grid = np.indices(lead).reshape(len(lead), -1)
            places = [b + np.asarray(s.moves) @ grid for b, s in zip(bases, stacks, strict=True)]
            made = _addresses[key] = cupy.asarray(np.stack(places).astype(np.uint64))
            while len(_addresses) > _KEPT:
                _addresses.popitem(last=False)
        else:
            _addresses.move_to_end(key)
        if cupy.cuda.get_current_stream().is_capturing():
            _recorded[key] = made
    return address(made)
