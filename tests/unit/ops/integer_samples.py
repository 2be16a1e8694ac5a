"""Samples of layers of 8-bit integers, computed here in float64 window by window."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from .sample import Sample, integers, normal

Array = np.ndarray[Any, Any]


def rounded(x: Array, unit: Array, zero: Array, low: int, high: int) -> Array:
    """The integers of x less their zero point."""
    found: Array = np.clip(np.rint(x / unit) + zero, low, high) - zero
    return found


def dense(x: Array, weight: Array, *others: Array, low: int, high: int) -> Array:
    scales, zeros, unit, zero, *bias = others
    w = weight.astype(np.float64) - zeros[:, None]
    sums = rounded(x, unit, zero, low, high) @ w[:, : x.shape[-1]].T
    return sums * unit * scales + sum(bias)  # type: ignore[no-any-return]


def convolved(
    x: Array,
    weight: Array,
    *others: Array,
    low: int,
    high: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Array:
    scales, zeros, unit, zero, *bias = others
    q = rounded(x, unit, zero, low, high)
    q = np.pad(q, ((0, 0), (0, 0), *((p, p) for p in padding)))
    own, outs = x.shape[1] // groups, len(weight)
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    height, width = ((q.shape[2 + i] - reach[i] - 1) // stride[i] + 1 for i in range(2))
    across = kernel[1] if dilation[1] > 1 else 1
    sums = np.zeros((len(x), outs, height, width))
    for o, y, z in product(range(outs), range(height), range(width)):
        first = o // (outs // groups) * own
        for i, j, c in product(range(kernel[0]), range(kernel[1]), range(own)):
            run, place = (i * across + j, c) if across > 1 else (i, j * own + c)
            w = int(weight[o, run, place]) - int(zeros[o])
            line, column = y * stride[0] + i * dilation[0], z * stride[1] + j * dilation[1]
            sums[:, o, y, z] += q[:, first + c, line, column] * w
    out = sums * (unit * scales)[:, None, None]
    return out + bias[0][:, None, None] if bias else out


def _operands(outs: int, runs: tuple[int, ...], filled: int) -> tuple[Array, ...]:
    """Weight, scales, zeros, and scale and zero point of the input."""
    zeros = integers(-9, 10, outs, dtype=np.int32)
    weight = integers(-128, 128, outs, *runs, dtype=np.int8)
    weight[..., filled:] = zeros.reshape(-1, *(1,) * len(runs))
    scales = (integers(1, 9, outs) / 64).astype(np.float32)
    return weight, scales, zeros, np.array([0.25], np.float32), np.array([3], np.int32)


def _numbers(*shape: int) -> Array:
    """Quarters and a bit, none of which lies between two integers."""
    found: Array = integers(-160, 160, *shape).astype(np.float64) / 4 + 0.07
    return found


def integer_samples() -> list[Sample]:
    bias = normal(4, seed=3).astype(np.float32)
    levels = {"low": -128, "high": 127}
    result = []
    for shape, rest in (((3, 20), ()), ((2, 3, 16), (bias,)), ((5,), (bias,))):
        columns = shape[-1]
        given = _operands(4, (-(-columns // 16) * 16,), columns)
        ins = (_numbers(*shape), *given, *rest)
        result.append(Sample("integer_linear", ins, levels, dense, wrt=()))
    for groups, dilation, rest in ((1, (1, 1), (bias,)), (2, (1, 2), ()), (4, (2, 1), (bias,))):
        own = 4 // groups
        runs, count = (6, own) if dilation[1] > 1 else (3, 2 * own)
        given = _operands(4, (runs, 16), count)
        attrs = levels | {
            "kernel": (3, 2), "stride": (2, 1), "padding": (2, 1), "dilation": dilation,
            "groups": groups,
        }  # fmt: skip
        ins = (_numbers(2, 4, 5, 6), *given, *rest)
        result.append(Sample("integer_conv", ins, attrs, convolved, wrt=()))
    return result
