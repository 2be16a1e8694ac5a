"""Matrix products through BLAS. Transposed operands go in as strided views, which BLAS reads in
place.
"""

from __future__ import annotations

from math import pi, prod

import numpy as np

from oneflow.kernels import cpu_products
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.cuda_products import fits, product_with_epilogue
from oneflow.kernels.cuda_products import product as gpu_product
from oneflow.kernels.registry import HALVES, compute_in_float32, kernel
from oneflow.kernels.sums import is_long_chain, sum_in_blocks
from oneflow.ops.matmul import Product

# There is no BLAS of half floats on a CPU; a GPU's adds them up in float32, and so do ours.
compute_in_float32("matmul", "matmul_weight_grad", "linear", device="cpu")
_OWN = ("bfloat16",)
_OF_LIBRARY = ("float32", *HALVES)  # whose products on a GPU take more in


def matrix_product(xp: ArrayModule, a: Array, b: Array, out: Array) -> None:
    """out <- a @ b."""
    if xp is np:
        cpu_products.multiply(a, b, out)
    elif xp.__name__ == "cupy" and fits(a, b, out):
        gpu_product(a, b, out)
    else:
        xp.matmul(a, b, out=out)


@kernel("matmul")
@kernel("matmul", device="cpu", dtypes=_OWN)
def matmul(
    xp: ArrayModule, out: Array, a: Array, b: Array, *, transpose_a: bool, transpose_b: bool
) -> None:
    if b.ndim == 2 and a.ndim > 2 and not transpose_a and a.flags.c_contiguous:
        # One product over all rows beats a loop over the batch.
        a, out = _rows(a), _rows(out)
    matrix_product(xp, _t(a, transpose_a), _t(b, transpose_b), out)


@kernel("matmul_weight_grad")
@kernel("matmul_weight_grad", device="cpu", dtypes=_OWN)
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
    if out.dtype.name == "bfloat16":
        a, d = a.astype(xp.float32), d.astype(xp.float32)
    if xp.__name__ == "cupy" or a.dtype != out.dtype:  # cupy's einsum has no `out`
        out[...] = xp.einsum(letters, a, d)
    else:
        xp.einsum(letters, a, d, out=out)


@kernel("linear")
@kernel("linear", device="cpu", dtypes=_OWN)
def linear(xp: ArrayModule, out: Array, x: Array, w: Array, b: Array) -> None:
    flat = out
    if x.ndim != 2 and x.flags.c_contiguous:
        x, flat = _rows(x), _rows(out)
    if xp is np:
        cpu_products.multiply(x, w.T, flat, b)
        return
    matrix_product(xp, x, w.T, flat)
    xp.add(out, b, out=out)


@kernel("linear", device="cuda", dtypes=_OF_LIBRARY)
def linear_by_library(xp: ArrayModule, out: Array, x: Array, w: Array, b: Array) -> None:
    if not product_with_epilogue(out, (x, w, b), (False, True), 1.0, ("bias",)):
        linear(xp, out, x, w, b)


@kernel("product")
def product_step_by_step(
    xp: ArrayModule,
    out: Array,
    *arrays: Array,
    transpose_a: bool,
    transpose_b: bool,
    scale: float,
    epilogue: tuple[str, ...],
) -> None:
    given = [e for e in epilogue if e in Product.GIVEN]
    outs = dict(zip(given, arrays, strict=False))
    a, b, *others = arrays[len(given) :]
    ins = dict(zip([e for e in epilogue if e in Product.NEEDED], others, strict=True))
    wide = xp.float64 if out.dtype == xp.float64 else xp.float32
    a, b = (_rows(x).astype(wide) for x in (a, b))
    z = (xp.matmul(_t(a, transpose_a), _t(b, transpose_b)) * wide(scale)).reshape(out.shape)
    for name in ("bias", "added"):
        if name in ins:
            z = z + ins[name].astype(wide)
    if "saved" in outs:
        outs["saved"][...] = z
    if "relu" in epilogue:
        z = xp.maximum(z, 0)
    if "gelu" in epilogue:
        z = z * _phi(xp, z)[0]
    if "gelu_grad" in ins:
        x = ins["gelu_grad"].astype(wide)
        p, slope = _phi(xp, x)
        z = z * (p + x * slope)
    out[...] = z
    if "sum_out" in outs:
        outs["sum_out"][...] = _rows(z).sum(axis=0)
    if "sum_a" in outs:
        outs["sum_a"][...] = a.sum(axis=0 if transpose_a else 1).reshape(outs["sum_a"].shape)
    if "sum_b" in outs:
        outs["sum_b"][...] = b.sum(axis=1 if transpose_b else 0)


def _phi(xp: ArrayModule, x: Array) -> tuple[Array, Array]:
    """The normal distribution by its tanh approximation, and the slope of that."""
    root = (2 / pi) ** 0.5
    t = xp.tanh(root * (x + 0.044715 * x * x * x))
    return (1 + t) / 2, (1 - t * t) / 2 * root * (1 + 3 * 0.044715 * x * x)


@kernel("product", device="cuda", dtypes=_OF_LIBRARY)
def product_by_library(
    xp: ArrayModule,
    out: Array,
    *arrays: Array,
    transpose_a: bool,
    transpose_b: bool,
    scale: float,
    epilogue: tuple[str, ...],
) -> None:
    turned = transpose_a, transpose_b
    if not product_with_epilogue(out, arrays, turned, scale, epilogue):
        attrs = {"scale": scale, "epilogue": epilogue}
        product_step_by_step(
            xp, out, *arrays, transpose_a=transpose_a, transpose_b=transpose_b, **attrs
        )


@kernel("sum_rows")
def sum_rows(xp: ArrayModule, out: Array, x: Array) -> None:
    axes = tuple(range(x.ndim - 1))
    if is_long_chain(xp, x, axes):
        wide = xp.float32 if x.dtype.itemsize == 2 else x.dtype
        out[...] = sum_in_blocks(x, axes, wide).reshape(out.shape)
    elif x.dtype.itemsize == 2:
        out[...] = x.sum(axis=axes, dtype=xp.float32)
    else:
        x.sum(axis=axes, out=out)


def _t(x: Array, transposed: bool) -> Array:
    return x.swapaxes(-1, -2) if transposed else x


def _rows(x: Array) -> Array:
    """A contiguous array as a matrix of rows of its last dim."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])
