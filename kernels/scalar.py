"""Kernels of oneflow/ops/scalar.py. Scalars take the tensor's dtype first, so that every dtype
stays itself."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel

Array = Any


@kernel("scalar_add")
def scalar_add(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    xp.add(x, x.dtype.type(value), out=out)


@kernel("scalar_mul")
def scalar_mul(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    xp.multiply(x, x.dtype.type(value), out=out)


@kernel("scalar_pow")
def scalar_pow(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    """Common exponents go without `power`, which is some fifty times slower than a product."""
    if value == 2:
        xp.multiply(x, x, out=out)
    elif value == 3:
        xp.multiply(x, x, out=out)
        xp.multiply(out, x, out=out)
    elif value == 0.5:
        xp.sqrt(x, out=out)
    elif value in (-1, -0.5):
        source = x if value == -1 else xp.sqrt(x, out=out)
        xp.reciprocal(source, out=out)
    else:
        xp.power(x, x.dtype.type(value), out=out)


@kernel("scalar_rpow")
def scalar_rpow(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    xp.power(x.dtype.type(value), x, out=out)


@kernel("scalar_div")
def scalar_div(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    xp.divide(x, x.dtype.type(value), out=out)


@kernel("scalar_rdiv")
def scalar_rdiv(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    xp.divide(x.dtype.type(value), x, out=out)


@kernel("scalar_fmod")
def scalar_fmod(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    xp.fmod(x, x.dtype.type(value), out=out)


@kernel("scalar_floor_divide")
def scalar_floor_divide(xp: Any, out: Array, x: Array, *, value: Any) -> None:
    xp.floor_divide(x, x.dtype.type(value), out=out)
