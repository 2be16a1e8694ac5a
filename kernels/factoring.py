"""Kernels of oneflow/ops/factoring.py. LU and LDL are LAPACK's, called through SciPy on one matrix
after another in host memory.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import to_host
from oneflow.kernels.positions import require_positions
from oneflow.kernels.registry import kernel


def _flat(x: Array, dims: int) -> Array:
    """The batch dims as one, before the last `dims`."""
    count = math.prod(x.shape[: x.ndim - dims])
    found: Array = x.reshape(count, *x.shape[x.ndim - dims :])
    return found


def _lapack(name: str, x: Array) -> Any:
    """Return LAPACK's function for the dtype of a matrix."""
    module: Any = importlib.import_module("scipy.linalg.lapack")
    return module.get_lapack_funcs(name, (x,))


@kernel("lu_factor")
def lu_factor(xp: ArrayModule, lu: Array, pivots: Array, info: Array, x: Array) -> None:
    matrices = _flat(to_host(x), 2)
    factors, infos = np.empty_like(matrices), np.zeros(len(matrices), np.int32)
    places = np.zeros((len(matrices), pivots.shape[-1]), np.int32)
    for i, a in enumerate(matrices if x.size else ()):
        factors[i], rows, infos[i] = _lapack("getrf", a)(a)
        places[i] = rows + 1
    _store(xp, (lu, pivots, info), (factors, places, infos))


def _store(xp: ArrayModule, outs: tuple[Array, ...], found: tuple[Array, ...]) -> None:
    for out, array in zip(outs, found, strict=True):
        out[...] = xp.asarray(array).reshape(out.shape)


@kernel("pivots_to_order")
def pivots_to_order(
    xp: ArrayModule, out: Array, pivots: Array, *, rows: int, is_inverse: bool
) -> None:
    count = pivots.shape[-1]
    places = _flat(to_host(pivots), 1).astype(np.int64) - 1
    order = np.broadcast_to(np.arange(rows), (len(places), rows)).copy()
    one = np.arange(len(places))
    for j in range(count):
        other = places[:, j]
        top = order[:, j].copy()
        order[:, j] = order[one, other]
        order[one, other] = top
    if is_inverse:
        order = np.argsort(order, axis=-1)
    out[...] = xp.asarray(order).reshape(out.shape)


# ---- symmetric matrices --------------------------------------------------------------------------


@kernel("ldl_factor")
def ldl_factor(
    xp: ArrayModule, ld: Array, pivots: Array, info: Array, x: Array, *, is_hermitian: bool
) -> None:
    matrices = _flat(to_host(x), 2)
    factors, infos = np.empty_like(matrices), np.zeros(len(matrices), np.int32)
    places = np.zeros((len(matrices), x.shape[-1]), np.int32)
    name = "hetrf" if is_hermitian and matrices.dtype.kind == "c" else "sytrf"
    for i, a in enumerate(matrices if x.size else ()):
        factors[i], places[i], infos[i] = _lapack(name, a)(a, lower=1)
    _store(xp, (ld, pivots, info), (np.tril(factors), places, infos))


def _block(a: Array, k: int, width: int, is_hermitian: bool) -> Array:
    """The block of d at row k, whole."""
    block: Array = a[k : k + width, k : k + width].copy()
    if is_hermitian:
        np.fill_diagonal(block, block.diagonal().real)
    if width == 2:
        block[0, 1] = block[1, 0].conj() if is_hermitian else block[1, 0]
    return block


@kernel("ldl_solve")
def ldl_solve(
    xp: ArrayModule, out: Array, ld: Array, pivots: Array, b: Array, *, is_hermitian: bool
) -> None:
    factors = _flat(to_host(ld), 2)
    places = _flat(to_host(pivots), 1)
    require_positions("ldl_solve", np.abs(places), range(1, ld.shape[-1] + 1), {})
    found = _flat(to_host(b), 2).copy()
    for a, rows, x in zip(factors, places, found, strict=True):
        _ldl_solve_one(a, rows, x, is_hermitian)
    out[...] = xp.asarray(found).reshape(out.shape)


def _ldl_solve_one(a: Array, pivots: Array, x: Array, is_hermitian: bool) -> None:
    """Solves in place: down through p, l and d, then up through l^T and p."""
    steps, k = [], 0
    while k < len(a):
        width = 1 if pivots[k] > 0 else 2
        steps.append((k, width, k + width - 1, abs(int(pivots[k])) - 1))
        k += width
    for k, width, at, other in steps:
        end = k + width
        x[[at, other]] = x[[other, at]]
        x[end:] -= a[end:, k:end] @ x[k:end]
        x[k:end] = np.linalg.solve(_block(a, k, width, is_hermitian), x[k:end])
    for k, width, at, other in reversed(steps):
        end = k + width
        low = a[end:, k:end]
        x[k:end] -= (low.conj() if is_hermitian else low).T @ x[end:]
        x[[at, other]] = x[[other, at]]


# ---- reflectors, exponentials --------------------------------------------------------------------


@kernel("geqrf")
def geqrf(xp: ArrayModule, out: Array, tau: Array, x: Array) -> None:
    turned, scales = np.linalg.qr(to_host(x), mode="raw")
    out[...] = xp.asarray(turned.swapaxes(-1, -2))
    tau[...] = xp.asarray(scales)


_PADE = (64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800,
         129060195264000, 10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960,
         16380, 182, 1)  # fmt: skip
_NEAR = 5.371920351148152
"""N. Higham, The scaling and squaring method for the matrix exponential revisited, 2005: numbers of
the quotient of degree 13, which has all digits of float64 for norms up to this one."""


@kernel("matrix_exp")
def matrix_exp(xp: ArrayModule, out: Array, x: Array) -> None:
    if not x.size:
        return
    a = x.astype(np.result_type(x.dtype, np.float64))
    norms = abs(a).sum(axis=-2).max(axis=-1)
    halvings = xp.ceil(xp.log2(xp.maximum(norms / _NEAR, 1)))
    # A matrix with NaN must not keep others from their own.
    halvings = xp.where(xp.isfinite(halvings), halvings, 0)
    a /= (2.0**halvings)[..., None, None]
    unit = xp.eye(a.shape[-1], dtype=a.dtype)
    a2 = a @ a
    a4 = a2 @ a2
    a6 = a4 @ a2
    c = _PADE
    odd = a6 @ (c[13] * a6 + c[11] * a4 + c[9] * a2)
    odd = a @ (odd + c[7] * a6 + c[5] * a4 + c[3] * a2 + c[1] * unit)
    even = a6 @ (c[12] * a6 + c[10] * a4 + c[8] * a2)
    even = even + c[6] * a6 + c[4] * a4 + c[2] * a2 + c[0] * unit
    found = xp.linalg.solve(even - odd, even + odd)
    for i in range(int(halvings.max())):
        found = xp.where((halvings > i)[..., None, None], found @ found, found)
    out[...] = found
