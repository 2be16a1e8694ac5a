"""Pooling over two dims, one plane (a channel of a sample) after another: float32 arrays (planes,
height, width).

window: (kernel, stride, padding, dilation), a pair of integers each.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import F, vectorized
from oneflow.ops.conv import Sizes


@vectorized
def max_pool(out: Array, indices: Array, x: Array, window: tuple[Sizes, ...]) -> None:
    """Find the maxima of all windows.

    indices: of the maxima in their plane, flat. The last NaN of a window wins.
    """
    kernel, stride, padding, dilation = window
    planes, out_h, out_w = out.shape
    height, width = x.shape[1], x.shape[2]
    for plane in prange(planes):
        for a in range(out_h):
            for b in range(out_w):
                best, where = F(-np.inf), 0
                for i in range(kernel[0]):
                    h = a * stride[0] + i * dilation[0] - padding[0]
                    if 0 <= h < height:
                        for j in range(kernel[1]):
                            w = b * stride[1] + j * dilation[1] - padding[1]
                            if 0 <= w < width:
                                value = x[plane, h, w]
                                if value > best or value != value:
                                    best, where = value, h * width + w
                out[plane, a, b] = best
                indices[plane, a, b] = where


@vectorized
def max_pool_grad(d_x: Array, d_out: Array, indices: Array, window: tuple[Sizes, ...]) -> None:
    """Every d_out goes to its maximum. d_x: (planes, height * width).

    A window of -infinity alone names element 0, which gets nothing unless it lies there: only a
    window that begins in the padding or at the corner holds it.
    """
    _, stride, padding, _ = window
    planes, out_h, out_w = d_out.shape
    for plane in prange(planes):
        d_x[plane] = F(0)
        for a in range(out_h):
            top = a * stride[0] - padding[0]
            for b in range(out_w):
                left = b * stride[1] - padding[1]
                index = indices[plane, a, b]
                if index != 0 or (top <= 0 and left <= 0):
                    d_x[plane, index] += d_out[plane, a, b]


@vectorized
def avg_pool(out: Array, x: Array, divisors: Array, window: tuple[Sizes, ...]) -> None:
    """divisors: (height, width) of out."""
    kernel, stride, padding, _ = window
    planes, out_h, out_w = out.shape
    height, width = x.shape[1], x.shape[2]
    for plane in prange(planes):
        for a in range(out_h):
            top = a * stride[0] - padding[0]
            for b in range(out_w):
                left = b * stride[1] - padding[1]
                total = F(0)
                for h in range(max(top, 0), min(top + kernel[0], height)):
                    for w in range(max(left, 0), min(left + kernel[1], width)):
                        total += x[plane, h, w]
                out[plane, a, b] = total / divisors[a, b]


@vectorized
def avg_pool_grad(d_x: Array, d_out: Array, divisors: Array, window: tuple[Sizes, ...]) -> None:
    """Every d_out, divided, is added to its whole window."""
    kernel, stride, padding, _ = window
    planes, out_h, out_w = d_out.shape
    height, width = d_x.shape[1], d_x.shape[2]
    for plane in prange(planes):
        d_x[plane] = F(0)
        for a in range(out_h):
            top = a * stride[0] - padding[0]
            for b in range(out_w):
                left = b * stride[1] - padding[1]
                share = d_out[plane, a, b] / divisors[a, b]
                for h in range(max(top, 0), min(top + kernel[0], height)):
                    for w in range(max(left, 0), min(left + kernel[1], width)):
                        d_x[plane, h, w] += share
