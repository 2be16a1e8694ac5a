"""Samples of products with packed integers, which are unpacked here one number at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from .sample import Sample, between, integers, normal

Array = np.ndarray[Any, Any]


def unpacked(weight: Array, bits: int) -> Array:
    """The integers of packed rows, each by its own shift."""
    columns = weight.shape[1] * 8 // bits
    places = [(k * bits // 8, k * bits % 8) for k in range(columns)]
    listed = [(weight[:, byte].astype(np.int64) >> low) % (1 << bits) for byte, low in places]
    return np.stack(listed, axis=1)


def dequantized(weight: Array, scales: Array, *zeros: Array, bits: int) -> Array:
    """Compute the weight in float64."""
    numbers = unpacked(weight, bits)
    out = np.empty(numbers.shape)
    group = numbers.shape[1] // scales.shape[1]
    for k in range(numbers.shape[1]):
        zero = zeros[0][:, k // group].astype(np.int64) if zeros else 2 ** (bits - 1)
        out[:, k] = (numbers[:, k] - zero) * scales[:, k // group]
    return out


def product(x: Array, weight: Array, scales: Array, *others: Array, bits: int) -> Array:
    zeros = [t for t in others if t.dtype == np.uint8]
    out: Array = x @ dequantized(weight, scales, *zeros, bits=bits).T
    for bias in others[len(zeros) :]:
        out = out + bias
    return out


def _packed(rows: int, columns: int, groups: int, bits: int) -> tuple[Array, Array, Array]:
    weight = integers(0, 256, rows, columns * bits // 8, dtype=np.uint8)
    zeros = integers(0, 1 << bits, rows, groups, dtype=np.uint8)
    return weight, between(0.5, 1.5, rows, groups), zeros


def quantized_samples() -> list[Sample]:
    result = []
    for bits, groups in ((4, 2), (8, 1), (4, 6), (8, 3)):
        weight, scales, zeros = _packed(6, 24, groups, bits)
        bias, attrs = normal(6, seed=3), {"bits": bits}
        for extra in ((), (zeros,)):
            result.append(Sample("dequantize", (weight, scales, *extra), attrs, dequantized))
        calls: list[tuple[Array, tuple[Array, ...]]] = [
            (normal(4, 24), ()),
            (normal(2, 3, 24), (zeros, bias)),
            (normal(24), (bias,)),
            (normal(6, 2, 24), (zeros,)),
        ]
        for x, rest in calls:
            ins = (x, weight, scales, *rest)
            wrt = (0, len(ins) - 1) if rest and rest[-1] is bias else (0,)
            result.append(Sample("quantized_linear", ins, attrs, product, tolerance=3e-5, wrt=wrt))
    return result
