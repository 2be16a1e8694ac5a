"""Matrices inverted, solved with and factored, in the last two dims; other dims are batches.

Gradients are the known formulas (Giles, 2008; Seeger and others, 2017), written with products.
Those of factors that are no complex-differentiable functions of the matrix follow PyTorch's
convention (oneflow/ops/complex_numbers.py) themselves.
"""

from __future__ import annotations

from oneflow.core.dtype import int32
from oneflow.core.errors import AutogradError, DTypeError, ShapeError
from oneflow.core.op import Op, declare, leading_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, Split, signature
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, concat, reduce, scalar, shape, slicing, unary
from oneflow.ops.checks import FIELD, require, require_same_dtype
from oneflow.ops.complex_numbers import PARTS, WHOLES, as_complex, conj, imag, make_complex, real
from oneflow.ops.matmul import matmul


def require_matrices(name: str, x: Operand, *, square: bool = False) -> None:
    """Raises ShapeError or DTypeError unless x holds (square) matrices of a dtype of LAPACK."""
    require(name, x, FIELD)
    if x.dtype.bytes < 4:
        raise DTypeError(f"{name} needs float32, float64 or complex numbers, but its input is {x}")
    if x.ndim < 2:
        raise ShapeError(f"{name}: The input tensor must have at least 2 dimensions, got {x}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name}: must be batches of square matrices, but they are {x}")


def batch_signatures(x: TensorType, num_outputs: int) -> list[SbpSignature]:
    return [SbpSignature((Split(i),), (Split(i),) * num_outputs) for i in range(x.ndim - 2)]


def transposed(x: Tensor) -> Tensor:
    """The last two dims exchanged."""
    n = x.meta.ndim
    return shape.transpose(x, dims=(*range(n - 2), n - 1, n - 2))


def adjoint(x: Tensor) -> Tensor:
    """The conjugates of the transposed matrices."""
    turned = transposed(x)
    return conj(turned) if x.meta.dtype.is_complex else turned


def part_type(x: TensorType) -> TensorType:
    """The type of the sizes of the elements of x."""
    return x.with_dtype(PARTS.get(x.dtype, x.dtype))


def like(x: Tensor, other: Tensor) -> Tensor:
    """Real numbers, as complex ones if those of `other` are."""
    is_complex = other.meta.dtype.is_complex and not x.meta.dtype.is_complex
    return as_complex(x) if is_complex else x


def times(*factors: Tensor) -> Tensor:
    product = factors[0]
    for factor in factors[1:]:
        product = matmul(product, factor)
    return product


def wide(x: Tensor, where: int, size: int) -> Tensor:
    """A vector in the last dim as rows (where -2 is new) or columns (-1), `size` times."""
    own = x.meta.shape
    lead = (*own[:-1], 1, own[-1]) if where == -2 else (*own, 1)
    whole = (*own[:-1], size, own[-1]) if where == -2 else (*own, size)
    return shape.expand(shape.reshape(x, shape=lead), shape=whole)


def on_diagonal(x: Tensor) -> Tensor:
    size = x.meta.shape[-1]
    return shape.diag_embed(x, offset=0, rows=size, columns=size)


def unit_like(x: Tensor) -> Tensor:
    """Ones on the diagonal of square matrices of the type of x."""
    ones = unary.full_like(x, value=1)
    return shape.tril(shape.triu(ones, diagonal=0), diagonal=0)


class Inv(Op):
    """The inverse of each matrix."""

    name = "inv"
    precision = "keep"
    widens = ("cpu", "cuda")

    @staticmethod
    def infer(x: Operand) -> TensorType:
        require_matrices("inv", x, square=True)
        return x.meta

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        turned = transposed(out)
        return (lambda: unary.neg(times(turned, d, turned)),)


inv = declare(Inv)


class Solve(Op):
    """The x with a @ x = b, both with the same batch dims."""

    name = "solve"
    precision = "keep"
    widens = ("cpu", "cuda")

    @staticmethod
    def infer(a: Operand, b: Operand) -> TensorType:
        require_matrices("solve", a, square=True)
        require_same_dtype("solve", a, b)
        if a.shape[:-1] != b.shape[:-1] or b.ndim != a.ndim:
            raise ShapeError(f"solve: Incompatible shapes of a {a} and b {b}")
        return b.meta

    @staticmethod
    def sbp(a: TensorType, b: TensorType) -> list[SbpSignature]:
        return [*leading_signatures(a.ndim - 2, 2), signature("B P -> P")]

    @staticmethod
    def grad(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Gradients:
        d_b = solve(transposed(a), d)
        return lambda: unary.neg(matmul(d_b, transposed(out))), d_b


solve = declare(Solve)


class Slogdet(Op):
    """(sign, logarithm of the absolute value) of each determinant; the sign of a complex one is the
    number of size 1 with its angle."""

    name = "slogdet"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 2
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        require_matrices("slogdet", x, square=True)
        out = x.meta.with_shape(x.shape[:-2])
        return out, part_type(out)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return batch_signatures(x, 2)

    @staticmethod
    def grad(
        d_sign: Tensor | None, d: Tensor | None, x: Tensor, sign: Tensor, log: Tensor
    ) -> Gradients:
        if x.meta.dtype.is_complex:
            d_log = unary.full_like(log, value=0) if d is None else d
            turn = unary.full_like(log, value=0)
            if d_sign is not None:
                turn = unary.neg(imag(binary.mul(conj(d_sign), sign)))
            d = make_complex(d_log, turn)
        if d is None:
            return (None,)
        return (lambda: binary.mul(_as_matrices(d), adjoint(inv(x))),)


slogdet = declare(Slogdet)


def _as_matrices(x: Tensor) -> Tensor:
    """Numbers as matrices of one element."""
    return shape.reshape(x, shape=(*x.meta.shape, 1, 1))


class Det(Op):
    """The determinant of each matrix."""

    name = "det"
    precision = "keep"
    widens = ("cpu", "cuda")

    @staticmethod
    def infer(x: Operand) -> TensorType:
        require_matrices("det", x, square=True)
        return x.meta.with_shape(x.shape[:-2])

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return batch_signatures(x, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: binary.mul(_as_matrices(d), _cofactors(x)),)


det = declare(Det)


def _cofactors(x: Tensor) -> Tensor:
    """The derivatives of the determinant; of singular matrices too, so by singular values."""
    u, s, vh = svd(x)
    size = x.meta.shape[-1]
    rows = wide(s, -2, size)
    unit = unit_like(rows)
    others = binary.add(binary.mul(rows, scalar.scalar_add(unary.neg(unit), value=1)), unit)
    products = reduce.reduce_prod(others, dims=(others.meta.ndim - 1,))
    sign = binary.mul(slogdet(u)[0], slogdet(vh)[0])
    if x.meta.dtype.is_complex:
        u, vh = conj(u), conj(vh)
    scaled = binary.mul(u, like(wide(products, -2, size), u))
    return binary.mul(_as_matrices(sign), matmul(scaled, vh))


class Cholesky(Op):
    """The lower triangular l of each symmetric positive definite matrix l @ l.T (of complex
    numbers: the Hermitian l @ l.H), of which the lower triangle is read."""

    name = "cholesky"
    precision = "keep"
    widens = ("cpu", "cuda")
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> TensorType:
        require_matrices("cholesky", x, square=True)
        return x.meta

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: _cholesky_grad(d, out),)


cholesky = declare(Cholesky)


def _cholesky_grad(d: Tensor, out: Tensor) -> Tensor:
    product = matmul(adjoint(out), d)
    whole = shape.tril(product, diagonal=0)
    strict = shape.tril(product, diagonal=-1)
    half = scalar.scalar_mul(binary.add(whole, strict), value=0.5)
    back = inv(out)
    found = times(adjoint(back), half, back)
    return scalar.scalar_mul(binary.add(found, adjoint(found)), value=0.5)


class CholeskyEx(Op):
    """(l, info): as `cholesky`, but for a matrix that is not positive definite `info` is the order
    of the first leading minor that is not, and l holds the columns before it; else 0."""

    name = "cholesky_ex"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 2
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        require_matrices("cholesky_ex", x, square=True)
        return x.meta, TensorType(x.shape[:-2], int32)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return batch_signatures(x, 2)

    @staticmethod
    def grad(d: Tensor, d_info: Tensor | None, x: Tensor, out: Tensor, info: Tensor) -> Gradients:
        return (lambda: _cholesky_grad(d, out),)


cholesky_ex = declare(CholeskyEx)


class Qr(Op):
    """(q, r) of each matrix q @ r: orthonormal columns, upper triangular.

    is_complete: q is square, its further columns complete a basis.
    """

    name = "qr"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 2
    is_conjugating = False

    @staticmethod
    def infer(x: Operand, *, is_complete: bool = False) -> tuple[TensorType, TensorType]:
        require_matrices("qr", x)
        *lead, m, n = x.shape
        k = m if is_complete else min(m, n)
        return x.meta.with_shape((*lead, m, k)), x.meta.with_shape((*lead, k, n))

    @staticmethod
    def sbp(x: TensorType, *, is_complete: bool) -> list[SbpSignature]:
        return batch_signatures(x, 2)

    @staticmethod
    def grad(
        d_q: Tensor | None,
        d_r: Tensor | None,
        x: Tensor,
        q: Tensor,
        r: Tensor,
        *,
        is_complete: bool,
    ) -> Gradients:
        d_q = unary.full_like(q, value=0) if d_q is None else d_q
        d_r = unary.full_like(r, value=0) if d_r is None else d_r
        m, n = x.meta.shape[-2:]
        if is_complete and m > n:
            raise AutogradError(
                "The QR decomposition is not differentiable when mode='complete' and there are "
                f"more rows than columns, as in {x.meta}; take mode='reduced'"
            )
        if m >= n:
            return (_qr_grad(d_q, d_r, q, r),)
        right = columns(x, m, n)
        d_left, d_right = columns(d_r, 0, m), columns(d_r, m, n)
        d_q = binary.add(d_q, matmul(right, adjoint(d_right)))
        found = _qr_grad(d_q, d_left, q, columns(r, 0, m))
        return (concat.concat(found, matmul(q, d_right), dim=x.meta.ndim - 1),)


qr = declare(Qr)


def columns(x: Tensor, start: int, stop: int) -> Tensor:
    n = x.meta.ndim
    return slicing.slice(
        x,
        starts=(*(0,) * (n - 1), start),
        stops=(*x.meta.shape[:-1], stop),
        steps=(1,) * n,
    )


def _qr_grad(d_q: Tensor, d_r: Tensor, q: Tensor, r: Tensor) -> Tensor:
    inner = shape.tril(
        binary.sub(matmul(r, adjoint(d_r)), matmul(adjoint(d_q), q)),
        diagonal=0,
    )
    mirrored = binary.add(inner, adjoint(inner))
    halved = scalar.scalar_mul(binary.mul(mirrored, unit_like(mirrored)), value=0.5)
    whole = binary.add(d_q, matmul(q, binary.sub(mirrored, halved)))
    return adjoint(solve(r, adjoint(whole)))


class Eigh(Op):
    """(eigenvalues ascending, eigenvectors as columns) of each symmetric (Hermitian) matrix, of
    which the lower triangle is read."""

    name = "eigh"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 2
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        require_matrices("eigh", x, square=True)
        return part_type(x.meta.with_shape(x.shape[:-1])), x.meta

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return batch_signatures(x, 2)

    @staticmethod
    def grad(d_w: Tensor | None, d_v: Tensor | None, x: Tensor, w: Tensor, v: Tensor) -> Gradients:
        size = x.meta.shape[-1]
        parts = []
        if d_w is not None:
            parts.append(like(on_diagonal(d_w), v))
        if d_v is not None:
            gaps = binary.sub(wide(w, -2, size), wide(w, -1, size))
            turn = off_diagonal(matmul(adjoint(v), d_v))
            parts.append(binary.div(turn, like(filled(gaps), v)))
        inner = parts[0] if len(parts) == 1 else binary.add(*parts)
        return (lambda: times(v, inner, adjoint(v)),)


eigh = declare(Eigh)


def off_diagonal(x: Tensor) -> Tensor:
    """Square matrices with zeros on the diagonal."""
    return binary.sub(x, binary.mul(x, unit_like(x)))


def filled(x: Tensor) -> Tensor:
    """Ones on the diagonal, where there are zeros."""
    return binary.add(x, unit_like(x))


class Eig(Op):
    """(eigenvalues, eigenvectors as columns of length 1) of each matrix, as complex numbers."""

    name = "eig"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 2
    is_conjugating = False

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        require_matrices("eig", x, square=True)
        out = x.meta.with_dtype(WHOLES.get(x.dtype, x.dtype))
        return out.with_shape(x.shape[:-1]), out

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return batch_signatures(x, 2)

    @staticmethod
    def grad(d_w: Tensor | None, d_v: Tensor | None, x: Tensor, w: Tensor, v: Tensor) -> Gradients:
        """The length of each eigenvector stays 1: the part of d_v that changes it is taken off."""

        def d_x() -> Tensor:
            size = x.meta.shape[-1]
            back = adjoint(v)
            parts = []
            if d_w is not None:
                parts.append(on_diagonal(d_w))
            if d_v is not None:
                turn = matmul(back, d_v)
                along = real(reduce.reduce_sum(
                    binary.mul(turn, unit_like(turn)), dims=(turn.meta.ndim - 2,)
                ))  # fmt: skip
                lengths = binary.mul(matmul(back, v), as_complex(wide(along, -2, size)))
                gaps = conj(binary.sub(wide(w, -2, size), wide(w, -1, size)))
                parts.append(binary.div(off_diagonal(binary.sub(turn, lengths)), filled(gaps)))
            inner = parts[0] if len(parts) == 1 else binary.add(*parts)
            found = solve(back, matmul(inner, back))
            return found if x.meta.dtype.is_complex else real(found)

        return (d_x,)


eig = declare(Eig)


class Eigvals(Op):
    """The eigenvalues of each matrix, as complex numbers."""

    name = "eigvals"
    precision = "keep"
    widens = ("cpu", "cuda")

    @staticmethod
    def infer(x: Operand) -> TensorType:
        require_matrices("eigvals", x, square=True)
        return TensorType(x.shape[:-1], WHOLES.get(x.dtype, x.dtype))

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return batch_signatures(x, 1)


eigvals = declare(Eigvals)


class Svd(Op):
    """(u, s, vh) of each matrix u @ diag(s) @ vh, the singular values descending.

    is_full: u and vh are square; the vectors that complete them have no gradient.
    """

    name = "svd"
    precision = "keep"
    widens = ("cpu", "cuda")
    num_outputs = 3
    is_conjugating = False

    @staticmethod
    def infer(x: Operand, *, is_full: bool = False) -> tuple[TensorType, TensorType, TensorType]:
        require_matrices("svd", x)
        *lead, m, n = x.shape
        k = min(m, n)
        u = (*lead, m, m if is_full else k)
        vh = (*lead, n if is_full else k, n)
        s = part_type(x.meta.with_shape((*lead, k)))
        return x.meta.with_shape(u), s, x.meta.with_shape(vh)

    @staticmethod
    def sbp(x: TensorType, *, is_full: bool) -> list[SbpSignature]:
        return batch_signatures(x, 3)

    @staticmethod
    def grad(
        d_u: Tensor | None,
        d_s: Tensor | None,
        d_vh: Tensor | None,
        x: Tensor,
        u: Tensor,
        s: Tensor,
        vh: Tensor,
        *,
        is_full: bool,
    ) -> Gradients:
        k = min(x.meta.shape[-2:])
        if is_full:
            u, vh = columns(u, 0, k), transposed(columns(transposed(vh), 0, k))
            d_u = None if d_u is None else columns(d_u, 0, k)
            d_vh = None if d_vh is None else transposed(columns(transposed(d_vh), 0, k))
        return (lambda: _svd_grad(d_u, d_s, d_vh, u, s, vh),)


svd = declare(Svd)


def _svd_grad(
    d_u: Tensor | None, d_s: Tensor | None, d_vh: Tensor | None, u: Tensor, s: Tensor, vh: Tensor
) -> Tensor:
    m, n, k = u.meta.shape[-2], vh.meta.shape[-1], s.meta.shape[-1]
    rows, down = like(wide(s, -2, k), u), like(wide(s, -1, k), u)
    gaps = filled(binary.sub(unary.square(rows), unary.square(down)))
    inner = like(on_diagonal(unary.full_like(s, value=0) if d_s is None else d_s), u)
    if d_u is not None:
        turn = matmul(adjoint(u), d_u)
        skew = binary.sub(turn, adjoint(turn))
        inner = binary.add(inner, binary.mul(binary.div(off_diagonal(skew), gaps), rows))
        if d_vh is not None and u.meta.dtype.is_complex:
            angles = binary.mul(skew, unit_like(skew))
            twice = scalar.scalar_mul(rows, value=2)
            inner = binary.add(inner, binary.div(angles, twice))
    if d_vh is not None:
        turn = matmul(vh, adjoint(d_vh))
        skew = binary.sub(turn, adjoint(turn))
        inner = binary.add(inner, binary.mul(down, binary.div(off_diagonal(skew), gaps)))
    found = times(u, inner, vh)
    if d_u is not None and m > k:
        rest = binary.sub(d_u, times(u, adjoint(u), d_u))
        found = binary.add(found, matmul(binary.div(rest, like(wide(s, -2, m), u)), vh))
    if d_vh is not None and n > k:
        rest = binary.sub(d_vh, times(d_vh, adjoint(vh), vh))
        found = binary.add(found, matmul(u, binary.div(rest, like(wide(s, -1, n), u))))
    return found


class Pinv(Op):
    """The Moore-Penrose inverse of each matrix; singular values of at most `rtol` times the largest
    count as 0. is_hermitian: only the lower triangles are read."""

    name = "pinv"
    precision = "keep"
    widens = ("cpu", "cuda")
    is_conjugating = False

    @staticmethod
    def infer(
        x: Operand, *, rtol: float, atol: float = 0.0, is_hermitian: bool = False
    ) -> TensorType:
        require_matrices("pinv", x, square=is_hermitian)
        return x.meta.with_shape((*x.shape[:-2], x.shape[-1], x.shape[-2]))

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, **_: object) -> Gradients:
        """Golub and Pereyra, 1973."""

        def d_x() -> Tensor:
            turned, back = adjoint(out), adjoint(d)
            inner = times(out, back, out)
            left = binary.sub(back, times(x, out, back))
            right = binary.sub(back, times(back, out, x))
            found = binary.add(times(left, out, turned), times(turned, out, right))
            return binary.sub(found, adjoint(inner))

        return (d_x,)


pinv = declare(Pinv)
