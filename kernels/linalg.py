"""Kernels of oneflow/ops/linalg.py: LAPACK by NumPy, cuSOLVER by CuPy."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from oneflow.core.errors import LinAlgError
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import to_host
from oneflow.kernels.registry import kernel


def _refusing(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a kernel whose library refuses some matrices: that error becomes one of ours."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*arrays: Any, **attrs: Any) -> None:
            try:
                function(*arrays, **attrs)
            except np.linalg.LinAlgError as error:
                raise LinAlgError(
                    f"linalg.{name}: {error}, in at least one of {_shown(arrays)}"
                ) from (None)

        kernel(name)(run)
        return run

    return register


def _shown(arrays: tuple[Any, ...]) -> str:
    shape, dtype = arrays[-1].shape, arrays[-1].dtype
    return f"the matrices {dtype}[{', '.join(map(str, shape))}]"


@_refusing("inv")
def inv(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = xp.linalg.inv(x)


@_refusing("solve")
def solve(xp: ArrayModule, out: Array, a: Array, b: Array) -> None:
    out[...] = xp.linalg.solve(a, b)


@kernel("slogdet")
def slogdet(xp: ArrayModule, sign: Array, log: Array, x: Array) -> None:
    sign[...], log[...] = xp.linalg.slogdet(x)


@kernel("det")
def det(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = xp.linalg.det(x)


@_refusing("cholesky")
def cholesky(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = xp.linalg.cholesky(x)


@kernel("cholesky_ex")
def cholesky_ex(xp: ArrayModule, out: Array, info: Array, x: Array) -> None:
    try:
        out[...] = xp.linalg.cholesky(x)
        info.fill(0)
    except np.linalg.LinAlgError:
        _cholesky_by_columns(xp, out, info, x)


def _cholesky_by_columns(xp: ArrayModule, out: Array, info: Array, x: Array) -> None:
    """One column at a time, of all matrices at once; those that fail keep the columns before."""
    out.fill(0)
    info.fill(0)
    for j in range(x.shape[-1]):
        row = out[..., j, :j].conj()[..., None]
        rest = x[..., j:, j] - (out[..., j:, :j] @ row)[..., 0]
        pivot = rest[..., 0].real
        info[(info == 0) & ~(pivot > 0)] = j + 1
        root = xp.sqrt(xp.where(info == 0, pivot, 1))
        column = rest / root[..., None]
        column[..., 0] = root
        out[..., j:, j] = xp.where((info == 0)[..., None], column, 0)


@kernel("qr")
def qr(xp: ArrayModule, q: Array, r: Array, x: Array, *, is_complete: bool) -> None:
    q[...], r[...] = xp.linalg.qr(x, mode="complete" if is_complete else "reduced")


@_refusing("eigh")
def eigh(xp: ArrayModule, w: Array, v: Array, x: Array) -> None:
    w[...], v[...] = xp.linalg.eigh(x)


@_refusing("eig")
def eig(xp: ArrayModule, w: Array, v: Array, x: Array) -> None:
    values, vectors = np.linalg.eig(to_host(x))
    w[...], v[...] = xp.asarray(values), xp.asarray(vectors)


@_refusing("eigvals")
def eigvals(xp: ArrayModule, out: Array, x: Array) -> None:
    out[...] = xp.asarray(np.linalg.eigvals(to_host(x)))


@_refusing("svd")
def svd(xp: ArrayModule, u: Array, s: Array, vh: Array, x: Array, *, is_full: bool) -> None:
    u[...], s[...], vh[...] = xp.linalg.svd(x, full_matrices=is_full)


@_refusing("pinv")
def pinv(
    xp: ArrayModule, out: Array, x: Array, *, rtol: float, atol: float, is_hermitian: bool
) -> None:
    if not x.size:
        out.fill(0)
        return
    if is_hermitian:
        low = xp.tril(x, -1)
        x = xp.tril(xp.triu(x)).real + low + xp.swapaxes(low, -1, -2).conj()
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    least = xp.maximum(rtol * s.max(axis=-1, keepdims=True), atol)
    back = xp.where(s > least, 1 / xp.where(s > least, s, 1), 0)
    turned = xp.swapaxes(vh, -1, -2).conj() * back[..., None, :]
    xp.matmul(turned, xp.swapaxes(u, -1, -2).conj(), out=out)
