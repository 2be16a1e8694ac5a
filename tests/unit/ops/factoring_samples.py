"""Samples of factors of matrices; answers by plain loops, or put together of known factors."""

from __future__ import annotations

from typing import Any

import numpy as np

from .sample import Sample, normal

Array = np.ndarray[Any, Any]


def _eliminated(x: Array) -> tuple[Array, Array, Array]:
    lu, (count, m, n) = x.copy(), x.shape
    pivots = np.zeros((count, min(m, n)), np.int32)
    for i in range(count):
        a = lu[i]
        for j in range(min(m, n)):
            best = j + int(np.argmax(np.abs(a[j:, j])))
            pivots[i, j] = best + 1
            a[[j, best]] = a[[best, j]]
            for row in range(j + 1, m):
                a[row, j] /= a[j, j]
                a[row, j + 1 :] -= a[row, j] * a[j, j + 1 :]
    return lu, pivots, np.zeros(count, np.int32)


def _order(pivots: Array, rows: int, is_inverse: bool = False) -> Array:
    found = np.tile(np.arange(rows), (len(pivots), 1))
    for order, exchanges in zip(found, pivots, strict=True):
        for i, place in enumerate(exchanges):
            order[[i, place - 1]] = order[[place - 1, i]]
    return np.argsort(found, axis=-1) if is_inverse else found


def _reflected(x: Array) -> tuple[Array, Array]:
    out, taus = x.copy(), np.zeros((len(x), min(x.shape[1:])))
    for a, tau in zip(out, taus, strict=True):
        for j in range(len(tau)):
            column = a[j:, j].copy()
            size = -np.copysign(np.linalg.norm(column), column[0])
            if len(column) == 1:
                continue
            tau[j] = (size - column[0]) / size
            v = column / (column[0] - size)
            v[0] = 1
            a[j:, j:] -= tau[j] * np.outer(v, v @ a[j:, j:])
            a[j + 1 :, j] = v[1:]
    return out, taus


def _exponential(x: Array) -> Array:
    w, v = np.linalg.eig(x)
    return np.asarray((v * np.exp(w)[..., None, :] @ np.linalg.inv(v)).real)


def _singular(x: Array) -> Array:
    return np.sqrt(np.linalg.eigvalsh(x.swapaxes(-1, -2) @ x))[:, ::-1]


def factoring_samples() -> list[Sample]:
    a = normal(5, 3, 3) + 3 * np.eye(3)
    tall, wide = normal(5, 4, 3), normal(5, 3, 4)
    even = a @ a.swapaxes(-1, -2)
    loose = {"tolerance": 1e-3}
    pivots = np.array([[3, 2, 4], [1, 3, 3], [2, 2, 3], [4, 4, 4], [1, 2, 3]], np.int32)
    low = np.tril(normal(5, 3, 3, seed=3), -1) * 0.2 + np.eye(3)
    d = np.array([9.0, -8.0, 7.0])
    packed = np.tril(low, -1) + np.diag(d)
    whole = low * d @ low.swapaxes(-1, -2)
    plain = np.tile(np.arange(1, 4, dtype=np.int32), (5, 1))
    infos = np.zeros(5, np.int32)
    b = normal(5, 3, 2, seed=1)
    inverse = np.linalg.inv
    return [
        Sample("cholesky_ex", (even,), {}, lambda x: (np.linalg.cholesky(x), infos),
               wrt=(), **loose),
        Sample("cholesky_ex", (np.eye(3) * np.array([[[1.0]], [[-2.0]]]),), {},
               lambda x: (None, np.array([0, 1], np.int32)), wrt=(), compared=(1,)),
        Sample("eig", (a,), {}, lambda x: (np.linalg.eigvals(x), None),
               wrt=(), compared=(0,), **loose),
        Sample("eigvals", (a,), {}, np.linalg.eigvals, wrt=(), **loose),
        Sample("qr", (tall,), {"is_complete": True},
               lambda x, is_complete: (None, np.linalg.qr(x, "complete")[1]),
               wrt=(), compared=(1,), **loose),
        Sample("svd", (tall,), {"is_full": True},
               lambda x, is_full: (None, _singular(x), None),
               compared=(1,), **loose),
        Sample("pinv", (even,), {"rtol": 1e-12, "is_hermitian": True},
               lambda x, rtol, is_hermitian: inverse(x), wrt=(), **loose),
        Sample("lu_factor", (a,), {}, _eliminated, compared=(0,), **loose),
        Sample("lu_factor", (tall,), {}, _eliminated, compared=(0,), **loose),
        Sample("lu_factor", (wide,), {}, _eliminated, compared=(0,), **loose),
        Sample("pivots_to_order", (pivots,), {"rows": 4}, _order),
        Sample("pivots_to_order", (pivots,), {"rows": 4, "is_inverse": True}, _order),
        Sample("ldl_factor", (whole,), {}, lambda x: (packed, plain, infos),
               compared=(0,), **loose),
        Sample("ldl_solve", (packed, plain, b), {}, lambda *_: inverse(whole) @ b, **loose),
        Sample("geqrf", (tall,), {}, _reflected, **loose),
        Sample("geqrf", (wide,), {}, _reflected, **loose),
        Sample("matrix_exp", (normal(5, 3, 3),), {}, _exponential, **loose),
        Sample("matrix_exp", (a * 3,), {}, _exponential, dtypes=("float64",), wrt=()),
    ]  # fmt: skip
