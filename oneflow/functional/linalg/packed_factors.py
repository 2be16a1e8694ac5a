"""Factors of matrices in packed forms, solutions with them, and functions of matrices, as
`flow.linalg` has them.
"""

from __future__ import annotations

import math
from collections import namedtuple

from oneflow.core import dtype as dtypes
from oneflow.core.errors import ArgumentError, DTypeError, ShapeError
from oneflow.core.operand import DimLike
from oneflow.functional.creation import randn
from oneflow.functional.dims import many_dims
from oneflow.functional.gather_scatter import take_along_dim
from oneflow.functional.linalg.matrices import adjoint, qr, refuse, solve, solve_triangular, svd
from oneflow.functional.linalg.products import matmul
from oneflow.functional.shaping import (
    broadcast_shapes,
    expand,
    movedim,
    reshape,
    tril,
    triu,
    unsqueeze,
)
from oneflow.ops import factoring as ops
from oneflow.ops import gather, shape, unary
from oneflow.ops import linalg as matrices
from oneflow.tensor.tensor import Tensor

lu_factor_result = namedtuple("lu_factor_result", ("LU", "pivots"))
lu_factor_ex_result = namedtuple("lu_factor_ex_result", ("LU", "pivots", "info"))
lu_result = namedtuple("lu_result", ("P", "L", "U"))
ldl_factor_result = namedtuple("ldl_factor_result", ("LD", "pivots"))
ldl_factor_ex_result = namedtuple("ldl_factor_ex_result", ("LD", "pivots", "info"))
geqrf_result = namedtuple("geqrf_result", ("a", "tau"))
lowrank_result = namedtuple("lowrank_result", ("U", "S", "V"))


# ---- LU ------------------------------------------------------------------------------------------


def lu_factor_ex(
    A: Tensor, *, pivot: bool = True, check_errors: bool = False
) -> lu_factor_ex_result:
    """(LU, pivots, info): triangular factors in one matrix, and the exchanges of rows.

    info: the element of the diagonal of U that is 0, counted from 1, else 0.  check_errors: raise
    LinAlgError for it, which waits for the result.
    """
    if not pivot:
        raise ArgumentError("linalg.lu_factor: LU without pivoting is not implemented on the CPU")
    lu, pivots, info = ops.lu_factor(A)
    if check_errors:
        refuse("lu_factor_ex", info, "singular: element {} of the diagonal of U is 0")
    return lu_factor_ex_result(lu, pivots, info)


def lu_factor(A: Tensor, *, pivot: bool = True) -> lu_factor_result:
    """(LU, pivots): triangular factors in one matrix, and the exchanges of rows."""
    lu, pivots, _ = lu_factor_ex(A, pivot=pivot)
    return lu_factor_result(lu, pivots)


def lu_packed(
    A: Tensor, pivot: bool = True, get_infos: bool = False
) -> lu_factor_result | lu_factor_ex_result:
    """`lu_factor`, as `torch.lu`; get_infos: with the info of `lu_factor_ex`."""
    lu, pivots, info = lu_factor_ex(A, pivot=pivot)
    return lu_factor_ex_result(lu, pivots, info) if get_infos else lu_factor_result(lu, pivots)


def lu(A: Tensor, *, pivot: bool = True) -> lu_result:
    """(P, L, U) with A = P @ L @ U: a permutation, and two triangular factors."""
    packed, pivots, _ = lu_factor_ex(A, pivot=pivot)
    return lu_unpack(packed, pivots)


def lu_unpack(
    LU_data: Tensor, LU_pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True
) -> lu_result:
    """(P, L, U) of the results of `lu_factor`; those that are not unpacked are empty."""
    m, n = LU_data.meta.shape[-2:]
    k = min(m, n)
    empty = LU_data.new_empty((0,))
    permutation, low, up = empty, empty, empty
    if unpack_data:
        low = tril(LU_data[..., :k], -1) + _unit(LU_data[..., :k])
        up = triu(LU_data[..., :k, :])
    if unpack_pivots:
        if LU_pivots.meta.dtype is not dtypes.int32:
            raise ArgumentError(f"lu_unpack: pivots must be of int32, got {LU_pivots.meta}")
        order = ops.pivots_to_order(LU_pivots, rows=m, is_inverse=True)
        permutation = gather.one_hot(order, depth=m, dtype=LU_data.meta.dtype)
    return lu_result(permutation, low, up)


def _unit(x: Tensor) -> Tensor:
    """Ones on the diagonal."""
    return tril(triu(unary.full_like(x.detach(), value=1)))


def lu_solve(
    LU: Tensor, pivots: Tensor, B: Tensor, *, left: bool = True, adjoint: bool = False
) -> Tensor:
    """The X with A @ X = B for the A of `lu_factor`.

    left: False for X @ A = B.  adjoint: with the conjugate transpose of A.
    """
    if not left:
        turned = lu_solve(LU, pivots, _adjoint(B), adjoint=not adjoint)
        return _adjoint(turned)
    n = LU.meta.shape[-1]
    lead = tuple(
        broadcast_shapes(
            broadcast_shapes(LU.meta.shape[:-2], pivots.meta.shape[:-1]), B.meta.shape[:-2]
        )
    )
    b = expand(B, (*lead, *B.meta.shape[-2:]))
    if not adjoint:
        b = _by_rows(b, ops.pivots_to_order(pivots, rows=n))
        first = solve_triangular(LU, b, upper=False, unitriangular=True)
        return solve_triangular(LU, first, upper=True)
    turned = _adjoint(LU)
    first = solve_triangular(turned, b, upper=False)
    second = solve_triangular(turned, first, upper=True, unitriangular=True)
    return _by_rows(second, ops.pivots_to_order(pivots, rows=n, is_inverse=True))


_adjoint = adjoint


def _by_rows(x: Tensor, order: Tensor) -> Tensor:
    return take_along_dim(x, unsqueeze(order, -1), -2)


def lu_solve_of(b: Tensor, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:
    """`linalg.lu_solve`, as `torch.lu_solve`."""
    return lu_solve(LU_data, LU_pivots, b)


# ---- LDL -----------------------------------------------------------------------------------------


def ldl_factor_ex(
    A: Tensor, *, hermitian: bool = False, check_errors: bool = False
) -> ldl_factor_ex_result:
    """(LD, pivots, info) of each symmetric, or Hermitian, matrix, of which the lower triangle is
    read.

    info: as that of `lu_factor_ex`.
    """
    packed, pivots, info = ops.ldl_factor(A.detach(), is_hermitian=hermitian)
    if check_errors:
        refuse("ldl_factor_ex", info, "singular: element {} of the diagonal of D is 0")
    return ldl_factor_ex_result(packed, pivots, info)


def ldl_factor(A: Tensor, *, hermitian: bool = False) -> ldl_factor_result:
    """(LD, pivots) of each symmetric, or Hermitian, matrix."""
    packed, pivots, _ = ldl_factor_ex(A, hermitian=hermitian)
    return ldl_factor_result(packed, pivots)


def ldl_solve(LD: Tensor, pivots: Tensor, B: Tensor, *, hermitian: bool = False) -> Tensor:
    """The X with A @ X = B for the A of `ldl_factor`."""
    if B.ndim < 2:
        raise ShapeError(f"ldl_solve: B must have at least 2 dims, got {B.meta}")
    if LD.meta.shape[:-1] != pivots.meta.shape:
        raise ShapeError(f"ldl_solve: LD {LD.meta} and pivots {pivots.meta} do not match")
    lead = tuple(broadcast_shapes(LD.meta.shape[:-2], B.meta.shape[:-2]))
    return ops.ldl_solve(
        expand(LD.detach(), (*lead, *LD.meta.shape[-2:])),
        expand(pivots, (*lead, pivots.meta.shape[-1])),
        expand(B.detach(), (*lead, *B.meta.shape[-2:])),
        is_hermitian=hermitian,
    )


# ---- reflectors ----------------------------------------------------------------------------------


def geqrf(input: Tensor) -> geqrf_result:
    """(a, tau): the upper triangle R of each matrix Q @ R, and reflectors whose product is Q."""
    return geqrf_result(*ops.geqrf(input.detach()))


def _reflectors(name: str, A: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """v and t of the product 1 - v @ t @ v^H of the reflectors (Joffrain and others, Accumulating
    Householder transformations, revisited, 2006).
    """
    if A.ndim < 2:
        raise ShapeError(f"{name}: input must have at least 2 dimensions, got {A.meta}")
    count = tau.meta.shape[-1] if tau.ndim else 0
    lead = A.meta.shape[:-2]
    if not tau.ndim or count > A.meta.shape[-1] or tau.meta.shape[:-1] != lead:
        raise ShapeError(f"{name}: tau {tau.meta} does not match the reflectors {A.meta}")
    if tau.meta.dtype is not A.meta.dtype:
        raise DTypeError(f"{name}: tau dtype {tau.meta} does not match input dtype {A.meta}")
    below = tril(A[..., :count], -1)
    v = below + _unit(below)
    scales = shape.diag_embed(tau, offset=0, rows=count, columns=count)
    upper = triu(matmul(adjoint(v), v), 1)
    return v, solve(_unit(upper) + matmul(scales, upper), scales)


def householder_product(A: Tensor, tau: Tensor) -> Tensor:
    """The first columns, as many as A has, of the product of the reflectors that `geqrf` gives."""
    v, t = _reflectors("householder_product", A, tau)
    n = A.meta.shape[-1]
    if A.meta.shape[-2] < n:
        raise ShapeError(
            "householder_product: input.shape[-2] must be greater than or equal to "
            f"input.shape[-1], got {A.meta}"
        )
    turned = adjoint(v)[..., :n]
    return _unit(A) - matmul(v, matmul(t, turned))


def ormqr(
    input: Tensor, tau: Tensor, other: Tensor, left: bool = True, transpose: bool = False
) -> Tensor:
    """The product of the reflectors that `geqrf` gives, times `other`, without making it.

    left: False for `other` times the product.  transpose: its conjugate transpose.
    """
    v, t = _reflectors("ormqr", input, tau)
    rows = input.meta.shape[-2]
    if other.ndim != input.ndim or other.meta.shape[-2 if left else -1] != rows:
        raise ShapeError(f"ormqr: {other.meta} does not fit reflectors of {rows} elements")
    if transpose:
        t = adjoint(t)
    if left:
        return other - matmul(v, matmul(t, matmul(adjoint(v), other)))
    return other - matmul(matmul(matmul(other, v), t), adjoint(v))


# ---- functions of matrices -----------------------------------------------------------------------


def matrix_exp(A: Tensor) -> Tensor:
    """The exponential of each square matrix: the sum of A^k / k!."""
    return ops.matrix_exp(A)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of A as a map of tensors: its first `ind` dims become the last ones."""
    if ind <= 0:
        raise ArgumentError(f"tensorinv: Expected a strictly positive integer for 'ind', got {ind}")
    sizes = A.meta.shape
    first, last = math.prod(sizes[:ind]), math.prod(sizes[ind:])
    if first != last:
        raise ShapeError(
            f"tensorinv: Expected self to satisfy prod(shape[ind:]) == prod(shape[:ind]), but the "
            f"products of {A.meta} before and after dim {ind} are {first} and {last}"
        )
    return reshape(matrices.inv(reshape(A, (first, last))), (*sizes[ind:], *sizes[:ind]))


def tensorsolve(A: Tensor, B: Tensor, dims: DimLike = None) -> Tensor:
    """The X with tensordot(A, X, X.ndim) = B.  dims: of A, moved to its end first."""
    moved = A
    if dims is not None:
        chosen = many_dims(dims, A.ndim, "tensorsolve")
        moved = movedim(A, chosen, tuple(range(A.ndim - len(chosen), A.ndim)))
    out = moved.meta.shape[B.ndim :]
    size = math.prod(out)
    if size != B.numel():
        raise ShapeError(
            f"tensorsolve: Expected prod(A.shape[B.ndim:]) to be the number of elements of B, but "
            f"they are {size} and {B.numel()}"
        )
    return reshape(solve(reshape(moved, (B.numel(), size)), reshape(B, (size,))), out)


# ---- few singular values -------------------------------------------------------------------------


def svd_lowrank(
    A: Tensor, q: int | None = 6, niter: int | None = 2, M: Tensor | None = None
) -> lowrank_result:
    """(U, S, V) of about the q largest singular values, by random projections.

    niter: repetitions that make them exacter.  M: is taken from A first.
    Halko, Martinsson and Tropp, Finding structure with randomness, 2009.
    """
    x = A if M is None else A - M
    m, n = x.meta.shape[-2:]
    if m < n:
        u, s, v = svd_lowrank(adjoint(x), q, niter)
        return lowrank_result(v, s, u)
    count = 6 if q is None else q
    basis = _basis(x, count, 2 if niter is None else niter)
    u, s, vh = svd(matmul(adjoint(basis), x), full_matrices=False)
    return lowrank_result(matmul(basis, u), s, adjoint(vh))


def _basis(x: Tensor, count: int, repetitions: int) -> Tensor:
    """Orthonormal columns near the space of the largest singular values."""
    drawn = randn(x.meta.shape[-1], count, dtype=x.meta.dtype, device=x.device)
    q: Tensor = qr(matmul(x, drawn))[0]
    for _ in range(repetitions):
        q = qr(matmul(adjoint(x), q))[0]
        q = qr(matmul(x, q))[0]
    return q


def pca_lowrank(
    A: Tensor, q: int | None = None, center: bool = True, niter: int = 2
) -> lowrank_result:
    """`svd_lowrank` of the samples in the rows of A; center: with the mean of each column taken
    off.
    """
    m, n = A.meta.shape[-2:]
    count = min(6, m, n) if q is None else q
    if not 0 <= count <= min(m, n):
        raise ArgumentError(f"pca_lowrank: q(={count}) must be between 0 and {min(m, n)}")
    if niter < 0:
        raise ArgumentError(f"pca_lowrank: niter(={niter}) must be non-negative")
    return svd_lowrank(A - A.mean(-2, keepdim=True) if center else A, count, niter)
