"""Norms of vectors and matrices, as `flow.linalg` has them."""

from __future__ import annotations

import math

from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ArgumentError
from oneflow.core.operand import DimLike
from oneflow.functional.dims import many_dims
from oneflow.functional.reduction import amax, amin
from oneflow.functional.reduction import norm as reduce_norm
from oneflow.functional.reduction import sum as total
from oneflow.ops import unary
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

    ord: "fro"; 1 or -1 (largest or smallest column sum), inf or -inf (row sum).
    """
    rows, columns = many_dims(dim, input.ndim, "matrix_norm")
    if ord == "fro":
        return reduce_norm(input, "fro", (rows, columns), keepdim, dtype)
    if isinstance(ord, str) or ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(f"matrix_norm: ord must be 'fro', 1, -1, inf or -inf, got {ord!r}")
    x = input if dtype is None else input.to(dtype)
    summed, kept = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = total(unary.abs(x), summed, True)
    extreme = (amax if ord > 0 else amin)(sums, kept, True)
    return extreme if keepdim else total(extreme, (rows, columns))


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
