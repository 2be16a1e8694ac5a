"""Kernels of oneflow/ops/fft.py."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel

Dims = tuple[int, ...]


@kernel("fft_c2c")
def fft_c2c(
    xp: ArrayModule, out: Array, x: Array, *, dims: Dims, is_inverse: bool, scale: float
) -> None:
    # NumPy divides by the number of elements in the direction that `norm` names: in none here.
    if is_inverse:
        out[...] = xp.fft.ifftn(x, axes=dims, norm="forward")
    else:
        out[...] = xp.fft.fftn(x, axes=dims, norm="backward")
    if scale != 1.0:
        out *= scale


@kernel("fft_r2c")
def fft_r2c(xp: ArrayModule, out: Array, x: Array, *, dims: Dims, scale: float) -> None:
    out[...] = xp.fft.rfftn(x, axes=dims, norm="backward")
    if scale != 1.0:
        out *= scale


@kernel("fft_c2r")
def fft_c2r(xp: ArrayModule, out: Array, x: Array, *, dims: Dims, size: int, scale: float) -> None:
    sizes = [*(x.shape[d] for d in dims[:-1]), size]
    out[...] = xp.fft.irfftn(x, s=sizes, axes=dims, norm="forward")
    if scale != 1.0:
        out *= scale
