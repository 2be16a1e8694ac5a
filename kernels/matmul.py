"""Matrix products through BLAS. Transposed operands go in as strided views, which BLAS reads in
place.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from oneflow.core import dtype as dtypes
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_products import fits, product
from oneflow.kernels.registry import Workspace, kernel
from oneflow.ops.matmul import Linear, Matmul, MatmulWeightGrad

_HALF = ("float16", "bfloat16")  # no BLAS on a CPU: computed in float32


def _in_float32(infer: Callable[..., TensorType]) -> Workspace:
    """Workspace of a half-precision product: every operand and the output in float32."""

    def types(ins: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        return tuple(t.with_dtype(dtypes.float32) for t in (*ins, infer(*ins, **attrs)))

    return types


def matrix_product(xp: ArrayModule, a: Array, b: Array, out: Array) -> None:
    """out <- a @ b."""
    if xp.__name__ == "cupy" and fits(a, b, out):
        product(a, b, out)
        return
    xp.matmul(a, b, out=out)


@kernel("matmul")
def matmul(
    xp: ArrayModule, out: Array, a: Array, b: Array, *, transpose_a: bool, transpose_b: bool
) -> None:
    if b.ndim == 2 and a.ndim > 2 and not transpose_a and a.flags.c_contiguous:
        # One product over all rows beats a loop over the batch.
        a, out = _rows(a), _rows(out)
    matrix_product(xp, _t(a, transpose_a), _t(b, transpose_b), out)


@kernel("matmul", device="cpu", dtypes=_HALF, workspace=_in_float32(Matmul.infer))
def matmul_half(
    xp: ArrayModule,
    out: Array,
    a: Array,
    b: Array,
    wide_a: Array,
    wide_b: Array,
    wide_out: Array,
    **attrs: bool,
) -> None:
    wide_a[...], wide_b[...] = a, b
    matmul(xp, wide_out, wide_a, wide_b, **attrs)
    out[...] = wide_out


@kernel("matmul_weight_grad")
def matmul_weight_grad(xp: ArrayModule, out: Array, a: Array, d: Array, *, transpose: bool) -> None:
    if not (a.flags.c_contiguous and d.flags.c_contiguous):
        _weight_grad_strided(xp, out, a, d, transpose)
        return
    if a.ndim != 2:
        a, d = _rows(a), _rows(d)
    if transpose:
        a, d = d, a
    matrix_product(xp, a.T, d, out)


def _weight_grad_strided(xp: ArrayModule, out: Array, a: Array, d: Array, transpose: bool) -> None:
    """Without copies: one small product per leading index, added up."""
    letters = "abcdefghij"[: a.ndim - 1]
    letters = f"{letters}y,{letters}z->{'zy' if transpose else 'yz'}"
    if xp.__name__ == "cupy":  # whose einsum has no `out`, and no bfloat16
        if out.dtype.name == "bfloat16":
            a, d = a.astype(xp.float32), d.astype(xp.float32)
        out[...] = xp.einsum(letters, a, d)
    else:
        xp.einsum(letters, a, d, out=out)


@kernel(
    "matmul_weight_grad", device="cpu", dtypes=_HALF, workspace=_in_float32(MatmulWeightGrad.infer)
)
def matmul_weight_grad_half(
    xp: ArrayModule,
    out: Array,
    a: Array,
    d: Array,
    wide_a: Array,
    wide_d: Array,
    wide_out: Array,
    **attrs: bool,
) -> None:
    wide_a[...], wide_d[...] = a, d
    matmul_weight_grad(xp, wide_out, wide_a, wide_d, **attrs)
    out[...] = wide_out


@kernel("linear")
def linear(xp: ArrayModule, out: Array, x: Array, w: Array, b: Array) -> None:
    flat = out
    if x.ndim != 2 and x.flags.c_contiguous:
        x, flat = _rows(x), _rows(out)
    matrix_product(xp, x, w.T, flat)
    xp.add(out, b, out=out)


@kernel("linear", device="cpu", dtypes=_HALF, workspace=_in_float32(Linear.infer))
def linear_half(
    xp: ArrayModule,
    out: Array,
    x: Array,
    w: Array,
    b: Array,
    wide_x: Array,
    wide_w: Array,
    wide_b: Array,
    wide_out: Array,
) -> None:
    wide_x[...], wide_w[...], wide_b[...] = x, w, b
    linear(xp, wide_out, wide_x, wide_w, wide_b)
    out[...] = wide_out


@kernel("sum_rows")
def sum_rows(xp: ArrayModule, out: Array, x: Array) -> None:
    x.sum(axis=0 if x.ndim == 2 else tuple(range(x.ndim - 1)), out=out)


def _t(x: Array, transposed: bool) -> Array:
    return x.swapaxes(-1, -2) if transposed else x


def _rows(x: Array) -> Array:
    """A contiguous array as a matrix of rows of its last dim."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])
