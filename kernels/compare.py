"""Kernels of oneflow/ops/compare.py."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel

Array = Any

_UFUNCS = {
    "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater",
    "ge": "greater_equal", "logical_and": "logical_and", "logical_or": "logical_or",
    "logical_xor": "logical_xor",
}  # fmt: skip


def _ufunc(name: str, function: str) -> None:
    @kernel(name)
    def run(xp: Any, out: Array, a: Array, b: Array) -> None:
        getattr(xp, function)(a, b, out=out)


for _name, _function in _UFUNCS.items():
    _ufunc(_name, _function)


@kernel("scalar_compare")
def scalar_compare(xp: Any, out: Array, x: Array, *, value: Any, kind: str) -> None:
    # A float compares in the tensor's precision, as it would after an assignment; an integer tensor
    # keeps the float.
    number = value if x.dtype.kind in "iub" else x.dtype.type(value)
    getattr(xp, _UFUNCS[kind])(x, number, out=out)
