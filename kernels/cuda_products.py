"""Products of matrices and of stacks of them by cuBLAS, in the dtypes and strides they lie in.

CuPy copies matrices with gaps, as the heads of an attention are, and has no stacks of bfloat16.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from oneflow.core.tensor_type import TensorType
from oneflow.kernels import cublas, cublas_lt
from oneflow.kernels.array import Array, address
from oneflow.kernels.cublas import Factor, Sizes
from oneflow.kernels.cublas_lt import Addresses, Matrix, Plan, Request
from oneflow.ops.matmul import Product

_MATRIX_ALIGNMENT = 64  # bytes; of registers and of temporaries
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


_BITS = {
    "bias": cublas_lt.BIAS, "relu": cublas_lt.RELU, "gelu": cublas_lt.GELU,
    "gelu_grad": cublas_lt.DGELU | cublas_lt.SAVED, "saved": cublas_lt.SAVED,
    # Columns come first there: its left matrix is our right one.
    "sum_out": cublas_lt.BIAS_GRAD, "sum_a": cublas_lt.SUM_RIGHT, "sum_b": cublas_lt.SUM_LEFT,
}  # fmt: skip


def find_plan(
    types: Sequence[TensorType], turned: tuple[bool, bool], scale: float, epilogue: tuple[str, ...]
) -> Plan | None:
    """The plan of cuBLASLt for `Product` of arrays without gaps. None if it has none. types: of the
    output, then those of a and b.
    """
    whole = (_MATRIX_ALIGNMENT,) * 6
    shapes = [(prod(t.shape[:-1]), t.shape[-1]) for t in types]
    lies = [(columns, 1) for _, columns in shapes]
    request = _request(
        types[0].dtype.name, tuple(shapes), tuple(lies), turned, scale, epilogue, whole
    )
    return None if request is None else cublas_lt.plan(request)


def product_with_epilogue(
    out: Array,
    arrays: Sequence[Array],
    turned: tuple[bool, bool],
    scale: float,
    epilogue: tuple[str, ...],
) -> bool:
    """Compute `Product` by cuBLASLt; False, with nothing done, where it cannot. arrays: outputs
    behind `out`, a, b, further operands.
    """
    import cupy

    given = [e for e in epilogue if e in Product.GIVEN]
    needed = [e for e in epilogue if e in Product.NEEDED]
    left, right, *read = arrays[len(given) :]
    named = {**dict(zip(given, arrays, strict=False)), **dict(zip(needed, read, strict=True))}
    if cublas_lt.why_not() or not all(x.flags.c_contiguous for x in (out, *named.values())):
        return False
    if not (left.size and right.size):
        return False
    a, b = (x.reshape(-1, x.shape[-1]) for x in (left, right))
    flat = out.reshape(-1, out.shape[-1])
    sums = next((named[n] for n in ("bias", "sum_out", "sum_a", "sum_b") if n in named), None)
    saved = next((named[n] for n in ("saved", "gelu_grad") if n in named), None)
    others = [0 if x is None else address(x) for x in (sums, named.get("added"), saved)]
    at = Addresses(address(b), address(a), address(out), others[0], others[1], others[2])
    request = _request(
        out.dtype.name,
        (flat.shape, a.shape, b.shape),
        tuple((x.strides[0] // x.itemsize, x.strides[1] // x.itemsize) for x in (flat, a, b)),
        turned,
        scale,
        epilogue,
        tuple(min(x & -x, _MATRIX_ALIGNMENT) or _MATRIX_ALIGNMENT for x in (*at[:3], *others)),
    )
    found = None if request is None else cublas_lt.plan(request)
    if found is None:
        return False
    found.run(at, cupy.cuda.get_current_stream().ptr)
    return True


@lru_cache(maxsize=1024)
def _request(
    dtype: str,
    shapes: tuple[tuple[int, int], ...],
    lies: tuple[tuple[int, int], ...],
    turned: tuple[bool, bool],
    scale: float,
    epilogue: tuple[str, ...],
    alignments: tuple[int, ...],
) -> Request | None:
    """The product as cuBLASLt is asked for it; None if it cannot read its matrices.

    shapes, lies: of the result, a and b, and elements to the next row and column of them.
    alignments: of the addresses, in the order of `Addresses`.
    """
    (rows, columns), *_ = shapes
    factors = []
    for i, is_turned in ((2, turned[1]), (1, turned[0])):
        (height, width), (down, along) = shapes[i], lies[i]
        down, along = width if height == 1 else down, 1 if width == 1 else along
        if along == 1 and down >= width:
            matrix = Matrix(dtype, width, height, down)
        elif down == 1 and along >= height:
            matrix, is_turned = Matrix(dtype, height, width, along), not is_turned
        else:
            return None
        factors.append((matrix._replace(alignment=alignments[2 - i]), is_turned))
    (left, turns_left), (right, turns_right) = factors
    out = Matrix(dtype, columns, rows, columns, alignments[2])
    has_saved = "saved" in epilogue or "gelu_grad" in epilogue
    return Request(
        left,
        right,
        out,
        turns_left,
        turns_right,
        sum({_BITS[e] for e in epilogue if e in _BITS}),
        out._replace(alignment=alignments[4]) if "added" in epilogue else None,
        columns if has_saved else 0,
        scale,
        bias_alignment=alignments[3],
        saved_alignment=alignments[5],
    )


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
