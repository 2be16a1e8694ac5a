"""Norms of vectors and matrices, as `flow.linalg` has them."""

from __future__ import annotations

import math

from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.core.operand import DimLike
from oneflow.functional.arithmetic import div, mul
from oneflow.functional.complex_numbers import abs as size_of
from oneflow.functional.dims import many_dims
from oneflow.functional.elementwise import masked_fill
from oneflow.functional.linalg.matrices import inv_ex, svdvals
from oneflow.functional.reduction import amax, amin
from oneflow.functional.reduction import norm as reduce_norm
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import movedim, unsqueeze
from oneflow.tensor.tensor import Tensor


def vector_norm(
    x: Tensor,
    ord: float | str = 2,
    dim: DimLike = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """(sum |x|^ord)^(1/ord) over `dim`, all dims if None.  ord: a number, inf or -inf."""
    return reduce_norm(x, ord, dim, keepdim, dtype)


def matrix_norm(
    input: Tensor,
    ord: float | str = "fro",
    dim: DimLike = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """The norm of matrices in two dims.

    ord: "fro"; 1 or -1 (largest or smallest column sum), inf or -inf (row sum), 2 or -2 (largest or
    smallest singular value), "nuc" (the sum of all).
    """
    rows, columns = _two_dims(dim, input.ndim)
    if ord == "fro":
        return reduce_norm(input, "fro", (rows, columns), keepdim, dtype)
    if ord not in ("nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise ArgumentError(
            f"matrix_norm: ord must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}"
        )
    x = input if dtype is None else input.to(dtype)
    if ord in ("nuc", 2, -2):
        values = svdvals(movedim(x, (rows, columns), (-2, -1)))
        found = total(values, -1) if ord == "nuc" else (amax if ord == 2 else amin)(values, -1)
        if not keepdim:
            return found
        for place in sorted((rows, columns)):
            found = unsqueeze(found, place)
        return found
    summed, kept = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = total(size_of(x), summed, True)
    extreme = (amax if isinstance(ord, (int, float)) and ord > 0 else amin)(sums, kept, True)
    return extreme if keepdim else total(extreme, (rows, columns))


def _two_dims(dim: DimLike, ndim: int) -> tuple[int, int]:
    if ndim < 2:
        raise ShapeError(f"matrix_norm: The input tensor must have at least 2 dims, got {ndim}")
    found = many_dims(dim, ndim, "matrix_norm")
    if len(found) != 2:
        raise ArgumentError(f"matrix_norm: dim must be a 2-tuple, got {dim}")
    return found[0], found[1]


def tensor_norm(
    input: Tensor,
    p: float | str | None = "fro",
    dim: DimLike = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
    *,
    ord: float | str | None = None,
) -> Tensor:
    """(sum |x|^p)^(1/p) over `dim` (all dims if None); p: a number, inf, -inf, "fro" (2), or "nuc"
    (the sum of the singular values).
    """
    if (p if ord is None else ord) == "nuc":
        return matrix_norm(input, "nuc", (0, 1) if dim is None else dim, keepdim, dtype=dtype)
    return reduce_norm(input, p, dim, keepdim, dtype, ord=ord)


def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """The condition number of each matrix: its norm times that of its inverse; infinite for
    singular ones.

    p: the norm, as in `matrix_norm`; None: 2, and the matrices need not be square.
    """
    order = 2 if p is None else p
    if order in (2, -2):
        values = svdvals(A)
        if not values.meta.shape[-1]:
            return total(values, -1)
        large, small = amax(values, -1), amin(values, -1)
        return div(large, small) if order == 2 else div(small, large)
    if A.ndim < 2 or A.meta.shape[-1] != A.meta.shape[-2]:
        raise ShapeError(f"cond: must be batches of square matrices for the norm {p}, got {A.meta}")
    back, info = inv_ex(A)
    found = mul(matrix_norm(A, order), matrix_norm(back, order))
    return masked_fill(found, info != 0, math.inf)


def norm(
    input: Tensor,
    ord: float | str | None = None,
    dim: DimLike = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor:
    """A vector norm, or a matrix norm if `dim` names two dims (or the tensor has two) and ord
    is given.
    """
    if ord is None:
        return reduce_norm(input, 2, dim, keepdim, dtype)
    if dim is None and input.ndim == 2:
        dim = (0, 1)
    if isinstance(dim, (tuple, list)) and len(dim) == 2:
        return matrix_norm(input, ord, dim, keepdim, dtype=dtype)
    return vector_norm(input, ord, dim, keepdim, dtype=dtype)
