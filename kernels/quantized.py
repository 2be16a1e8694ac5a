"""Kernels of oneflow/ops/quantized.py. On a CPU a few rows of float32 go through a product that
unpacks the weight in registers (native/quantized.py); more rows through BLAS, for which a part
of the weight at a time becomes floats."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from oneflow.core.dtype import float32, float64, int16
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.matmul import matrix_product
from oneflow.kernels.registry import FUSED_LEAST, compute_in_float32, fused_kernel, kernel
from oneflow.ops.conv import Sizes
from oneflow.ops.quantized import IntegerConv, padded_run, runs_of, zero_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from oneflow.ops.quantized import Levels, Windows

compute_in_float32("quantized_linear", device="cpu")
compute_in_float32("integer_linear", "integer_conv")

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
    _programs()[0].dequantize(out, weight, scales, zeros[0] if zeros else None, bits)


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
    programs = _programs()[0]
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


def _programs() -> tuple[ModuleType, ModuleType]:
    """The programs with weights as integers, and those of integers alone; with their compiler."""
    from oneflow.kernels.native import integer, quantized_dot

    return quantized_dot, integer


def _are_dense(*arrays: Array) -> bool:
    return all(array.flags.c_contiguous for array in arrays)


def _rows(x: Array) -> Array:
    """A contiguous array as a matrix of rows of its last dim."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


# ---- products of integers ------------------------------------------------------------------------
#
# Wherever arrays are: sums of whole numbers in float64, which are exact. On a CPU, large enough
# calls of float32 go through native/integer.py.


def _round(xp: ArrayModule, q: Array, x: Array, unit: Array, zero: Array, levels: Levels) -> None:
    """q <- the integers of x less their zero point. NaN becomes the least of them."""
    xp.divide(x, unit, out=q, dtype=x.dtype)
    xp.rint(q, out=q)
    xp.add(q, zero, out=q)
    xp.fmax(q, levels["low"], out=q)
    xp.fmin(q, levels["high"], out=q)
    xp.subtract(q, zero, out=q)


def _finish(
    xp: ArrayModule, out: Array, sums: Array, scales: Array, unit: Array, bias: tuple[Array, ...]
) -> None:
    """out <- sums * unit * scales + bias; outputs are the last dim."""
    xp.multiply(sums, unit * scales, out=sums)
    for b in bias:
        xp.add(sums, b, out=sums)
    out[...] = sums


# ---- dense layers --------------------------------------------------------------------------------


def _linear_work(types: Types, attrs: Attrs) -> Types:
    """The integers of x, the weight, and the sums."""
    x, weight = types[:2]
    shapes = x.shape, weight.shape, (*x.shape[:-1], weight.shape[0])
    return tuple([TensorType(shape, float64) for shape in shapes])


@kernel("integer_linear", workspace=_linear_work)
def integer_linear(
    xp: ArrayModule, out: Array, x: Array, weight: Array, scales: Array, zeros: Array,
    unit: Array, zero: Array, *others: Array, **levels: Unpack[Levels],
) -> None:  # fmt: skip
    *bias, q, w, sums = others
    _round(xp, q, x, unit, zero, levels)
    xp.subtract(weight, zeros[:, None], out=w)
    xp.matmul(q, w[:, : x.shape[-1]].T, out=sums)
    _finish(xp, out, sums, scales, unit, tuple(bias))


def _rows_work(types: Types, attrs: Attrs) -> Types:
    """Rows of integers, with room behind the last; and a copy of an x that is not contiguous."""
    x = types[0]
    rows = prod(x.shape[:-1])
    room = rows * padded_run(x.shape[-1]) + _ROOM
    return TensorType((room,), int16), x.with_dtype(float32)


_ROOM = 64
"""Integers behind the last, which vectors may read."""


@fused_kernel("integer_linear", workspace=_rows_work)
def integer_linear_fused(
    xp: ArrayModule, out: Array, x: Array, weight: Array, scales: Array, zeros: Array,
    unit: Array, zero: Array, *others: Array, **levels: Unpack[Levels],
) -> None:  # fmt: skip
    *bias, q, copy = others
    rounding, layer = _described((weight, scales, zeros), unit, zero, bias, levels)
    rows = _contiguous(x, copy).reshape(prod(x.shape[:-1]), x.shape[-1])
    _programs()[1].linear(out.reshape(len(rows), len(weight)), rows, q, rounding, layer)


def _contiguous(x: Array, copy: Array) -> Array:
    """Return x, or `copy` with its values if it is not contiguous."""
    if x.flags.c_contiguous:
        return x
    copy[...] = x
    return copy


def _described(
    weights: Sequence[Array], unit: Array, zero: Array, bias: Sequence[Array],
    levels: Levels,
) -> tuple[Any, Any]:  # fmt: skip
    """Return how x is rounded, and the layer, as the programs take them."""
    programs = _programs()[1]
    dense = [np.ascontiguousarray(a) for a in (*weights, *bias)]
    layer = programs.Layer(*dense[:3], unit, *dense[3:])
    return programs.Rounding(levels["low"], levels["high"], unit, zero), layer


# ---- convolutions --------------------------------------------------------------------------------


def _out(types: Types, attrs: Attrs) -> TensorType:
    return IntegerConv.infer(*types, **attrs)


def _around(x: TensorType, padding: Sizes) -> Sizes:
    """Height and width, padding included."""
    return tuple([size + 2 * p for size, p in zip(x.shape[2:], padding, strict=True)])


def _conv_work(types: Types, attrs: Attrs) -> Types:
    """The padded integers of x, those that meet one element of the window, the weight, the sums of
    one element, and all sums."""
    x, weight, out = types[0], types[1], _out(types, attrs)
    each = out.shape[2] * out.shape[3]
    shapes = (
        (*x.shape[:2], *_around(x, attrs["padding"])),
        (*x.shape[:2], each), weight.shape, (out.shape[0], out.shape[1], each),
        (out.shape[0], out.shape[1], each),
    )  # fmt: skip
    return tuple([TensorType(shape, float64) for shape in shapes])


@kernel("integer_conv", workspace=_conv_work)
def integer_conv(
    xp: ArrayModule, out: Array, x: Array, weight: Array, scales: Array, zeros: Array,
    unit: Array, zero: Array, *others: Array, **windows: Unpack[Windows],
) -> None:  # fmt: skip
    *bias, image, met, w, part, sums = others
    top, left = windows["padding"]
    image[...] = 0
    inside = image[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    _round(xp, inside, x, unit, zero, windows)
    xp.subtract(weight, zeros[:, None, None], out=w)
    sums[...] = 0
    for element, own in _elements(w, x.shape[1], windows):
        _meet(met.reshape(*x.shape[:2], *out.shape[2:]), image, element, windows)
        _add_products(xp, sums, part, own, met, windows["groups"])
    _finish(xp, out.reshape(sums.shape).swapaxes(1, 2), sums.swapaxes(1, 2), scales, unit,
            tuple(bias))  # fmt: skip


def _elements(w: Array, channels: int, windows: Windows) -> list[tuple[tuple[int, int], Array]]:
    """The elements of a window, and the weights (out, channels of a group) of each."""
    own = channels // windows["groups"]
    lines, across = windows["kernel"]
    _, places, count = runs_of(windows["kernel"], own, windows["dilation"])
    runs = w.reshape(len(w), lines, places, -1)[..., :count].reshape(len(w), lines, across, own)
    return [((i, j), runs[:, i, j]) for i in range(lines) for j in range(across)]


def _meet(met: Array, image: Array, element: tuple[int, int], windows: Windows) -> None:
    cut = [slice(None)] * 2
    for i, count in enumerate(met.shape[2:]):
        first, step = element[i] * windows["dilation"][i], windows["stride"][i]
        cut.append(slice(first, first + (count - 1) * step + 1, step))
    met[...] = image[tuple(cut)]


def _add_products(
    xp: ArrayModule, sums: Array, part: Array, w: Array, met: Array, groups: int
) -> None:
    outs, own = len(w) // groups, w.shape[1]
    for g in range(groups):
        of = slice(g * outs, (g + 1) * outs)
        xp.matmul(w[of], met[:, g * own : (g + 1) * own], out=part[:, of])
    xp.add(sums, part, out=sums)


def _pixels_work(types: Types, attrs: Attrs) -> Types:
    """The padded integers of x, channels innermost, with room behind the last; and a copy of an x
    that is not contiguous."""
    x = types[0]
    room = prod(x.shape[:2]) * prod(_around(x, attrs["padding"])) + _ROOM
    return TensorType((room,), int16), x.with_dtype(float32)


@fused_kernel("integer_conv", workspace=_pixels_work)
def integer_conv_fused(
    xp: ArrayModule, out: Array, x: Array, weight: Array, scales: Array, zeros: Array,
    unit: Array, zero: Array, *others: Array, **windows: Unpack[Windows],
) -> None:  # fmt: skip
    *bias, q, copy = others
    rounding, layer = _described((weight, scales, zeros), unit, zero, bias, windows)
    _programs()[1].conv(out, _contiguous(x, copy), q, rounding, layer, windows)
