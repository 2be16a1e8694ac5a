"""Matrix products: matmul, the gradient of a shared weight, linear, and those with an epilogue."""

from __future__ import annotations

import string
from math import prod

from oneflow.core.errors import DTypeError, ShapeError
from oneflow.core.op import Factors, Op, declare, einsum_signatures
from oneflow.core.operand import Gradients, Operand, Tensor
from oneflow.core.sbp import BROADCAST, PARTIAL, SbpSignature, Split
from oneflow.core.tensor_type import TensorType
from oneflow.ops.reduce import sum_to_shape
from oneflow.ops.shape import expand, reshape

_BATCH_LETTERS = string.ascii_lowercase[:10]
_ABSENT = "."  # a dim of size 1 that is stretched: takes a position, but is no letter


class Matmul(Op):
    """out = a @ b over the last two dims; the dims before broadcast as NumPy's do.

    a: (..., m, k), or (..., k, m) if transpose_a.  b: (..., k, n), or (..., n, k) if transpose_b.
    out: (..., m, n).
    """

    name = "matmul"
    precision = "lower"

    @staticmethod
    def infer(
        a: Operand, b: Operand, *, transpose_a: bool = False, transpose_b: bool = False
    ) -> TensorType:
        _check_operands("matmul", a, b)
        rows, inner = _matrix(a, transpose_a)
        inner_b, columns = _matrix(b, transpose_b)
        if inner != inner_b:
            raise ShapeError(
                f"matmul: a {a} has {inner} columns, but b {b} needs {inner_b}"
                f" (transpose_a={transpose_a}, transpose_b={transpose_b})"
            )
        batch = _broadcast_batch(a, b)
        return TensorType((*batch, rows, columns), a.dtype)

    @staticmethod
    def flops(a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool) -> int:
        rows, inner = _matrix(a, transpose_a)
        return 2 * prod(_broadcast_batch(a, b)) * rows * inner * _matrix(b, transpose_b)[1]

    @staticmethod
    def factors(
        a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool
    ) -> Factors | None:
        is_of_two = b.ndim == 2 and (a.ndim == 2 or not transpose_a)
        return Factors((0, 1), (transpose_a, transpose_b)) if is_of_two else None

    @staticmethod
    def sbp(
        a: TensorType, b: TensorType, *, transpose_a: bool, transpose_b: bool
    ) -> list[SbpSignature]:
        out = Matmul.infer(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
        letters = _BATCH_LETTERS[: out.ndim - 2]
        left = _batch_letters(a, out, letters) + ("km" if transpose_a else "mk")
        right = _batch_letters(b, out, letters) + ("nk" if transpose_b else "kn")
        return einsum_signatures(f"{left},{right}->{letters}mn")

    @staticmethod
    def grad(
        d_out: Tensor, a: Tensor, b: Tensor, out: Tensor, *, transpose_a: bool, transpose_b: bool
    ) -> Gradients:
        return (
            lambda: _grad_a(d_out, a, b, transpose_a, transpose_b),
            lambda: _grad_b(d_out, a, b, transpose_a, transpose_b),
        )


matmul = declare(Matmul)


class MatmulWeightGrad(Op):
    """out = sum over all leading dims of a^T @ d: the gradient of a 2-D weight, as one product.

    a: (..., k).  d: (..., n), same leading dims.  out: (k, n), or (n, k) if transpose.
    """

    name = "matmul_weight_grad"
    precision = "lower"

    @staticmethod
    def infer(a: Operand, d: Operand, *, transpose: bool = False) -> TensorType:
        _check_operands("matmul_weight_grad", a, d)
        if a.shape[:-1] != d.shape[:-1]:
            raise ShapeError(f"matmul_weight_grad: {a} and {d} differ before the last dim")
        k, n = a.shape[-1], d.shape[-1]
        return TensorType((n, k) if transpose else (k, n), a.dtype)

    @staticmethod
    def flops(a: TensorType, d: TensorType, *, transpose: bool) -> int:
        return 2 * a.numel * d.shape[-1]

    @staticmethod
    def factors(*_: TensorType, transpose: bool) -> Factors:
        return Factors((1, 0) if transpose else (0, 1), (True, False))

    @staticmethod
    def sbp(a: TensorType, d: TensorType, *, transpose: bool) -> list[SbpSignature]:
        rows = _BATCH_LETTERS[: a.ndim - 1]
        return einsum_signatures(f"{rows}k,{rows}n->{'nk' if transpose else 'kn'}")

    @staticmethod
    def grad(d_out: Tensor, a: Tensor, d: Tensor, out: Tensor, *, transpose: bool) -> Gradients:
        return (
            lambda: _rows_times(d, d_out, transpose_b=not transpose),
            lambda: _rows_times(a, d_out, transpose_b=transpose),
        )


matmul_weight_grad = declare(MatmulWeightGrad)


class Linear(Op):
    """out = x @ w^T + b.   x: (..., in); w: (out, in); b: (out,); out: (..., out)."""

    name = "linear"
    precision = "lower"

    @staticmethod
    def infer(x: Operand, w: Operand, b: Operand) -> TensorType:
        if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[1]:
            raise ShapeError(f"linear: x {x} does not fit w {w}; x needs {w.shape[-1:]} columns")
        if b.shape != w.shape[:1]:
            raise ShapeError(f"linear: b {b} does not fit w {w}; b needs shape [{w.shape[0]}]")
        if not x.dtype is w.dtype is b.dtype:
            raise DTypeError(f"linear: x {x}, w {w} and b {b} must have one dtype")
        return TensorType((*x.shape[:-1], w.shape[0]), x.dtype)

    @staticmethod
    def flops(x: TensorType, w: TensorType, b: TensorType) -> int:
        return (2 * x.shape[-1] + 1) * prod(x.shape[:-1]) * w.shape[0]

    @staticmethod
    def factors(*_: TensorType) -> Factors:
        return Factors((0, 1), (False, True), bias=2)

    @staticmethod
    def sbp(x: TensorType, w: TensorType, b: TensorType) -> list[SbpSignature]:
        last = Split(x.ndim - 1)
        rows = [
            SbpSignature((Split(i), BROADCAST, BROADCAST), (Split(i),)) for i in range(x.ndim - 1)
        ]
        return [
            *rows,
            SbpSignature((BROADCAST, Split(0), Split(0)), (last,)),
            SbpSignature((last, Split(1), PARTIAL), (PARTIAL,)),
            SbpSignature((PARTIAL, BROADCAST, PARTIAL), (PARTIAL,)),
            SbpSignature((BROADCAST, PARTIAL, PARTIAL), (PARTIAL,)),
        ]

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, w: Tensor, b: Tensor, out: Tensor) -> Gradients:
        return (
            lambda: _rows_times(d_out, w),
            lambda: matmul_weight_grad(x, d_out, transpose=True),
            lambda: sum_rows(d_out),
        )


linear = declare(Linear)


class SumRows(Op):
    """out[j] = sum of x[..., j] over all dims but the last: the gradient of a bias.   x: (..., n);
    out: (n,).
    """

    name = "sum_rows"
    precision = "follow"

    @staticmethod
    def infer(x: Operand) -> TensorType:
        if x.ndim < 1:
            raise ShapeError(f"sum_rows: needs at least one dim, got {x}")
        return TensorType(x.shape[-1:], x.dtype)

    @staticmethod
    def flops(x: TensorType) -> int:
        return x.numel

    @staticmethod
    def sbp(x: TensorType) -> list[SbpSignature]:
        rows = [SbpSignature((Split(i),), (PARTIAL,)) for i in range(x.ndim - 1)]
        return [
            *rows,
            SbpSignature((Split(x.ndim - 1),), (Split(0),)),
            SbpSignature((PARTIAL,), (PARTIAL,)),
        ]

    @staticmethod
    def grad(d_out: Tensor, x: Tensor, out: Tensor) -> Gradients:
        return (lambda: expand(d_out, shape=x.meta.shape),)


sum_rows = declare(SumRows)


class Product(Op):
    """out = f(scale * a @ b + bias + added), as libraries of GPUs compute it in one go.

    a, b: matrices of rows of their last dim, transposed if transpose_a, transpose_b.  epilogue:
    words of EPILOGUE in their order; those of NEEDED have an operand each behind b, those of
    GIVEN an output each behind `out`. Made by ranks of several ops (actors/epilogues.py).
    """

    name = "product"
    precision = "lower"
    EPILOGUE = (
        "bias", "added", "relu", "gelu", "gelu_grad", "saved", "sum_out", "sum_a", "sum_b",
    )  # fmt: skip
    """All words.

    bias: one number a column is added.  added: a matrix is.  gelu: in its tanh form.
    gelu_grad: the result times gelu' of the operand.  saved: what gelu was applied to.
    sum_out, sum_a, sum_b: sums over the rows of out, over the dim of a or of b that is summed.
    """
    NEEDED = ("bias", "added", "gelu_grad")
    GIVEN = ("saved", "sum_out", "sum_a", "sum_b")

    @staticmethod
    def infer(
        *operands: Operand,
        transpose_a: bool = False,
        transpose_b: bool = False,
        scale: float = 1.0,
        epilogue: tuple[str, ...] = (),
    ) -> tuple[TensorType, ...]:
        if len(operands) < 2:
            raise ShapeError(f"product: needs two matrices, got {len(operands)}")
        a, b, *others = operands
        _check_operands("product", a, b)
        rows, inner = _flat(a, transpose_a)
        inner_b, columns = _flat(b, transpose_b)
        if prod(inner) != prod(inner_b):
            raise ShapeError(f"product: a {a} does not fit b {b}; {inner} is to be {inner_b}")
        out = TensorType((*rows, *columns), a.dtype)
        wanted = [columns if e == "bias" else out.shape for e in epilogue if e in Product.NEEDED]
        if [x.shape for x in others] != wanted:
            raise ShapeError(f"product: {epilogue} needs operands of {wanted}, got {others}")
        shapes = {"saved": out.shape, "sum_out": columns, "sum_a": rows, "sum_b": columns}
        given = [out.with_shape(shapes[e]) for e in epilogue if e in Product.GIVEN]
        return (out, *given)

    @staticmethod
    def flops(
        a: TensorType,
        b: TensorType,
        *others: TensorType,
        transpose_a: bool,
        transpose_b: bool,
        **_: object,
    ) -> int:
        rows, inner = _flat(a, transpose_a)
        return 2 * prod(rows) * prod(inner) * prod(_flat(b, transpose_b)[1])


product = declare(Product)


# ---- shapes --------------------------------------------------------------------------------------


def _check_operands(who: str, a: Operand, b: Operand) -> None:
    least = 2 if who == "matmul" else 1
    if a.ndim < least or b.ndim < least:
        raise ShapeError(f"{who}: needs tensors of at least {least} dims, got {a} and {b}")
    if a.dtype is not b.dtype:
        raise DTypeError(f"{who}: {a} and {b} must have one dtype")


def _flat(t: Operand, transposed: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Dims of rows and of columns of a matrix of rows of the last dim."""
    rows, columns = t.shape[:-1], t.shape[-1:]
    return (columns, rows) if transposed else (rows, columns)


def _matrix(t: Operand, transposed: bool) -> tuple[int, int]:
    rows, columns = t.shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _broadcast_batch(a: Operand, b: Operand) -> tuple[int, ...]:
    left, right = a.shape[:-2], b.shape[:-2]
    ndim = max(len(left), len(right))
    left, right = (1,) * (ndim - len(left)) + left, (1,) * (ndim - len(right)) + right
    for x, y in zip(left, right, strict=True):
        if x != y and 1 not in (x, y):
            raise ShapeError(f"matmul: the batch dims of {a} and {b} do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def _batch_letters(t: TensorType, out: TensorType, letters: str) -> str:
    skipped = out.ndim - t.ndim
    sizes = zip(t.shape[:-2], out.shape[skipped:-2], letters[skipped:], strict=True)
    return "".join(letter if size == whole else _ABSENT for size, whole, letter in sizes)


# ---- gradients -----------------------------------------------------------------------------------


def _grad_a(d_out: Tensor, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    if transpose_a:
        full = matmul(b, d_out, transpose_a=transpose_b, transpose_b=True)
    else:
        full = matmul(d_out, b, transpose_b=not transpose_b)
    return _sum_batch(full, a.meta)


def _grad_b(d_out: Tensor, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    if b.meta.ndim == 2 and a.meta.ndim > 2 and not transpose_a:
        return matmul_weight_grad(a, d_out, transpose=transpose_b)
    if transpose_b:
        full = matmul(d_out, a, transpose_a=True, transpose_b=transpose_a)
    else:
        full = matmul(a, d_out, transpose_a=not transpose_a)
    return _sum_batch(full, b.meta)


def _sum_batch(full: Tensor, wanted: TensorType) -> Tensor:
    """Sums over the batch dims along which an operand was stretched."""
    if full.meta.shape == wanted.shape:
        return full

    out: Tensor = sum_to_shape(full, wanted.shape)
    return out


def _rows_times(a: Tensor, w: Tensor, transpose_b: bool = False) -> Tensor:
    """a @ w, where `a` may be a single row (k,)."""
    if a.meta.ndim > 1:
        return matmul(a, w, transpose_b=transpose_b)
    product = matmul(reshape(a, shape=(1, *a.meta.shape)), w, transpose_b=transpose_b)
    out: Tensor = reshape(product, shape=product.meta.shape[1:])
    return out
