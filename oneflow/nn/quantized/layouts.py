"""Readers of the layouts in which AutoAWQ, GPTQ and compressed-tensors write integers to files.

| layout | weight, int32 | zero points, int32 | scales | a number is |
|---|---|---|---|---|
| AutoAWQ (gemm) | qweight (in, out/8), the fields of a word for outputs 0 2 4 6 1 3 5 7 | qzeros (groups, out/8), likewise | scales (groups, out) | (q - z) s |
| GPTQ | qweight (in·bits/32, out), inputs one after another | qzeros (groups, out·bits/32), z - 1 (in format "gptq_v2" z) | scales (groups, out) | (q - z) s of the group g_idx[input] |
| compressed-tensors | weight_packed (out, in·bits/32), q + 2^(bits-1), inputs one after another | weight_zero_point (out·bits/32, groups), z + 2^(bits-1) | weight_scale (out, groups) | (q - z) s of the group weight_g_idx[input] |

Fields of a word begin with its lowest bits. Shapes tell the layouts and the numbers of bits apart.
"""  # noqa: E501

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from oneflow.core.errors import CheckpointError

Array = np.ndarray[Any, Any]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output that each field of a word is for."""

ENDINGS = (
    *("qweight", "qzeros", "scales", "g_idx"),
    *("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
)
"""Last parts of the names of a layer's tensors, but for its bias."""


class Unpacked(NamedTuple):
    """The arrays of a layer as the op `quantized_linear` takes them, and the bits of an integer.

    order: which input comes at which place of a row; None: each at its own.
    """

    weight: Array
    scales: Array
    zeros: Array | None
    order: Array | None
    bits: int


def unpack(parts: dict[str, Array], columns: int, zero_offset: int) -> Unpacked:
    """The arrays of a layer of a file.

    Args:
        parts: Its arrays by the last part of their names, see ENDINGS; scales as float32.
        columns: Inputs of the layer.
        zero_offset: The number that GPTQ has taken from the zero points.

    Raises:
        CheckpointError: If they are of no known layout.
    """
    if "weight_packed" in parts:
        return _of_compressed_tensors(parts, columns)
    missing = [name for name in ("qweight", "qzeros", "scales") if name not in parts]
    if missing:
        raise CheckpointError(f"it has {sorted(parts)}, but no {missing[0]}")
    weight, scales = parts["qweight"], parts["scales"]
    if weight.shape[0] == columns and weight.shape[1] * 8 == scales.shape[1]:
        return _of_awq(parts)
    if weight.shape[1] == scales.shape[1]:
        return _of_gptq(parts, columns, zero_offset)
    raise CheckpointError(
        f"qweight {list(weight.shape)} and scales {list(scales.shape)} of {columns} inputs are "
        "neither of AutoAWQ's gemm layout with 4 bits nor of GPTQ's with 4 or 8"
    )


def _of_awq(parts: dict[str, Array]) -> Unpacked:
    weight, zeros = (_in_order(_fields(parts[name], 4)).T for name in ("qweight", "qzeros"))
    scales = np.ascontiguousarray(parts["scales"].T)
    return Unpacked(_packed(weight, 4), scales, np.ascontiguousarray(zeros), None, 4)


def _in_order(fields: Array) -> Array:
    words = fields.reshape(len(fields), -1, len(AWQ_ORDER))
    natural: Array = words[:, :, np.argsort(AWQ_ORDER)].reshape(fields.shape)
    return natural


def _of_gptq(parts: dict[str, Array], columns: int, zero_offset: int) -> Unpacked:
    words = parts["qweight"]
    bits = _bits_of(words.shape[0], columns)
    zeros = _fields(parts["qzeros"], bits).astype(np.int64).T + zero_offset
    if zeros.max(initial=0) > 255:
        raise CheckpointError("qzeros has the zero point 256, which no integer of 8 bits reaches")
    scales = np.ascontiguousarray(parts["scales"].T)
    fields = _fields(words.T, bits)
    return _ordered(fields, scales, zeros.astype(np.uint8), parts.get("g_idx"), bits)


def _of_compressed_tensors(parts: dict[str, Array], columns: int) -> Unpacked:
    words, scales = parts["weight_packed"], parts["weight_scale"]
    bits = _bits_of(words.shape[1], columns)
    zeros = None
    if "weight_zero_point" in parts:
        zeros = _fields(parts["weight_zero_point"].T, bits).T[: len(words)]
    fields = _fields(words, bits)[:, :columns]
    return _ordered(fields, scales, zeros, parts.get("weight_g_idx"), bits)


def _ordered(
    fields: Array, scales: Array, zeros: Array | None, groups: Array | None, bits: int
) -> Unpacked:
    """Inputs in the order of their groups."""
    order = None
    if groups is not None and (np.diff(groups) < 0).any():
        order = np.argsort(groups, kind="stable").astype(np.int64)
        fields, groups = fields[:, order], groups[order]
    count = scales.shape[1]
    is_even = fields.shape[1] % count == 0
    if not is_even or (
        groups is not None and (groups != np.repeat(np.arange(count), len(groups) // count)).any()
    ):
        raise CheckpointError(f"its {count} groups of {fields.shape[1]} inputs are not of one size")
    kept = None if zeros is None else np.ascontiguousarray(zeros)
    return Unpacked(_packed(fields, bits), np.ascontiguousarray(scales), kept, order, bits)


def _bits_of(words: int, columns: int) -> int:
    for bits in (4, 8):
        if words == -(-columns * bits // 32):
            return bits
    raise CheckpointError(f"{words} words hold {columns} inputs with neither 4 nor 8 bits")


def _fields(words: Array, bits: int) -> Array:
    """(rows, words) int32 -> (rows, words * 32 / bits) uint8."""
    each = np.ascontiguousarray(words).astype("<i4", copy=False).view(np.uint8)
    if bits == 8:
        return each
    found = np.empty((len(each), each.shape[1] * 2), np.uint8)
    found[:, 0::2], found[:, 1::2] = each & 15, each >> 4
    return found


def _packed(fields: Array, bits: int) -> Array:
    if bits == 8:
        return np.ascontiguousarray(fields)
    if fields.shape[1] % 2:
        raise CheckpointError(f"it has {fields.shape[1]} inputs, an odd number of 4 bits")
    packed: Array = fields[:, 0::2] | (fields[:, 1::2] << 4)
    return packed
