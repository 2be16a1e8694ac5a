"""Convolutions of float32 images that gather no windows.

An image is copied once with its channels innermost ("pixels": samples, padded height and width,
channels). A row of a window is then one run of numbers, whatever the stride, and the innermost
product (`expressions/product.py`) reads it where it lies. Results come in blocks of BLOCK channels,
with the channels innermost; they are transposed while they are in the cache. Weights ("packed") are
(blocks of channels, kernel, channels of a group, BLOCK).

For 4 samples of 64 x 56 x 56 into 64 channels by 3 x 3, one thread with AVX-512: 4.2 ms of products
and 0.6 of copies, where gathered windows and BLAS took 8.9.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import F, inlined, vectorized
from oneflow.kernels.fused.product import BLOCK, MOST_ROWS, multiply
from oneflow.kernels.fused.tiles import move
from oneflow.ops.conv import Sizes

_POSITIONS = 512
"""Positions whose results are computed before they are transposed: they stay in the cache."""

_ELEMENTS = 1536
"""Elements of a window in one product: their weights, 192 KB, stay in the second cache while all
positions of a chunk go by."""

_TURNED = 128
"""Elements of a channel's weights that are transposed at once: runs of several lines of the cache,
which the processor fetches ahead."""

_SIDE = 8  # of the tiles that `move` transposes


@vectorized
def to_pixels(pixels: Array, x: Array, begin: Sizes, step: Sizes) -> None:
    """pixels (N, padded height, padded width, C) <- every `step`-th element of x (N, C, H, W),
    whose first one comes to `begin`; zeros around them.
    """
    samples, channels, height, width = x.shape
    padded, across = pixels.shape[1], pixels.shape[2]
    flat, source = pixels.reshape(-1), x.reshape(-1)
    plane, (top, left) = height * width, begin
    width = min((width + step[1] - 1) // step[1], across - left)
    for task in prange(samples * padded):
        n, row = task // padded, task % padded
        h = (row - top) * step[0]
        if h < 0 or h >= height:
            pixels[n, row] = F(0)
            continue
        pixels[n, row, :left] = F(0)
        pixels[n, row, left + width :] = F(0)
        origin = n * channels * plane + h * x.shape[3]
        to = ((n * padded + row) * across + left) * channels
        if width < _SIDE or channels < _SIDE or step[1] != 1:
            for w in range(width):
                for c in range(channels):
                    flat[to + w * channels + c] = source[origin + c * plane + w * step[1]]
        else:
            for some_w in range(0, width, _SIDE):
                w = min(some_w, width - _SIDE)
                for some_c in range(0, channels, _SIDE):
                    c = min(some_c, channels - _SIDE)
                    move(flat, source, to + w * channels + c, origin + c * plane + w,
                         channels, plane)  # fmt: skip


@vectorized
def to_blocks(blocks: Array, x: Array, groups: int) -> None:
    """blocks (groups * blocks, N, positions, BLOCK) <- x (N, C, positions), of whose channels each
    group has its own blocks; zeros where there are no channels.
    """
    samples, channels, positions = x.shape
    per_group, own = blocks.shape[0] // groups, channels // groups
    flat, source = blocks.reshape(-1), x.reshape(-1)
    for task in prange(blocks.shape[0] * samples):
        block, n = task // samples, task % samples
        first = block // per_group * own + block % per_group * BLOCK
        count = min(BLOCK, own - block % per_group * BLOCK)
        to, origin = task * positions * BLOCK, (n * channels + first) * positions
        if count < BLOCK:
            blocks[block, n] = F(0)
        if positions < _SIDE or count < _SIDE:
            for p in range(positions):
                for c in range(count):
                    flat[to + p * BLOCK + c] = source[origin + c * positions + p]
        else:
            for some_p in range(0, positions, _SIDE):
                p = min(some_p, positions - _SIDE)
                for some_c in range(0, count, _SIDE):
                    c = min(some_c, count - _SIDE)
                    move(flat, source, to + p * BLOCK + c, origin + c * positions + p,
                         BLOCK, positions)  # fmt: skip


@inlined
def _transpose_out(out: Array, made: Array, to: int, plane: int, count: int, channels: int) -> None:
    """out[to + c * plane + p] <- made[p * BLOCK + c]."""
    if count < _SIDE or channels < _SIDE:
        for c in range(channels):
            for p in range(count):
                out[to + c * plane + p] = made[p * BLOCK + c]
    else:
        for some_p in range(0, count, _SIDE):
            p = min(some_p, count - _SIDE)
            for some_c in range(0, channels, _SIDE):
                c = min(some_c, channels - _SIDE)
                move(out, made, to + c * plane + p, p * BLOCK + c, plane, BLOCK)


@vectorized
def pack(packed: Array, w: Array) -> None:
    """packed (groups, blocks, kernel, C / groups, BLOCK) <- w (groups, O / groups, C / groups,
    kernel); zeros where there are no channels.
    """
    groups, outs, channels, kernel = w.shape
    source = w.reshape(-1)
    row = channels * kernel
    for task in prange(groups * packed.shape[1]):
        group, block = task // packed.shape[1], task % packed.shape[1]
        first = block * BLOCK
        count = min(BLOCK, outs - first)
        own = packed[group, block]
        if count < BLOCK:
            own[...] = F(0)
        origin = (group * outs + first) * row
        if kernel == 1 and row >= _SIDE and count >= _SIDE:
            flat = own.reshape(-1)
            for some_c in range(0, channels, _SIDE):
                c = min(some_c, channels - _SIDE)
                for some_o in range(0, count, _SIDE):
                    o = min(some_o, count - _SIDE)
                    move(flat, source, c * BLOCK + o, origin + o * row + c, BLOCK, row)
        elif row >= _SIDE and count >= _SIDE:
            some = np.zeros((_TURNED, BLOCK), F)
            flat = some.reshape(-1)
            for first_k in range(0, row, _TURNED):
                elements = min(_TURNED, row - first_k)
                begin = min(first_k, row - max(elements, _SIDE))
                elements = max(elements, _SIDE)
                for some_o in range(0, count, _SIDE):
                    o = min(some_o, count - _SIDE)
                    for some_k in range(0, elements, _SIDE):
                        k = min(some_k, elements - _SIDE)
                        at = origin + o * row + begin + k
                        move(flat, source, k * BLOCK + o, at, BLOCK, row)
                for i in range(elements):
                    c, place = (begin + i) // kernel, (begin + i) % kernel
                    for o in range(BLOCK):
                        own[place, c, o] = some[i, o]
        else:
            for c in range(channels):
                for place in range(kernel):
                    for o in range(count):
                        own[place, c, o] = source[origin + o * row + c * kernel + place]


@vectorized
def unpack(w: Array, packed: Array) -> None:
    """The way back of `pack`."""
    groups, outs, channels, kernel = w.shape
    target = w.reshape(-1)
    row = channels * kernel
    for task in prange(groups * packed.shape[1]):
        group, block = task // packed.shape[1], task % packed.shape[1]
        first = block * BLOCK
        count = min(BLOCK, outs - first)
        own = packed[group, block]
        to = (group * outs + first) * row
        if row >= _SIDE and count >= _SIDE:
            some = np.empty((_TURNED, BLOCK), F)
            flat = some.reshape(-1)
            for first_k in range(0, row, _TURNED):
                elements = min(_TURNED, row - first_k)
                begin = min(first_k, row - max(elements, _SIDE))
                elements = max(elements, _SIDE)
                for i in range(elements):
                    c, place = (begin + i) // kernel, (begin + i) % kernel
                    for o in range(BLOCK):
                        some[i, o] = own[place, c, o]
                for some_o in range(0, count, _SIDE):
                    o = min(some_o, count - _SIDE)
                    for some_k in range(0, elements, _SIDE):
                        k = min(some_k, elements - _SIDE)
                        at = to + o * row + begin + k
                        move(target, flat, at, k * BLOCK + o, row, BLOCK)
        else:
            for c in range(channels):
                for place in range(kernel):
                    for o in range(count):
                        target[to + o * row + c * kernel + place] = own[place, c, o]


@vectorized
def pack_turned(packed: Array, w: Array, first: Sizes, step: Sizes) -> None:
    """packed (groups, blocks, taps, taps, O / groups, BLOCK) <- w (groups, O / groups, C / groups,
    kernel, kernel): what the gradient of the data multiplies with. Tap 0 along a dim is the kernel
    position `first`, the next ones are `step` before it.
    """
    groups, outs, channels = w.shape[:3]
    blocks, taps_h, taps_w = packed.shape[1:4]
    area = taps_h * taps_w
    is_whole = step[0] == 1 and step[1] == 1 and area >= _SIDE
    flat, source = packed.reshape(-1), w.reshape(-1)
    for task in prange(groups * blocks):
        group, block = task // blocks, task % blocks
        own = packed[group, block]
        start = block * BLOCK
        count = min(BLOCK, channels - start)
        if count < BLOCK:
            own[...] = F(0)
        if is_whole and count >= _SIDE:
            # The kernel positions backwards: a transpose whose rows go up.
            for o in range(outs):
                origin = ((group * outs + o) * channels + start) * area
                last = ((task * area + area - 1) * outs + o) * BLOCK
                for some_c in range(0, count, _SIDE):
                    c = min(some_c, count - _SIDE)
                    for some_k in range(0, area, _SIDE):
                        k = min(some_k, area - _SIDE)
                        to = last - k * outs * BLOCK + c
                        move(flat, source, to, origin + c * area + k, -outs * BLOCK, area)
            continue
        for o in range(outs):
            some = w[group, o]
            for a in range(taps_h):
                for b in range(taps_w):
                    i, j = first[0] - a * step[0], first[1] - b * step[1]
                    for c in range(count):
                        own[a, b, o, c] = some[start + c, i, j]


@vectorized
def convolve(
    out: Array, pixels: Array, packed: Array, origin: Sizes, stride: Sizes, dilation: Sizes,
    begin: Sizes, step: Sizes, code: int,
) -> None:  # fmt: skip
    """Products of all windows, or of some.

    out: (N, O, H, W), of which the elements (begin[0] + i * step[0], begin[1] + j * step[1]) are
    written.  pixels: (N, padded height, padded width, C).  packed: (groups, blocks, taps, taps,
    C / groups, BLOCK).  Window (i, j) begins at origin + (i, j) * stride.  code: `product()`.
    """
    samples, outs, height, width = out.shape
    groups, blocks, taps_h, taps_w, channels, _ = packed.shape
    down = (height - begin[0] + step[0] - 1) // step[0]
    across = (width - begin[1] + step[1] - 1) // step[1]
    own_outs = outs // groups
    pixel = pixels.shape[3]
    line = pixels.shape[2] * pixel
    # One run of numbers is a row of the window, or if that has gaps, a pixel of it.
    is_joined = groups == 1 and dilation[1] == 1
    runs, length = (1, taps_w * channels) if is_joined else (taps_w, channels)
    elements = taps_h * runs * length
    planes, parts = taps_h, 1
    if elements > _ELEMENTS:
        planes = 1
        parts = (length * runs + _ELEMENTS - 1) // _ELEMENTS if runs == 1 else 1
    rows_at_once = max(1, _POSITIONS // across)
    tiles = (across + MOST_ROWS - 1) // MOST_ROWS
    flat, source, weights = out.reshape(-1), pixels.reshape(-1), packed.reshape(-1)
    is_whole = step[0] == 1 and step[1] == 1
    for n in prange(samples):
        made = np.empty(min(rows_at_once, down) * across * BLOCK, F)
        for block in range(groups * blocks):
            group = block // blocks
            first_out = group * own_outs + block % blocks * BLOCK
            count = min(BLOCK, own_outs - block % blocks * BLOCK)
            for row in range(0, down, rows_at_once):
                rows = min(rows_at_once, down - row)
                for tap in range(0, taps_h, planes):
                    for part in range(parts):
                        start = length * part // parts
                        end = length * (part + 1) // parts
                        weight = ((block * taps_h + tap) * runs * length + start) * BLOCK
                        adds = 1 if tap + part else 0
                        for r in range(rows):
                            top = origin[0] + (row + r) * stride[0] + tap * dilation[0]
                            base = n * pixels.shape[1] * line + top * line + group * channels
                            base += origin[1] * pixel + start
                            for tile in range(tiles):
                                left = across * tile // tiles
                                here = across * (tile + 1) // tiles - left
                                multiply(
                                    code, made, source, weights,
                                    ((r * across + left) * BLOCK, base + left * stride[1] * pixel,
                                     weight),
                                    here,
                                    (stride[1] * pixel, dilation[0] * line, dilation[1] * pixel, 1),
                                    (runs * length * BLOCK, length * BLOCK, BLOCK),
                                    BLOCK, (planes, runs, end - start), adds,
                                )  # fmt: skip
                to = (n * outs + first_out) * height * width
                if is_whole:
                    at = to + row * width
                    _transpose_out(flat, made, at, height * width, rows * across, count)
                else:
                    for c in range(count):
                        for r in range(rows):
                            h = begin[0] + (row + r) * step[0]
                            at = to + c * height * width + h * width + begin[1]
                            for p in range(across):
                                flat[at + p * step[1]] = made[(r * across + p) * BLOCK + c]


@vectorized
def filter_gradient(
    packed: Array, pixels: Array, blocks: Array, positions: Sizes, stride: Sizes, dilation: Sizes,
    code: int,
) -> None:  # fmt: skip
    """packed (groups, blocks, KH, KW, C / groups, BLOCK) <- products of the pixels with blocks
    (groups * blocks, N, positions, BLOCK).
    """
    groups, per_group, kernel_h, kernel_w, channels, _ = packed.shape
    down, across = positions
    samples = pixels.shape[0]
    pixel = pixels.shape[3]
    line = pixels.shape[2] * pixel
    is_joined = groups == 1 and dilation[1] == 1
    runs, length = (1, kernel_w * channels) if is_joined else (kernel_w, channels)
    tiles = (length + MOST_ROWS - 1) // MOST_ROWS
    # Numbers of both operands that stay in the cache while the window goes by.
    area = max(1, 65536 // (pixel * stride[0] * stride[1]))
    rows_at_once = min(down, max(1, min(_POSITIONS, area) // across))
    at_once = max(1, min(samples, _POSITIONS // (2 * down * across)))
    if rows_at_once < down:
        at_once = 1
    flat, source, given = packed.reshape(-1), pixels.reshape(-1), blocks.reshape(-1)
    for block in prange(groups * per_group):
        group = block // per_group
        own = block * kernel_h * kernel_w * channels * BLOCK
        for n in range(0, samples, at_once):
            together = min(at_once, samples - n)
            for row in range(0, down, rows_at_once):
                rows = min(rows_at_once, down - row)
                add = 1 if n + row else 0
                start = (((block * samples + n) * down + row) * across) * BLOCK
                for tap in range(kernel_h * runs):
                    i, j = tap // runs, tap % runs
                    top = row * stride[0] + i * dilation[0]
                    base = (n * pixels.shape[1] + top) * line + group * channels
                    base += j * dilation[1] * pixel
                    for tile in range(tiles):
                        first = length * tile // tiles
                        here = length * (tile + 1) // tiles - first
                        multiply(
                            code, flat, source, given,
                            (own + (tap * length + first) * BLOCK, base + first, start),
                            here,
                            (1, pixels.shape[1] * line, stride[0] * line, stride[1] * pixel),
                            (down * across * BLOCK, across * BLOCK, BLOCK),
                            BLOCK, (together, rows, across), add,
                        )  # fmt: skip
