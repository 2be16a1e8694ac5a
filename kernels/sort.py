"""Kernels of oneflow/ops/sort.py. Large arrays of four dtypes have a compiled CPU variant."""

from __future__ import annotations

from importlib import import_module
from math import prod
from types import ModuleType

import numpy as np

from oneflow.core.dtype import int64
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.registry import kernel

Types = tuple[TensorType, ...]

_COMPILED = ("float32", "float64", "int32", "int64")
_LEAST_ELEMENTS = 4096
"""Size from which the compiled variants win; smaller calls import no compiler."""


def _order(xp: ArrayModule, x: Array, dim: int, descending: bool) -> Array:
    """Positions along `dim` in a stable order. CuPy does not sort bfloat16, and NumPy leaves its
    NaNs anywhere; float32 is exact."""
    if x.dtype.name == "bfloat16":
        x = x.astype(xp.float32)
    if not descending:
        ascending: Array = xp.argsort(x, axis=dim, kind="stable")
        return ascending
    # Backwards through the reversed elements, so that equals keep their order.
    backwards = xp.argsort(xp.flip(x, dim), axis=dim, kind="stable")
    order: Array = x.shape[dim] - 1 - xp.flip(backwards, dim)
    return order


@kernel("sort")
def sort(
    xp: ArrayModule, values: Array, index: Array, x: Array, *, dim: int, descending: bool
) -> None:
    index[...] = _order(xp, x, dim, descending)
    values[...] = xp.take_along_axis(x, index, dim)


@kernel("topk")
def topk(
    xp: ArrayModule, values: Array, index: Array, x: Array, *, k: int, dim: int, largest: bool
) -> None:
    order = _order(xp, x, dim, largest)
    index[...] = order[(slice(None),) * dim + (slice(0, k),)]
    values[...] = xp.take_along_axis(x, index, dim)


# ---- compiled, row by row ------------------------------------------------------------------------


def _ordering() -> ModuleType:
    """Machine code for rows; llvmlite takes a moment to import."""
    return import_module("oneflow.kernels.native.ordering")


def _row_work(types: Types, attrs: Attrs) -> Types:
    """The memory of the tasks; and of a dim that is not the last, copies with that dim last."""
    (x,) = types
    dim, length = attrs["dim"], x.shape[attrs["dim"]]
    kept = attrs.get("k", length)
    if not x.numel or not kept:
        return ()
    shape = _ordering().memory_shape(x.dtype.name, x.numel // length, length, kept)
    memory = TensorType(shape, int64)
    if dim == x.ndim - 1:
        return (memory,)
    lead = (*x.shape[:dim], *x.shape[dim + 1 :])
    values = x.with_shape((*lead, kept))
    return memory, x.with_shape((*lead, length)), values, values.with_dtype(int64)


def _by_rows(values: Array, index: Array, x: Array, work: tuple[Array, ...], dim: int,
             descending: bool) -> None:  # fmt: skip
    if not work:
        return
    memory, *copies = work
    outs = [values, index]
    if copies:
        copies[0][...] = np.moveaxis(x, dim, -1)
        x, *outs = copies
    rows = prod(x.shape[:-1])
    flat = [a.reshape(rows, a.shape[-1]) for a in (*outs, np.ascontiguousarray(x))]
    _ordering().order(*flat, memory, descending)
    if copies:
        values[...], index[...] = (np.moveaxis(a, -1, dim) for a in outs)


@kernel("sort", workspace=_row_work, device="cpu", min_elements=_LEAST_ELEMENTS, dtypes=_COMPILED)
def sort_rows(
    xp: ArrayModule,
    values: Array,
    index: Array,
    x: Array,
    *work: Array,
    dim: int,
    descending: bool,
) -> None:
    _by_rows(values, index, x, work, dim, descending)


@kernel("topk", workspace=_row_work, device="cpu", min_elements=_LEAST_ELEMENTS, dtypes=_COMPILED)
def topk_rows(
    xp: ArrayModule,
    values: Array,
    index: Array,
    x: Array,
    *work: Array,
    k: int,
    dim: int,
    largest: bool,
) -> None:
    _by_rows(values, index, x, work, dim, largest)
