"""Matrices, as `flow.linalg` has them: inverted, solved with, factored."""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np

from oneflow.core import dtype as dtypes
from oneflow.core.errors import ArgumentError, LinAlgError, ShapeError
from oneflow.functional.arithmetic import add, mul
from oneflow.functional.complex_numbers import conj
from oneflow.functional.elementwise import clone, masked_fill, pick
from oneflow.functional.linalg.products import matmul
from oneflow.functional.promotion import as_type
from oneflow.functional.reduction import amax
from oneflow.functional.reduction import any as any_of
from oneflow.functional.reduction import sum as total
from oneflow.functional.shaping import broadcast_shapes, expand, reshape, tril, triu, unsqueeze
from oneflow.functional.shaping import diagonal as plane_diagonal
from oneflow.functional.shaping import transpose as exchange
from oneflow.ops import complex_numbers, factoring, unary
from oneflow.ops import linalg as ops
from oneflow.tensor.tensor import Tensor

inv_ex_result = namedtuple("inv_ex_result", ("inverse", "info"))
solve_ex_result = namedtuple("solve_ex_result", ("result", "info"))
cholesky_ex_result = namedtuple("cholesky_ex_result", ("L", "info"))
slogdet_result = namedtuple("slogdet_result", ("sign", "logabsdet"))
qr_result = namedtuple("qr_result", ("Q", "R"))
eigh_result = namedtuple("eigh_result", ("eigenvalues", "eigenvectors"))
eig_result = namedtuple("eig_result", ("eigenvalues", "eigenvectors"))
svd_result = namedtuple("svd_result", ("U", "S", "Vh"))
svd_of_result = namedtuple("svd_of_result", ("U", "S", "V"))
triangular_result = namedtuple("triangular_result", ("solution", "cloned_coefficient"))
lstsq_result = namedtuple("lstsq_result", ("solution", "residuals", "rank", "singular_values"))


def adjoint(A: Tensor) -> Tensor:
    """The matrices transposed, and of complex numbers the conjugates."""
    return conj(exchange(A, -2, -1))


def inv(A: Tensor) -> Tensor:
    """The inverse of each matrix. Raises LinAlgError for a singular one."""
    return ops.inv(A)


def inv_ex(A: Tensor, *, check_errors: bool = False) -> inv_ex_result:
    """(inverse, info): as `inv`, but of a singular matrix `info` is the element of the diagonal of
    its factor that is 0, counted from 1, and the inverse that of the unit matrix.

    check_errors: raise LinAlgError for it, which waits for the result.
    """
    regular, info = _regular("inv_ex", A, check_errors)
    return inv_ex_result(ops.inv(regular), info)


def _regular(name: str, A: Tensor, check_errors: bool) -> tuple[Tensor, Tensor]:
    """The matrices with unit matrices in the place of singular ones, and which those are."""
    _, _, info = factoring.lu_factor(A.detach())
    if check_errors:
        refuse(name, info, "singular: element {} of the diagonal of its factor is 0")
    is_singular = unsqueeze(unsqueeze(info != 0, -1), -1)
    unit = tril(triu(unary.full_like(A.detach(), value=1)))
    return pick(is_singular, unit, A), info


def refuse(name: str, info: Tensor, why: str) -> None:
    """Raise LinAlgError for the first matrix whose info is not 0.  why: its meaning."""
    if not bool(any_of(info != 0)):
        return
    found = np.atleast_1d(info.numpy())
    at = tuple(int(i) for i in np.argwhere(found)[0])
    where = f"(Batch element {', '.join(map(str, at))}): " if info.ndim else ""
    raise LinAlgError(f"linalg.{name}: {where}the matrix is {why.format(found[at])}")


def det(A: Tensor) -> Tensor:
    """The determinant of each matrix."""
    return ops.det(A)


def slogdet(A: Tensor) -> slogdet_result:
    """(sign, logabsdet): the sign of each determinant, and the logarithm of its absolute value."""
    return slogdet_result(*ops.slogdet(A))


def logdet(input: Tensor) -> Tensor:
    """The logarithm of each determinant; NaN for negative ones."""
    sign, log = ops.slogdet(input)
    if input.meta.dtype.is_complex:
        return add(complex_numbers.as_complex(log), unary.log(sign))
    return masked_fill(log, sign < 0, math.nan)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """The X with A @ X = B, or X @ A = B if not left. B: matrices, or vectors where A has one more
    dim.
    """
    is_vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.meta.shape == A.meta.shape[:-1])
    if not left and not is_vector:
        return exchange(solve(exchange(A, -2, -1), exchange(B, -2, -1)), -2, -1)
    if not left:
        raise ShapeError(f"solve: B must be matrices where left=False, got the vectors {B.meta}")
    b = unsqueeze(B, -1) if is_vector else B
    if A.ndim < 2 or b.ndim < 2 or A.meta.shape[-1] != b.meta.shape[-2]:
        raise ShapeError(f"solve: Incompatible shapes of A {A.meta} and B {B.meta}")
    lead = tuple(broadcast_shapes(A.meta.shape[:-2], b.meta.shape[:-2]))
    out = ops.solve(expand(A, (*lead, *A.meta.shape[-2:])), expand(b, (*lead, *b.meta.shape[-2:])))
    return reshape(out, out.meta.shape[:-1]) if is_vector else out


def solve_ex(
    A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False
) -> solve_ex_result:
    """(result, info): as `solve`, with the info of `inv_ex`."""
    regular, info = _regular("solve_ex", A, check_errors)
    return solve_ex_result(solve(regular, B, left=left), info)


def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """`solve` with a triangular A, of which the other triangle is not read."""
    if A.ndim < 2 or B.ndim < 2:
        raise ShapeError(f"solve_triangular: A and B must have two dims, got {A.meta}, {B.meta}")
    part = triu(A, int(unitriangular)) if upper else tril(A, -int(unitriangular))
    if unitriangular:
        ones = unary.full_like(A.detach(), value=1)
        part = part + tril(triu(ones))
    if not left:
        return exchange(solve(exchange(part, -2, -1), _whole(exchange(B, -2, -1), A)), -2, -1)
    return solve(part, _whole(B, A))


def _whole(B: Tensor, A: Tensor) -> Tensor:
    """B with the batch dims of A, so that it is not taken for vectors."""
    lead = tuple(broadcast_shapes(A.meta.shape[:-2], B.meta.shape[:-2]))
    return expand(B, (*lead, *B.meta.shape[-2:]))


def triangular_solve(
    input: Tensor,
    A: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> triangular_result:
    """(solution, A): `solve_triangular` with the arguments the other way round; transpose: with the
    transposed A.
    """
    turned = exchange(A, -2, -1) if transpose else A
    found = solve_triangular(turned, input, upper=upper != transpose, unitriangular=unitriangular)
    lead = found.meta.shape[:-2]
    return triangular_result(found, expand(A, (*lead, *A.meta.shape[-2:])))


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The triangular factor of each symmetric (Hermitian) positive definite matrix."""
    out = ops.cholesky(A)
    return adjoint(out) if upper else out


def cholesky_ex(
    A: Tensor, *, upper: bool = False, check_errors: bool = False
) -> cholesky_ex_result:
    """(L, info): as `cholesky`, but for a matrix that is not positive definite `info` is the order
    of its first leading minor that is not.

    check_errors: raise LinAlgError for it, which waits for the result.
    """
    out, info = ops.cholesky_ex(A)
    if check_errors:
        refuse("cholesky_ex", info, "not positive definite: the leading minor of order {} is not")
    return cholesky_ex_result(adjoint(out) if upper else out, info)


def cholesky_method(input: Tensor, upper: bool = False) -> Tensor:
    """The triangular factor of each symmetric positive definite matrix."""
    return cholesky(input, upper=upper)


def cholesky_solve(B: Tensor, L: Tensor, upper: bool = False) -> Tensor:
    """The X with A @ X = B for A given by its triangular factor."""
    low = adjoint(L) if upper else L
    first = solve_triangular(low, B, upper=False)
    return solve_triangular(adjoint(low), first, upper=True)


def cholesky_inverse(L: Tensor, upper: bool = False) -> Tensor:
    """The inverse of the matrix given by its triangular factor."""
    low = tril(adjoint(L) if upper else L)
    back = ops.inv(low)
    return matmul(adjoint(back), back)


def qr(A: Tensor, mode: str = "reduced") -> qr_result:
    """(Q, R): orthonormal columns, and an upper triangular matrix.

    mode: "reduced", "complete" (Q is square), or "r" (Q is empty).
    """
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"qr received unrecognized mode {mode!r}: 'reduced', 'complete' or 'r'")
    is_tall = A.ndim > 1 and A.meta.shape[-2] > A.meta.shape[-1]
    q, r = ops.qr(A, is_complete=mode == "complete" and is_tall)
    return qr_result(A.new_empty((0,)) if mode == "r" else q, r)


def qr_of(input: Tensor, some: bool = True) -> qr_result:
    """(Q, R) of each matrix; some: as many columns of Q as the matrix needs, not all."""
    return qr(input, "reduced" if some else "complete")


def eigh(A: Tensor, UPLO: str = "L") -> eigh_result:
    """(eigenvalues, eigenvectors) of each symmetric (Hermitian) matrix, ascending."""
    if UPLO.upper() not in ("L", "U"):
        raise ArgumentError(f"eigh: Expected UPLO argument to be 'L' or 'U', but got {UPLO}")
    return eigh_result(*ops.eigh(A if UPLO.upper() == "L" else adjoint(A)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of each symmetric matrix, ascending."""
    found: Tensor = eigh(A, UPLO)[0]
    return found


def eig(A: Tensor) -> eig_result:
    """(eigenvalues, eigenvectors) of each square matrix, as complex numbers."""
    return eig_result(*ops.eig(A))


def eigvals(A: Tensor) -> Tensor:
    """The eigenvalues of each square matrix, as complex numbers."""
    return ops.eig(A)[0] if A.requires_grad else ops.eigvals(A)


def svd(A: Tensor, full_matrices: bool = True, *, driver: str | None = None) -> svd_result:
    """(U, S, Vh) with A = U @ diag(S) @ Vh; full_matrices: U and Vh are square.

    driver: a choice of methods on a GPU; accepted, and changes nothing.
    """
    is_full = full_matrices and A.ndim > 1 and A.meta.shape[-1] != A.meta.shape[-2]
    return svd_result(*ops.svd(A, is_full=is_full))


def svd_of(input: Tensor, some: bool = True, compute_uv: bool = True) -> svd_of_result:
    """(U, S, V) with input = U @ diag(S) @ V.mH; some: not the columns that complete U and V.

    compute_uv: False for zeros in their places.
    """
    u, s, vh = svd(input, not some)
    if not compute_uv:
        m, n = input.meta.shape[-2:]
        lead = input.meta.shape[:-2]
        return svd_of_result(input.new_zeros((*lead, m, m)), s, input.new_zeros((*lead, n, n)))
    return svd_of_result(u, s, adjoint(vh))


def svdvals(A: Tensor, *, driver: str | None = None) -> Tensor:
    """The singular values of each matrix, descending."""
    return ops.svd(A)[1]


def _epsilon(A: Tensor) -> float:
    return float(np.finfo(A.meta.dtype.np).eps) * max(A.meta.shape[-2:])


Tolerance = float | Tensor | None


def pinv(
    A: Tensor, rcond: Tolerance = None, hermitian: bool = False, *,
    atol: Tolerance = None, rtol: Tolerance = None,
) -> Tensor:  # fmt: skip
    """The Moore-Penrose inverse of each matrix.

    rtol: singular values of at most so many times the largest count as 0; atol: of at most so much.
    """
    relative = rtol if rcond is None else rcond
    if isinstance(relative, Tensor) or isinstance(atol, Tensor):
        u, s, vh = ops.svd(_mirrored(A) if hermitian else A)
        is_kept = s > _least(A, s, atol, relative)
        back = masked_fill(1 / masked_fill(s, ~is_kept, 1.0), ~is_kept, 0.0)
        return matmul(mul(adjoint(vh), unsqueeze(back, -2)), adjoint(u))
    if relative is None:
        relative = 0.0 if atol else _epsilon(A)
    return ops.pinv(A, rtol=float(relative), atol=float(atol or 0.0), is_hermitian=hermitian)


def _least(A: Tensor, values: Tensor, atol: Tolerance, rtol: Tolerance) -> Tensor:
    """The size up to which singular values count as 0, in a last dim of 1."""
    if rtol is None:
        rtol = _epsilon(A)
        if isinstance(atol, Tensor):
            rtol = masked_fill(unary.full_like(atol, value=rtol), atol > 0, 0.0)
        elif atol:
            rtol = 0.0
    if not values.meta.shape[-1]:
        return values
    least = mul(amax(values, -1, True), unsqueeze(rtol, -1) if isinstance(rtol, Tensor) else rtol)
    if isinstance(atol, Tensor):
        bound = unsqueeze(atol, -1)
        return pick(least > bound, least, as_type(bound, least.meta.dtype))
    return unary.clamp(least, min=float(atol)) if atol else least


def _mirrored(A: Tensor) -> Tensor:
    """The symmetric (Hermitian) matrices of which A has the lower triangles."""
    low = tril(A, -1)
    diagonal = tril(triu(A))
    if A.meta.dtype.is_complex:
        real = complex_numbers.real(diagonal)
        diagonal = complex_numbers.as_complex(real)
    return low + diagonal + adjoint(low)


def matrix_rank(
    A: Tensor, tol: Tolerance = None, hermitian: bool = False, *,
    atol: Tolerance = None, rtol: Tolerance = None,
) -> Tensor:  # fmt: skip
    """The number of singular values of each matrix that do not count as 0; tolerances as those of
    `pinv`.

    tol: as atol, with nothing relative.
    """
    values = ops.svd(_mirrored(A.detach()) if hermitian else A.detach())[1]
    if tol is not None:
        atol, rtol = tol, 0.0
    least = _least(A, values, atol, rtol)
    return total(as_type(values > least, dtypes.int64), -1)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """The product of n copies of each matrix; n < 0: of its inverse."""
    if A.ndim < 2 or A.meta.shape[-1] != A.meta.shape[-2]:
        raise ShapeError(f"matrix_power: must be batches of square matrices, got {A.meta}")
    if n < 0:
        return matrix_power(ops.inv(A), -n)
    if n == 0:
        ones = unary.full_like(A.detach(), value=1)
        return masked_fill(A, as_type(ones, dtypes.bool_), 0) + tril(triu(ones))
    if n == 1:
        return clone(A)
    half = matrix_power(A, n // 2) if n > 3 else A
    square = matmul(half, half)
    return matmul(square, A) if n % 2 else square


_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def lstsq(
    A: Tensor, B: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> lstsq_result:
    """(solution, residuals, rank, singular_values) of the least squares problem A @ X = B.

    driver: chooses the results besides the solution: "gelsy" (the default) the rank, "gelsd" and
    "gelss" the singular values too, "gels" neither; residuals of each column where A has full rank
    and more rows than columns, but not of "gelsy".  B: matrices, or vectors where A has one more
    dim.
    """
    if A.ndim < 2:
        raise ShapeError(f"lstsq: input must have at least 2 dimensions, got {A.meta}")
    found = driver or "gelsy"
    if found not in _DRIVERS:
        raise ArgumentError(
            f"lstsq: parameter `driver` should be one of {', '.join(_DRIVERS)}, got {driver!r}"
        )
    is_vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.meta.shape == A.meta.shape[:-1])
    b = unsqueeze(B, -1) if is_vector else B
    x = matmul(pinv(A, rcond), b)
    m, n = A.meta.shape[-2:]
    residuals, values = _nothing_of(_parts_of(x)), _parts_of(A.new_empty((0,)))
    rank = A.new_empty((0,), dtype=dtypes.int64)
    if found != "gels":
        rank = matrix_rank(A, rtol=rcond)
    if found in ("gelsd", "gelss"):
        values = ops.svd(A.detach())[1]
    if m > n and found != "gelsy" and (found == "gels" or bool((rank == n).all())):
        residuals = total(_squares(matmul(A, x) - b), -2)
    return lstsq_result(reshape(x, x.meta.shape[:-1]) if is_vector else x, residuals, rank, values)


def _nothing_of(x: Tensor) -> Tensor:
    """No elements, with a gradient if x has one."""
    return reshape(x, (-1,))[:0] if x.numel() else reshape(x, (0,))


def _parts_of(x: Tensor) -> Tensor:
    return complex_numbers.real(x) if x.meta.dtype.is_complex else x


def _squares(x: Tensor) -> Tensor:
    return _parts_of(mul(x, conj(x)))


def diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """A diagonal of two dims, by default the last ones, as the last dim."""
    return plane_diagonal(A, offset, dim1, dim2)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The inner products along `dim`, the first factor conjugated."""
    return total(mul(conj(x), y), dim)
