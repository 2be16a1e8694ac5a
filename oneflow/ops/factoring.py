"""Factors of matrices in the last two dims, in the packed forms of LAPACK: triangles with pivots,
and reflectors.
"""

from __future__ import annotations

from oneflow.core.dtype import int32, int64
from oneflow.core.errors import ShapeError
from oneflow.core.op import Op, declare, leading_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, concat, gather, shape, slicing, unary
from oneflow.ops.checks import require_dtype, require_same_dtype
from oneflow.ops.linalg import (
    batch_signatures,
    columns,
    require_matrices,
    solve,
    transposed,
    unit_like,
)
from oneflow.ops.matmul import matmul


class Lu(Op):
    """(lu, pivots, info) of each matrix p @ l @ u: the triangles l (ones on its diagonal) and u in
    one matrix; row i was exchanged with row pivots[i] - 1; info: which element of the diagonal of
    u is 0, counted from 1, else 0."""

    name = "lu_factor"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 3

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType, TensorType]:
        require_matrices("lu_factor", x)
        *lead, m, n = x.shape
        return (
            x.meta,
            TensorType((*lead, min(m, n)), int32),
            TensorType(tuple(lead), int32),
        )

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return batch_signatures(x, 3)

    @staticmethod
    def grad(
        d: Tensor,
        d_pivots: Tensor | None,
        d_info: Tensor | None,
        x: Tensor,
        lu: Tensor,
        pivots: Tensor,
        info: Tensor,
    ) -> Gradients:
        def d_x() -> Tensor:
            m, n = x.meta.shape[-2:]
            found = _lu_grad(d, lu, m, n)
            order = pivots_to_order(pivots, rows=m, is_inverse=True)
            lead = order.meta.shape
            index = shape.expand(
                shape.reshape(order, shape=(*lead, 1)), shape=tuple(found.meta.shape)
            )
            return gather.dim_gather(found, index, dim=len(lead) - 1)

        return (d_x,)


lu_factor = declare(Lu)


def _rows(x: Tensor, start: int, stop: int) -> Tensor:
    n = x.meta.ndim
    whole = tuple(x.meta.shape)
    return slicing.slice(
        x,
        starts=(*(0,) * (n - 2), start, 0),
        stops=(*whole[:-2], stop, whole[-1]),
        steps=(1,) * n,
    )


def _lu_grad(d: Tensor, lu: Tensor, m: int, n: int) -> Tensor:
    """The gradient of the matrix with its rows in the order of the factors."""
    k = min(m, n)
    square = columns(_rows(lu, 0, k), 0, k)
    low = binary.add(shape.tril(square, diagonal=-1), unit_like(square))
    up = shape.triu(square, diagonal=0)
    d_square = columns(_rows(d, 0, k), 0, k)
    d_low = shape.tril(d_square, diagonal=-1)
    inner_low = matmul(transposed(low), d_low)
    inner_up = matmul(shape.triu(d_square, diagonal=0), transposed(up))
    rest: Tensor | None = None
    if n > k:
        d_right = columns(d, k, n)
        rest = solve(transposed(low), d_right)
        inner_low = binary.sub(inner_low, matmul(d_right, transposed(columns(lu, k, n))))
    elif m > k:
        d_below = _rows(d, k, m)
        rest = transposed(solve(up, transposed(d_below)))
        inner_up = binary.sub(inner_up, matmul(transposed(_rows(lu, k, m)), d_below))
    inner = binary.add(shape.tril(inner_low, diagonal=-1), shape.triu(inner_up, diagonal=0))
    found = solve(transposed(low), transposed(solve(up, transposed(inner))))
    if rest is None:
        return found
    return concat.concat(found, rest, dim=lu.meta.ndim - (1 if n > k else 2))


class PivotsToOrder(Op):
    """The order of rows that the exchanges of `lu_factor` leave behind: element i says which row of
    the matrix became row i; is_inverse: which row the matrix's row i became."""

    name = "pivots_to_order"

    @staticmethod
    def infer(pivots: Operand, *, rows: int, is_inverse: bool = False) -> TensorType:
        require_dtype("pivots_to_order", "pivots", pivots, int32)
        if not pivots.ndim or pivots.shape[-1] > rows:
            raise ShapeError(f"pivots_to_order: {pivots} are no pivots of {rows} rows")
        return TensorType((*pivots.shape[:-1], rows), int64)

    @staticmethod
    def positions(pivots: TensorType, *, rows: int, **_: object) -> dict[int, range]:
        return {0: range(1, rows + 1)}

    @staticmethod
    def sbp(pivots: TensorType, **_: object) -> list[SbpSignature]:
        return leading_signatures(pivots.ndim - 1, 1)


pivots_to_order = declare(PivotsToOrder)


class Ldl(Op):
    """(ld, pivots, info) of each symmetric matrix p @ l @ d @ l.T @ p.T, of which the lower
    triangle is read, by Bunch and Kaufman's pivots: d has blocks of one and two rows; rows k and
    pivots[k] - 1 were exchanged, a block of two has -(p + 1) of its second row in both places.

    is_hermitian: l.H instead of l.T, for complex numbers.  info: as that of `lu_factor`.
    """

    name = "ldl_factor"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 3

    @staticmethod
    def infer(
        x: Operand, *, is_hermitian: bool = False
    ) -> tuple[TensorType, TensorType, TensorType]:
        require_matrices("ldl_factor", x, square=True)
        return x.meta, TensorType(x.shape[:-1], int32), TensorType(x.shape[:-2], int32)

    @staticmethod
    def sbp(x: TensorType, *, is_hermitian: bool) -> list[SbpSignature]:
        return batch_signatures(x, 3)


ldl_factor = declare(Ldl)


class LdlSolve(Op):
    """The x with a @ x = b, a given by its factors ld and pivots; all have the same batch dims."""

    name = "ldl_solve"
    precision = "keep"
    widens = ("cpu", "cuda")

    @staticmethod
    def infer(
        ld: Operand, pivots: Operand, b: Operand, *, is_hermitian: bool = False
    ) -> TensorType:
        require_matrices("ldl_solve", ld, square=True)
        require_same_dtype("ldl_solve", ld, b)
        require_dtype("ldl_solve", "pivots", pivots, int32)
        if pivots.shape != ld.shape[:-1] or ld.shape[:-1] != b.shape[:-1]:
            raise ShapeError(f"ldl_solve: shapes of {ld}, {pivots} and {b} do not match")
        return b.meta

    @staticmethod
    def sbp(
        ld: TensorType, pivots: TensorType, b: TensorType, *, is_hermitian: bool
    ) -> list[SbpSignature]:
        return [*leading_signatures(ld.ndim - 2, 3), signature("B B P -> P")]


ldl_solve = declare(LdlSolve)


class Geqrf(Op):
    """(a, tau): the reflectors whose product is the q of each matrix q @ r.

    r is the upper triangle of a; reflector i is 1 - tau[i] v v^H for the v with 0 before its
    element i, 1 there, and column i of a below.
    """

    name = "geqrf"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 2

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        require_matrices("geqrf", x)
        *lead, m, n = x.shape
        return x.meta, x.meta.with_shape((*lead, min(m, n)))

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return batch_signatures(x, 2)


geqrf = declare(Geqrf)


class MatrixExp(Op):
    """The exponential of each square matrix: the sum of x^k / k!."""

    name = "matrix_exp"
    precision = "keep"
    widens = ("cpu", "cuda")

    @staticmethod
    def infer(x: Operand) -> TensorType:
        require_matrices("matrix_exp", x, square=True)
        return x.meta

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        """The upper right block of exp([[x.T, d], [0, x.T]]) (Higham, Functions of Matrices)."""

        def d_x() -> Tensor:
            n, across = x.meta.shape[-1], x.meta.ndim - 1
            turned = transposed(x)
            zeros = unary.full_like(d, value=0)
            above = concat.concat(turned, d, dim=across)
            below = concat.concat(zeros, turned, dim=across)
            found = matrix_exp(concat.concat(above, below, dim=across - 1))
            return columns(_rows(found, 0, n), n, 2 * n)

        return (d_x,)


matrix_exp = declare(MatrixExp)
