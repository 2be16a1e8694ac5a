"""Matrices, as `flow.linalg` has them: inverted, solved with, factored."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.functional.arithmetic import mul
from oneflow.functional.complex_numbers import conj
from oneflow.functional.elementwise import masked_fill
from oneflow.functional.linear_algebra import matmul
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import amax
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import broadcast_shapes, expand, reshape, tril, triu, unsqueeze
from oneflow.functional.shaping import diagonal as plane_diagonal
from oneflow.functional.shaping import transpose as exchange
from oneflow.ops import linalg as ops
from oneflow.ops import unary
from oneflow.tensor.tensor import Tensor

slogdet_result = namedtuple("slogdet_result", ("sign", "logabsdet"))
qr_result = namedtuple("qr_result", ("Q", "R"))
eigh_result = namedtuple("eigh_result", ("eigenvalues", "eigenvectors"))
svd_result = namedtuple("svd_result", ("U", "S", "Vh"))
lstsq_result = namedtuple("lstsq_result", ("solution", "residuals", "rank", "singular_values"))


def inv(A: Tensor) -> Tensor:
    """The inverse of each matrix. Raises LinAlgError for a singular one."""
    return ops.inv(A)


def det(A: Tensor) -> Tensor:
    """The determinant of each matrix."""
    return ops.det(A)


def slogdet(A: Tensor) -> slogdet_result:
    """(sign, logabsdet): the sign of each determinant, and the logarithm of its absolute value."""
    return slogdet_result(*ops.slogdet(A))


def logdet(input: Tensor) -> Tensor:
    """The logarithm of each determinant; NaN for negative ones."""
    sign, log = ops.slogdet(input)
    return masked_fill(log, sign < 0, math.nan)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The X with A @ X = B, or X @ A = B if not left. B: matrices, or vectors where A has one more
    dim.
    """
    if not left:
        return exchange(solve(exchange(A, -2, -1), exchange(B, -2, -1)), -2, -1)
    is_vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.type.shape == A.type.shape[:-1])
    b = unsqueeze(B, -1) if is_vector else B
    if A.ndim < 2 or b.ndim < 2 or A.type.shape[-1] != b.type.shape[-2]:
        raise ShapeError(f"solve: Incompatible shapes of A {A.type} and B {B.type}")
    lead = tuple(broadcast_shapes(A.type.shape[:-2], b.type.shape[:-2]))
    out = ops.solve(expand(A, (*lead, *A.type.shape[-2:])), expand(b, (*lead, *b.type.shape[-2:])))
    return reshape(out, out.type.shape[:-1]) if is_vector else out


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """`solve` with a triangular A, of which the other triangle is not read."""
    part = triu(A, int(unitriangular)) if upper else tril(A, -int(unitriangular))
    if unitriangular:
        ones = unary.full_like(A.detach(), value=1)
        part = part + tril(triu(ones))
    return solve(part, B, left=left)


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The triangular factor of each symmetric positive definite matrix."""
    out = ops.cholesky(A)
    return exchange(out, -2, -1) if upper else out


def cholesky_method(input: Tensor, upper: bool = False) -> Tensor:
    """The triangular factor of each symmetric positive definite matrix."""
    return cholesky(input, upper=upper)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The X with A @ X = B for A given by its triangular factor."""
    low = exchange(L, -2, -1) if upper else L
    first = solve_triangular(low, B, upper=False)
    return solve_triangular(exchange(low, -2, -1), first, upper=True)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix given by its triangular factor."""
    low = tril(exchange(L, -2, -1) if upper else L)
    back = ops.inv(low)
    return matmul(exchange(back, -2, -1), back)


def qr(A: Tensor, mode: str = "reduced") -> qr_result:
    """(Q, R): orthonormal columns, and an upper triangular matrix."""
    if mode not in ("reduced", "r"):
        raise ArgumentError(f"qr: mode is 'reduced' or 'r', got {mode!r}")
    q, r = ops.qr(A)
    return qr_result(q if mode == "reduced" else A.new_empty((0,)), r)


def eigh(A: Tensor, UPLO: str = "L") -> eigh_result:
    """(eigenvalues, eigenvectors) of each symmetric matrix, ascending."""
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError(f"eigh: Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return eigh_result(*ops.eigh(A if UPLO.upper() == "L" else exchange(A, -2, -1)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of each symmetric matrix, ascending."""
    found: Tensor = eigh(A, UPLO)[0]
    return found


def svd(A: Tensor, full_matrices: bool = False) -> svd_result:
    """(U, S, Vh) with A = U @ diag(S) @ Vh; full_matrices: must be False, or A square."""
    if full_matrices and A.type.shape[-1] != A.type.shape[-2]:
        raise ArgumentError("svd: there are no full matrices; pass full_matrices=False")
    return svd_result(*ops.svd(A))


def svdvals(A: Tensor) -> Tensor:
    """The singular values of each matrix, descending."""
    return ops.svd(A)[1]


def _epsilon(A: Tensor) -> float:
    return float(np.finfo(A.type.dtype.np).eps) * max(A.type.shape[-2:])


def pinv(
    A: Tensor, rcond: float | None = None, hermitian: bool = False, *,
    atol: float | None = None, rtol: float | None = None,
) -> Tensor:  # fmt: skip
    """The Moore-Penrose inverse of each matrix."""
    relative = rtol if rcond is None else rcond
    if relative is None:
        relative = 0.0 if atol else _epsilon(A)
    return ops.pinv(_mirrored(A) if hermitian else A, rtol=float(relative), atol=float(atol or 0.0))


def _mirrored(A: Tensor) -> Tensor:
    """The symmetric matrices of which A has the lower triangles."""
    return tril(A) + exchange(tril(A, -1), -2, -1)


def matrix_rank(
    A: Tensor, tol: float | None = None, hermitian: bool = False, *,
    atol: float | None = None, rtol: float | None = None,
) -> Tensor:  # fmt: skip
    """The number of singular values of each matrix that do not count as 0."""
    values = ops.svd(_mirrored(A.detach()) if hermitian else A.detach())[1]
    if not values.type.shape[-1]:
        return total(as_type(values, dtypes.int64), -1)
    absolute = tol if tol is not None else atol
    relative = rtol if rtol is not None else 0.0 if absolute is not None else _epsilon(A)
    least = mul(amax(values, -1, True), relative)
    if absolute is not None:
        least = unary.clamp(least, min=float(absolute))
    return total(as_type(values > least, dtypes.int64), -1)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """The product of n copies of each matrix; n < 0: of its inverse."""
    if A.ndim < 2 or A.type.shape[-1] != A.type.shape[-2]:
        raise ShapeError(f"matrix_power: must be batches of square matrices, got {A.type}")
    if n < 0:
        return matrix_power(ops.inv(A), -n)
    if n == 0:
        return mul(A, 0) + tril(triu(unary.full_like(A.detach(), value=1)))
    half = matrix_power(A, n // 2) if n > 1 else A
    if n == 1:
        return A
    square = matmul(half, half)
    return matmul(square, A) if n % 2 else square


def lstsq(
    A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> lstsq_result:
    """(solution, residuals, rank, singular_values) of the least squares problem A @ X = B."""
    if A.ndim < 2:
        raise ShapeError(f"lstsq: input must have at least 2 dimensions, got {A.type}")
    x = matmul(pinv(A, rcond), B)
    m, n = A.type.shape[-2:]
    empty = A.new_empty((0,))
    gap = matmul(A, x) - B
    residuals = total(gap * gap, -2) if m > n else empty
    return lstsq_result(x, residuals, matrix_rank(A, rtol=rcond), empty)


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A diagonal of two dims, by default the last ones, as the last dim."""
    return plane_diagonal(A, offset, dim1, dim2)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The inner products along `dim`, the first factor conjugated."""
    return total(mul(conj(x), y), dim)
