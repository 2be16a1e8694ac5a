"""Convolution windows ("columns") with the samples innermost: image (C, H, W, samples), columns
(C, kernel, positions, samples).

So every copy is of whole runs of samples, whatever the stride, the dilation or the padding, and a
whole chunk of samples is one matrix product. With the positions innermost, as in the arrays
themselves, runs would be as short as a row of the image. For 96 samples of 16 x 8 x 8 into 32
channels at stride 2, one thread: columns 14 us, the product 120, the transposes on both sides 25.
"""

from __future__ import annotations

from numba import prange

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import F, vectorized
from oneflow.ops.conv import Sizes


@vectorized
def to_columns(
    columns: Array, image: Array, stride: Sizes, padding: Sizes, dilation: Sizes
) -> None:
    """columns (C, KH, KW, OH, OW, n) <- image (C, H, W, n); zeros where a window leaves the image.

    stride, padding, dilation: pairs of integers.
    """
    channels, kernel_h, kernel_w, out_h, out_w, n = columns.shape
    height, width = image.shape[1], image.shape[2]
    for row in prange(channels * kernel_h):
        c, i = row // kernel_h, row % kernel_h
        for j in range(kernel_w):
            for a in range(out_h):
                h = a * stride[0] + i * dilation[0] - padding[0]
                for b in range(out_w):
                    w = b * stride[1] + j * dilation[1] - padding[1]
                    if 0 <= h < height and 0 <= w < width:
                        for s in range(n):
                            columns[c, i, j, a, b, s] = image[c, h, w, s]
                    else:
                        for s in range(n):
                            columns[c, i, j, a, b, s] = F(0)


@vectorized
def from_columns(
    image: Array, columns: Array, stride: Sizes, padding: Sizes, dilation: Sizes
) -> None:
    """The transpose of `to_columns`: every column is added where it came from. Threads share the
    channels, so sums have one order.
    """
    channels, kernel_h, kernel_w, out_h, out_w, n = columns.shape
    height, width = image.shape[1], image.shape[2]
    for c in prange(channels):
        image[c] = F(0)
        for i in range(kernel_h):
            for j in range(kernel_w):
                for a in range(out_h):
                    h = a * stride[0] + i * dilation[0] - padding[0]
                    for b in range(out_w):
                        w = b * stride[1] + j * dilation[1] - padding[1]
                        if 0 <= h < height and 0 <= w < width:
                            for s in range(n):
                                image[c, h, w, s] += columns[c, i, j, a, b, s]


@vectorized
def channel_sums(out: Array, x: Array) -> None:
    """out (C,) <- sums of x (N, C, positions) over the others; of samples in float64, because there
    may be very many.
    """
    samples, channels, positions = x.shape
    for c in prange(channels):
        total = 0.0
        for n in range(samples):
            part = F(0)
            for p in range(positions):
                part += x[n, c, p]
            total += part
        out[c] = total
