"""Kernels of oneflow/ops/reduce.py."""

from __future__ import annotations

from typing import Any

from oneflow.core.dtype import bfloat16, float16, float32
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.registry import kernel

Array = Any


def _wide_result(types: tuple[TensorType, ...], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    """Half floats are summed in float32: in their own precision a sum stops growing at a few
    hundred terms."""
    x = types[0]
    if x.dtype not in (float16, bfloat16):
        return ()
    dims = attrs["dims"]
    return (TensorType(tuple(1 if i in dims else n for i, n in enumerate(x.shape)), float32),)


def _fold(name: str, function: str) -> None:
    @kernel(name)
    def run(xp: Any, out: Array, x: Array, *, dims: tuple[int, ...], keepdim: bool = False) -> None:
        getattr(xp, function)(x, axis=dims, keepdims=keepdim, out=out)


def _wide_fold(name: str, function: str) -> None:
    @kernel(name, workspace=_wide_result)
    def run(
        xp: Any, out: Array, x: Array, *wide: Array, dims: tuple[int, ...], keepdim: bool = False
    ) -> None:
        if wide:
            getattr(xp, function)(x, axis=dims, keepdims=True, dtype="float32", out=wide[0])
            xp.copyto(out, wide[0].reshape(out.shape), casting="unsafe")
        else:
            getattr(xp, function)(x, axis=dims, keepdims=keepdim, dtype=x.dtype, out=out)


_fold("reduce_max", "max")
_fold("reduce_min", "min")
_fold("reduce_any", "any")
_fold("reduce_all", "all")
_wide_fold("reduce_sum", "sum")
_wide_fold("reduce_prod", "prod")


def _position(name: str) -> None:
    @kernel(name)
    def run(xp: Any, out: Array, x: Array, *, dim: int, keepdim: bool = False) -> None:
        getattr(xp, name)(x, axis=dim, out=out.reshape(x.shape[:dim] + x.shape[dim + 1 :]))


_position("argmax")
_position("argmin")


def _running(name: str) -> None:
    @kernel(name)
    def run(xp: Any, out: Array, x: Array, *, dim: int) -> None:
        if x.dtype.name == "bfloat16" and xp.__name__ == "cupy":  # which cannot
            out[...] = getattr(xp, name)(x.astype(xp.float32), axis=dim)
        else:
            getattr(xp, name)(x, axis=dim, dtype=x.dtype, out=out)


_running("cumsum")
_running("cumprod")
