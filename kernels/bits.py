"""Kernels of oneflow/ops/bits.py."""

from __future__ import annotations

from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel


@kernel("frexp")
def frexp(xp: ArrayModule, mantissa: Array, exponent: Array, x: Array) -> None:
    wide = x.astype(xp.float32) if x.dtype.itemsize < 4 else x
    found, power = xp.frexp(wide)
    mantissa[...] = found
    exponent[...] = power
