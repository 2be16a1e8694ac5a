"""Kernels of oneflow/ops/quantized.py. On a CPU a few rows of float32 go through a product that
unpacks the weight in registers (expressions/quantized.py); more rows through BLAS, for which a part
of the weight at a time becomes floats."""

from __future__ import annotations

from math import prod
from types import ModuleType

import numpy as np

from oneflow.core.dtype import float32
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.matmul import matrix_product
from oneflow.kernels.registry import FUSED_LEAST, compute_in_float32, fused_kernel, kernel
from oneflow.ops.quantized import zero_of

compute_in_float32("quantized_linear", device="cpu")

Types = tuple[TensorType, ...]

MOST_ROWS = 8
"""Rows of x up to which the weight is unpacked for each few of them: with more, BLAS makes up for a
weight that is written as floats and read again."""

_PANEL_ELEMENTS = 1 << 18
"""Floats of a part of the weight: 1 MB, which stays in the cache until BLAS reads it."""


def _optional(others: tuple[Array, ...]) -> tuple[Array | None, Array | None]:
    zeros = others[0] if others and others[0].dtype == np.uint8 else None
    rest = others[zeros is not None :]
    return zeros, rest[0] if rest else None


def _unpack(
    xp: ArrayModule, out: Array, weight: Array, scales: Array, zeros: Array | None, bits: int
) -> None:
    """out <- (q - zeros) * scales."""
    if bits == 8:
        out[...] = weight
    else:
        xp.bitwise_and(weight, 15, out=out[:, 0::2])
        xp.right_shift(weight, 4, out=out[:, 1::2])
    rows, groups = scales.shape
    grouped = out.reshape(rows, groups, out.shape[1] // groups)
    xp.subtract(grouped, zero_of(bits) if zeros is None else zeros[:, :, None], out=grouped)
    xp.multiply(grouped, scales[:, :, None], out=grouped)


@kernel("dequantize")
def dequantize(
    xp: ArrayModule, out: Array, weight: Array, scales: Array, *zeros: Array, bits: int
) -> None:
    _unpack(xp, out, weight, scales, zeros[0] if zeros else None, bits)


@kernel("dequantize", device="cpu", min_elements=FUSED_LEAST)
def dequantize_fused(
    xp: ArrayModule, out: Array, weight: Array, scales: Array, *zeros: Array, bits: int
) -> None:
    if scales.dtype != np.float32 or not _are_dense(out, weight, scales, *zeros):
        dequantize(xp, out, weight, scales, *zeros, bits=bits)
        return
    _programs().dequantize(out, weight, scales, zeros[0] if zeros else None, bits)


def _whole(types: Types, attrs: Attrs) -> Types:
    """The weight as floats."""
    x, weight = types[:2]
    return (x.with_shape((weight.shape[0], x.shape[-1])),)


@kernel("quantized_linear", workspace=_whole)
def quantized_linear(
    xp: ArrayModule, out: Array, x: Array, weight: Array, scales: Array, *others: Array, bits: int
) -> None:
    *others_, w = others
    zeros, bias = _optional(tuple(others_))
    _unpack(xp, w, weight, scales, zeros, bits)
    flat = out
    if x.ndim != 2 and x.flags.c_contiguous:
        x, flat = _rows(x), _rows(out)
    matrix_product(xp, x, w.T, flat)
    if bias is not None:
        xp.add(out, bias, out=out)


def _parts(types: Types, attrs: Attrs) -> Types:
    """A part of the weight as floats, or rows of x in the order of the packed integers; and a copy
    of x, for one that is not contiguous."""
    x, weight = types[:2]
    columns = x.shape[-1]
    if prod(x.shape[:-1]) > MOST_ROWS:
        made = min(weight.shape[0], max(1, _PANEL_ELEMENTS // max(columns, 1))), columns
    else:
        made = prod(x.shape[:-1]), 2 * columns
    return x.with_shape(made).with_dtype(float32), x.with_dtype(float32)


@fused_kernel("quantized_linear", workspace=_parts)
def quantized_linear_fused(
    xp: ArrayModule, out: Array, x: Array, weight: Array, scales: Array, *others: Array, bits: int
) -> None:
    *others_, made, copy = others
    zeros, bias = _optional(tuple(others_))
    programs = _programs()
    if not x.flags.c_contiguous:
        copy[...] = x
        x = copy
    weight, scales = np.ascontiguousarray(weight), np.ascontiguousarray(scales)
    zeros = None if zeros is None else np.ascontiguousarray(zeros)
    x, flat = _rows(x), _rows(out)
    if len(x) <= MOST_ROWS:
        programs.product_of_rows(flat, x, (weight, scales, zeros), bias, bits, made)
        return
    for first in range(0, len(weight), max(1, len(made))):
        rows = slice(first, first + len(made))
        part = made[: len(weight) - first]
        given = None if zeros is None else zeros[rows]
        programs.dequantize(part, weight[rows], scales[rows], given, bits)
        matrix_product(xp, x, part.T, flat[:, rows])
    if bias is not None:
        xp.add(out, bias, out=out)


def _programs() -> ModuleType:
    """The programs, with the compiler that they need."""
    from oneflow.kernels.expressions import quantized_dot

    return quantized_dot


def _are_dense(*arrays: Array) -> bool:
    return all(array.flags.c_contiguous for array in arrays)


def _rows(x: Array) -> Array:
    """A contiguous array as a matrix of rows of its last dim."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])
