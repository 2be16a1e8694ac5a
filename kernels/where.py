"""Kernels of oneflow/ops/where.py."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel

Array = Any


@kernel("where")
def where(xp: Any, out: Array, condition: Array, x: Array, y: Array) -> None:
    xp.copyto(out, y)
    xp.copyto(out, x, where=condition)


@kernel("masked_fill")
def masked_fill(xp: Any, out: Array, x: Array, mask: Array, *, value: Any) -> None:
    xp.copyto(out, x)
    xp.copyto(out, x.dtype.type(value), where=mask)
