"""Kernels of oneflow/ops/factoring.py.

NumPy has no LU and LDL factors, and how its LAPACK can be called from outside depends on the way
NumPy was built; so elimination is written here over array operations, which CuPy has, too: LU works
on blocks of columns of all matrices at once, LDL on one matrix after another in host memory.
"""

from __future__ import annotations

import math

import numpy as np

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import to_host
from oneflow.kernels.positions import require_positions
from oneflow.kernels.registry import kernel

_BLOCK = 32  # columns eliminated one by one before a product updates the columns beyond


def _sizes(x: Array) -> Array:
    """Sizes by which pivots are compared: of complex numbers both parts added, as in LAPACK."""
    found: Array = abs(x.real) + abs(x.imag) if x.dtype.kind == "c" else abs(x)
    return found


def _flat(x: Array, dims: int) -> Array:
    """The batch dims as one, before the last `dims`."""
    count = math.prod(x.shape[: x.ndim - dims])
    found: Array = x.reshape(count, *x.shape[x.ndim - dims :])
    return found


@kernel("lu_factor")
def lu_factor(xp: ArrayModule, lu: Array, pivots: Array, info: Array, x: Array) -> None:
    m, n = x.shape[-2:]
    k = min(m, n)
    lu[...] = x
    info.fill(0)
    if not x.size:
        return
    a = _flat(lu, 2)
    places, zeros = _flat(pivots, 1), _flat(info, 0)
    for start in range(0, k, _BLOCK):
        stop = min(start + _BLOCK, k)
        for j in range(start, stop):
            _eliminate(xp, a, j, stop, places, zeros)
        if stop < n:
            low = xp.tril(a[:, start:stop, start:stop], -1) + xp.eye(stop - start, dtype=a.dtype)
            a[:, start:stop, stop:] = xp.linalg.solve(low, a[:, start:stop, stop:])
            a[:, stop:, stop:] -= a[:, stop:, start:stop] @ a[:, start:stop, stop:]
    if not xp.shares_memory(a, lu):
        lu[...] = a.reshape(lu.shape)
        pivots[...], info[...] = places.reshape(pivots.shape), zeros.reshape(info.shape)


def _eliminate(xp: ArrayModule, a: Array, j: int, stop: int, pivots: Array, info: Array) -> None:
    """Brings the largest element of column j to row j, and takes row j from those below, in the
    columns before `stop`.
    """
    one = xp.arange(len(a))
    best = j + _sizes(a[:, j:, j]).argmax(axis=1)
    pivots[:, j] = best + 1
    top = a[:, j].copy()
    a[:, j] = a[one, best]
    a[one, best] = top
    pivot = a[:, j, j]
    is_zero = pivot == 0
    info[is_zero & (info == 0)] = j + 1
    a[:, j + 1 :, j] /= xp.where(is_zero, 1, pivot)[:, None]
    a[:, j + 1 :, j + 1 : stop] -= a[:, j + 1 :, j, None] * a[:, j, None, j + 1 : stop]


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

_GROWTH = (1 + math.sqrt(17)) / 8
"""Bunch and Kaufman, 1977: a pivot may be this much smaller than the largest of its column."""


@kernel("ldl_factor")
def ldl_factor(
    xp: ArrayModule, ld: Array, pivots: Array, info: Array, x: Array, *, is_hermitian: bool
) -> None:
    n = x.shape[-1]
    factors = _flat(np.tril(to_host(x)), 2)
    places = np.zeros((len(factors), n), np.int32)
    zeros = np.zeros(len(factors), np.int32)
    for i, a in enumerate(factors):
        zeros[i] = _ldl_of_one(a, places[i], is_hermitian)
    ld[...] = xp.asarray(factors).reshape(ld.shape)
    pivots[...] = xp.asarray(places).reshape(pivots.shape)
    info[...] = xp.asarray(zeros).reshape(info.shape)


def _ldl_of_one(a: Array, pivots: Array, is_hermitian: bool) -> int:
    """Writes the factors over the lower triangle of a; the upper one is 0. Returns info."""
    k, info = 0, 0
    while k < len(a):
        other, width = _pivot(a, k)
        if other < 0:
            other, info = k, info or k + 1
        else:
            _exchange(a, k, width, other, is_hermitian)
            _take_off(a, k, width, is_hermitian)
        pivots[k : k + width] = other + 1 if width == 1 else -(other + 1)
        k += width
    return info


def _pivot(a: Array, k: int) -> tuple[int, int]:
    """(row to exchange, rows of the block); -1 if column k is 0."""
    own = float(_sizes(a[k, k]))
    below = _sizes(a[k + 1 :, k])
    largest = float(below.max()) if below.size else 0.0
    if max(own, largest) == 0:
        return -1, 1
    if own >= _GROWTH * largest:
        return k, 1
    far = k + 1 + int(below.argmax())
    row = float(_sizes(a[far, k:far]).max())
    if far + 1 < len(a):
        row = max(row, float(_sizes(a[far + 1 :, far]).max()))
    if own >= _GROWTH * largest * (largest / row):
        return k, 1
    return (far, 1) if _sizes(a[far, far]) >= _GROWTH * row else (far, 2)


def _exchange(a: Array, k: int, width: int, other: int, is_hermitian: bool) -> None:
    """Exchange rows and columns k + width - 1 and `other` of the rest of the matrix."""
    at = k + width - 1
    if other == at:
        return
    a[other + 1 :, [at, other]] = a[other + 1 :, [other, at]]
    down, across = a[at + 1 : other, at].copy(), a[other, at + 1 : other].copy()
    a[at + 1 : other, at] = across.conj() if is_hermitian else across
    a[other, at + 1 : other] = down.conj() if is_hermitian else down
    if is_hermitian:
        a[other, at] = a[other, at].conj()
    a[at, at], a[other, other] = a[other, other], a[at, at]
    if width == 2:
        a[at, k], a[other, k] = a[other, k], a[at, k]


def _block(a: Array, k: int, width: int, is_hermitian: bool) -> Array:
    """The block of d at row k, whole."""
    block: Array = a[k : k + width, k : k + width].copy()
    if is_hermitian:
        np.fill_diagonal(block, block.diagonal().real)
    if width == 2:
        block[0, 1] = block[1, 0].conj() if is_hermitian else block[1, 0]
    return block


def _take_off(a: Array, k: int, width: int, is_hermitian: bool) -> None:
    """Eliminate the block at row k from the rows below it, and put l into its columns."""
    end = k + width
    block, below = _block(a, k, width, is_hermitian), a[end:, k:end].copy()
    if is_hermitian:
        np.fill_diagonal(a[k:end, k:end], block.diagonal())
    low = below @ np.linalg.inv(block) if width == 2 else below / block
    a[end:, end:] -= np.tril(low @ (below.conj() if is_hermitian else below).T)
    a[end:, k:end] = low


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
