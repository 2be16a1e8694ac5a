"""Kernels of oneflow/ops/binary.py."""

from __future__ import annotations

from typing import Any

from oneflow.kernels.registry import kernel

Array = Any

_UFUNCS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "pow": "power",
    "maximum": "maximum", "minimum": "minimum", "fmod": "fmod", "floor_divide": "floor_divide",
    "atan2": "arctan2", "bitwise_and": "bitwise_and", "bitwise_or": "bitwise_or",
    "bitwise_xor": "bitwise_xor",
}  # fmt: skip


def _ufunc(name: str, function: str) -> None:
    @kernel(name)
    def run(xp: Any, out: Array, a: Array, b: Array) -> None:
        getattr(xp, function)(a, b, out=out)


for _name, _function in _UFUNCS.items():
    _ufunc(_name, _function)
