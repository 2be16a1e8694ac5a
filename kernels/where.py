"""Kernels of oneflow/ops/where.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.kernels.registry import kernel

Array = Any
LARGE = 1 << 13


@kernel("where")
def where(xp: Any, out: Array, condition: Array, x: Array, y: Array) -> None:
    xp.copyto(out, y)
    xp.copyto(out, x, where=condition)


@kernel("masked_fill")
def masked_fill(xp: Any, out: Array, x: Array, mask: Array, *, value: Any) -> None:
    xp.copyto(out, x)
    xp.copyto(out, x.dtype.type(value), where=mask)


def _bits(x: Array) -> Array:
    return x.reshape(-1).view(f"u{x.dtype.itemsize}")


@kernel("where", device="cpu", min_elements=LARGE)
def where_fused(xp: Any, out: Array, condition: Array, x: Array, y: Array) -> None:
    """Inputs of one shape; others go to NumPy."""
    inputs = (condition, x, y)
    is_plain = all(a.shape == out.shape and a.flags.c_contiguous for a in inputs)
    if not is_plain or out.dtype.itemsize > 8:
        return where(xp, out, *inputs)
    from oneflow.kernels.fused import select

    select.where(_bits(out), condition.reshape(-1), _bits(x), _bits(y))


@kernel("masked_fill", device="cpu", min_elements=LARGE)
def masked_fill_fused(xp: Any, out: Array, x: Array, mask: Array, *, value: Any) -> None:
    """A mask of the shape of x or of its last dims, as in attention; others go to NumPy."""
    core = mask.shape
    while core and core[0] == 1:
        core = core[1:]
    repeats = core == out.shape[out.ndim - len(core) :]
    is_plain = repeats and x.shape == out.shape and x.flags.c_contiguous
    if not is_plain or not mask.flags.c_contiguous or out.dtype.itemsize > 8:
        return masked_fill(xp, out, x, mask, value=value)
    from oneflow.kernels.fused import select

    flat = mask.reshape(-1)
    columns = flat.size if flat.size < out.size else out.shape[-1]
    shape = (out.size // columns, columns)
    bits = _bits(np.full(1, value, x.dtype))[0]
    select.masked_fill(_bits(out).reshape(shape), _bits(x).reshape(shape), flat, bits)
