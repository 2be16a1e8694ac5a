"""Matrices inverted, solved with and factored, in the last two dims; other dims are batches.

Gradients are the known formulas (Giles, 2008; Seeger and others, 2017), written with products.
"""

from __future__ import annotations

from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Op, declare, leading_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops import binary, concat, reduce, scalar, shape, slicing, unary
from oneflow.ops.checks import require_float
from oneflow.ops.matmul import matmul


def _matrices(name: str, x: Operand, *, square: bool = False) -> None:
    require_float(name, x)
    if x.dtype.bytes < 4:
        raise DTypeError(f"{name} needs float32 or float64, but its input is {x}")
    if x.ndim < 2:
        raise ShapeError(f"{name}: The input tensor must have at least 2 dimensions, got {x}")
    if square and x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name}: must be batches of square matrices, but they are {x}")


def _batches(x: TensorType, num_outputs: int) -> list[SbpSignature]:
    return [SbpSignature((Split(i),), (Split(i),) * num_outputs) for i in range(x.ndim - 2)]


def transposed(x: Tensor) -> Tensor:
    """The last two dims exchanged."""
    n = x.type.ndim
    return shape.transpose(x, dims=(*range(n - 2), n - 1, n - 2))


def _times(*factors: Tensor) -> Tensor:
    product = factors[0]
    for factor in factors[1:]:
        product = matmul(product, factor)
    return product


def _wide(x: Tensor, where: int, size: int) -> Tensor:
    """A vector in the last dim as rows (where -2 is new) or columns (-1), `size` times."""
    own = x.type.shape
    lead = (*own[:-1], 1, own[-1]) if where == -2 else (*own, 1)
    whole = (*own[:-1], size, own[-1]) if where == -2 else (*own, size)
    return shape.expand(shape.reshape(x, shape=lead), shape=whole)


def _on_diagonal(x: Tensor) -> Tensor:
    size = x.type.shape[-1]
    return shape.diag_embed(x, offset=0, rows=size, columns=size)


def _unit_like(x: Tensor) -> Tensor:
    """Ones on the diagonal of square matrices of the type of x."""
    ones = unary.full_like(x, value=1)
    return shape.tril(shape.triu(ones, diagonal=0), diagonal=0)


class Inv(Op):
    """The inverse of each matrix."""

    name = "inv"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        _matrices("inv", x, square=True)
        return x.type

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        turned = transposed(out)
        return (lambda: unary.neg(_times(turned, d, turned)),)


inv = declare(Inv)


class Solve(Op):
    """The x with a @ x = b, both with the same batch dims."""

    name = "solve"

    @staticmethod
    def infer(a: Operand, b: Operand) -> TensorType:
        _matrices("solve", a, square=True)
        require_float("solve", a, b)
        if a.shape[:-1] != b.shape[:-1] or b.ndim != a.ndim:
            raise ShapeError(f"solve: Incompatible shapes of a {a} and b {b}")
        return b.type

    @staticmethod
    def sbp(a: TensorType, b: TensorType) -> list[SbpSignature]:
        return leading_signatures(a.ndim - 2, 2)

    @staticmethod
    def grad(d: Tensor, a: Tensor, b: Tensor, out: Tensor) -> Gradients:
        d_b = solve(transposed(a), d)
        return lambda: unary.neg(matmul(d_b, transposed(out))), d_b


solve = declare(Solve)


class Slogdet(Op):
    """(sign, logarithm of the absolute value) of each determinant."""

    name = "slogdet"
    num_outputs = 2

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        _matrices("slogdet", x, square=True)
        out = x.type.with_shape(x.shape[:-2])
        return out, out

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return _batches(x, 2)

    @staticmethod
    def grad(
        d_sign: Tensor | None, d: Tensor | None, x: Tensor, sign: Tensor, log: Tensor
    ) -> Gradients:
        if d is None:
            return (None,)
        return (lambda: binary.mul(_as_matrices(d), transposed(inv(x))),)


slogdet = declare(Slogdet)


def _as_matrices(x: Tensor) -> Tensor:
    """Numbers as matrices of one element."""
    return shape.reshape(x, shape=(*x.type.shape, 1, 1))


class Det(Op):
    """The determinant of each matrix."""

    name = "det"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        _matrices("det", x, square=True)
        return x.type.with_shape(x.shape[:-2])

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return _batches(x, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: binary.mul(_as_matrices(d), _cofactors(x)),)


det = declare(Det)


def _cofactors(x: Tensor) -> Tensor:
    """The derivatives of the determinant; of singular matrices too, so by singular values."""
    u, s, vh = svd(x)
    size = x.type.shape[-1]
    rows = _wide(s, -2, size)
    unit = _unit_like(rows)
    others = binary.add(binary.mul(rows, scalar.scalar_add(unary.neg(unit), value=1)), unit)
    products = reduce.reduce_prod(others, dims=(others.type.ndim - 1,))
    sign = binary.mul(slogdet(u)[0], slogdet(vh)[0])
    scaled = binary.mul(u, _wide(products, -2, size))
    return binary.mul(_as_matrices(sign), matmul(scaled, vh))


class Cholesky(Op):
    """The lower triangular l of each symmetric positive definite matrix l @ l.T."""

    name = "cholesky"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        _matrices("cholesky", x, square=True)
        return x.type

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor) -> Gradients:
        def d_x() -> Tensor:
            product = matmul(transposed(out), d)
            whole = shape.tril(product, diagonal=0)
            strict = shape.tril(product, diagonal=-1)
            half = scalar.scalar_mul(binary.add(whole, strict), value=0.5)
            back = inv(out)
            found = _times(transposed(back), half, back)
            return scalar.scalar_mul(binary.add(found, transposed(found)), value=0.5)

        return (d_x,)


cholesky = declare(Cholesky)


class Qr(Op):
    """(q, r) of each matrix q @ r: orthonormal columns, upper triangular."""

    name = "qr"
    num_outputs = 2

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        _matrices("qr", x)
        *lead, m, n = x.shape
        k = min(m, n)
        return x.type.with_shape((*lead, m, k)), x.type.with_shape((*lead, k, n))

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return _batches(x, 2)

    @staticmethod
    def grad(d_q: Tensor | None, d_r: Tensor | None, x: Tensor, q: Tensor, r: Tensor) -> Gradients:
        d_q = unary.full_like(q, value=0) if d_q is None else d_q
        d_r = unary.full_like(r, value=0) if d_r is None else d_r
        m, n = x.type.shape[-2:]
        if m >= n:
            return (_qr_grad(d_q, d_r, q, r),)
        right = _columns(x, m, n)
        d_left, d_right = _columns(d_r, 0, m), _columns(d_r, m, n)
        d_q = binary.add(d_q, matmul(right, transposed(d_right)))
        found = _qr_grad(d_q, d_left, q, _columns(r, 0, m))
        return (concat.concat(found, matmul(q, d_right), dim=x.type.ndim - 1),)


qr = declare(Qr)


def _columns(x: Tensor, start: int, stop: int) -> Tensor:
    n = x.type.ndim
    return slicing.slice(
        x,
        starts=(*(0,) * (n - 1), start),
        stops=(*x.type.shape[:-1], stop),
        steps=(1,) * n,
    )


def _qr_grad(d_q: Tensor, d_r: Tensor, q: Tensor, r: Tensor) -> Tensor:
    inner = binary.sub(matmul(r, transposed(d_r)), matmul(transposed(d_q), q))
    lower = shape.tril(inner, diagonal=-1)
    mirrored = binary.add(shape.tril(inner, diagonal=0), transposed(lower))
    whole = binary.add(d_q, matmul(q, mirrored))
    return transposed(solve(r, transposed(whole)))


class Eigh(Op):
    """(eigenvalues ascending, eigenvectors as columns) of each symmetric matrix, of which the lower
    triangle is read."""

    name = "eigh"
    num_outputs = 2

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType]:
        _matrices("eigh", x, square=True)
        return x.type.with_shape(x.shape[:-1]), x.type

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return _batches(x, 2)

    @staticmethod
    def grad(d_w: Tensor | None, d_v: Tensor | None, x: Tensor, w: Tensor, v: Tensor) -> Gradients:
        size = x.type.shape[-1]
        parts = []
        if d_w is not None:
            parts.append(_on_diagonal(d_w))
        if d_v is not None:
            gaps = binary.sub(_wide(w, -2, size), _wide(w, -1, size))
            parts.append(binary.div(_off_diagonal(matmul(transposed(v), d_v)), _filled(gaps)))
        inner = parts[0] if len(parts) == 1 else binary.add(*parts)
        return (lambda: _times(v, inner, transposed(v)),)


eigh = declare(Eigh)


def _off_diagonal(x: Tensor) -> Tensor:
    return binary.sub(x, binary.mul(x, _unit_like(x)))


def _filled(x: Tensor) -> Tensor:
    """Ones on the diagonal, where there are zeros."""
    return binary.add(x, _unit_like(x))


class Svd(Op):
    """(u, s, vh) of each matrix u @ diag(s) @ vh, the singular values descending."""

    name = "svd"
    num_outputs = 3

    @staticmethod
    def infer(x: Operand) -> tuple[TensorType, TensorType, TensorType]:
        _matrices("svd", x)
        *lead, m, n = x.shape
        k = min(m, n)
        u, s, vh = (*lead, m, k), (*lead, k), (*lead, k, n)
        return x.type.with_shape(u), x.type.with_shape(s), x.type.with_shape(vh)

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        return _batches(x, 3)

    @staticmethod
    def grad(
        d_u: Tensor | None,
        d_s: Tensor | None,
        d_vh: Tensor | None,
        x: Tensor,
        u: Tensor,
        s: Tensor,
        vh: Tensor,
    ) -> Gradients:
        m, n = x.type.shape[-2:]
        k = min(m, n)
        rows, columns = _wide(s, -2, k), _wide(s, -1, k)
        squares = binary.sub(unary.square(rows), unary.square(columns))
        inner = _on_diagonal(unary.full_like(s, value=0) if d_s is None else d_s)
        if d_u is not None:
            turn = matmul(transposed(u), d_u)
            skew = binary.div(binary.sub(turn, transposed(turn)), _filled(squares))
            inner = binary.add(inner, binary.mul(skew, rows))
        if d_vh is not None:
            turn = matmul(vh, transposed(d_vh))
            skew = binary.div(binary.sub(turn, transposed(turn)), _filled(squares))
            inner = binary.add(inner, binary.mul(columns, skew))
        found = _times(u, inner, vh)
        if d_u is not None and m > k:
            rest = binary.sub(d_u, _times(u, transposed(u), d_u))
            found = binary.add(found, matmul(binary.div(rest, _wide(s, -2, m)), vh))
        if d_vh is not None and n > k:
            rest = binary.sub(d_vh, _times(d_vh, transposed(vh), vh))
            found = binary.add(found, matmul(u, binary.div(rest, _wide(s, -1, n))))
        return (found,)


svd = declare(Svd)


class Pinv(Op):
    """The Moore-Penrose inverse of each matrix; singular values of at most `rtol` times the largest
    count as 0."""

    name = "pinv"

    @staticmethod
    def infer(x: Operand, *, rtol: float, atol: float = 0.0) -> TensorType:
        _matrices("pinv", x)
        return x.type.with_shape((*x.shape[:-2], x.shape[-1], x.shape[-2]))

    @staticmethod
    def sbp(x: TensorType, **_: object) -> list[SbpSignature]:
        return leading_signatures(x.ndim - 2, 1)

    @staticmethod
    def grad(d: Tensor, x: Tensor, out: Tensor, **_: object) -> Gradients:
        """Golub and Pereyra, 1973."""

        def d_x() -> Tensor:
            turned, back = transposed(out), transposed(d)
            inner = _times(out, back, out)
            left = binary.sub(back, _times(x, out, back))
            right = binary.sub(back, _times(back, out, x))
            found = binary.add(_times(left, out, turned), _times(turned, out, right))
            return binary.sub(found, transposed(inner))

        return (d_x,)


pinv = declare(Pinv)
