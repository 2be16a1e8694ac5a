"""Kernels of oneflow/ops/linalg.py: LAPACK by NumPy, cuSOLVER by CuPy."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


@kernel("inv")
def inv(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = xp.linalg.inv(x)


@kernel("solve")
def solve(xp: ArrayModule, out: Array, a: Array, b: Array) -> None:
    out[...] = xp.linalg.solve(a, b)


@kernel("slogdet")
def slogdet(xp: ArrayModule, sign: Array, log: Array, x: Array) -> None:
    sign[...], log[...] = xp.linalg.slogdet(x)


@kernel("det")
def det(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = xp.linalg.det(x)


@kernel("cholesky")
def cholesky(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = xp.linalg.cholesky(x)


@kernel("qr")
def qr(xp: ArrayModule, q: Array, r: Array, x: Array) -> None:
    q[...], r[...] = xp.linalg.qr(x, mode="reduced")


@kernel("eigh")
def eigh(xp: ArrayModule, w: Array, v: Array, x: Array) -> None:
    w[...], v[...] = xp.linalg.eigh(x)


@kernel("svd")
def svd(xp: ArrayModule, u: Array, s: Array, vh: Array, x: Array) -> None:
    u[...], s[...], vh[...] = xp.linalg.svd(x, full_matrices=False)


@kernel("pinv")
def pinv(xp: ArrayModule, out: Array, x: Array, *, rtol: float, atol: float) -> None:
    if not x.size:
        out.fill(0)
        return
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    least = xp.maximum(rtol * s.max(axis=-1, keepdims=True), atol)
    back = xp.where(s > least, 1 / xp.where(s > least, s, 1), 0)
    xp.matmul(xp.swapaxes(vh, -1, -2) * back[..., None, :], xp.swapaxes(u, -1, -2), out=out)
