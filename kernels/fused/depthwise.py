"""Convolutions of each channel by itself: float32 images, one plane (a channel of a sample) after
another.

A plane is copied with its padding, and with a stride of s into s * s planes of every s-th row and
column, so that each weight of the window multiplies one long run of numbers. The run goes over the
ends of the rows; what falls there is left out when the result is copied.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from oneflow.kernels.array import Array
from oneflow.kernels.fused.math import F, inlined, vectorized

Window = tuple[int, int, int, int, int, int, int, int]
"""Kernel, stride, padding and dilation, two integers each: a loop that runs in parallel takes no
tuples in tuples."""

_TURN = 64
"""Numbers of a turn of a vector loop, at most."""

_TASKS = 64
"""Parts of the work, each with memory of its own for a plane."""


@inlined
def _sizes(height: int, width: int, window: Window) -> tuple[int, int]:
    """Rows and columns of the parts of a padded plane."""
    _, _, down, across, top, left, _, _ = window
    return (height + 2 * top + down - 1) // down, (width + 2 * left + across - 1) // across


@inlined
def _offset(i: int, j: int, rows: int, columns: int, window: Window) -> int:
    """The number in the parts that weight (i, j) multiplies for position 0."""
    _, _, down, across, _, _, apart_h, apart_w = window
    h, w = i * apart_h, j * apart_w
    part = h % down * across + w % across
    return (part * rows + h // down) * columns + w // across


@inlined
def _length(down: int, across: int, columns: int) -> int:
    """Length of a run, up to a multiple of what a turn of a vector loop takes: its end, one number
    after the other, would take as long as the rest."""
    return ((down - 1) * columns + across + _TURN - 1) // _TURN * _TURN


# Slices, because an index that begins elsewhere than at 0 may be negative for all that the compiler
# knows: with the question whether it is, the loops would not become vector code.


@inlined
def _to_parts(parts: Array, plane: Array, rows: int, columns: int, window: Window) -> None:
    _, _, down, across, top, left, _, _ = window
    height, width = plane.shape
    parts[:] = F(0)
    for h in range(height):
        row = h + top
        at = (row % down * across * rows + row // down) * columns
        source = plane[h]
        for first in range(across):
            column = first + left
            to = at + column % across * rows * columns + column // across
            count = (width - first + across - 1) // across
            target = parts[to : to + count]
            if across == 1:
                for k in range(count):
                    target[k] = source[k]
            else:
                for k in range(count):
                    target[k] = source[first + k * across]


@inlined
def _from_parts(plane: Array, parts: Array, rows: int, columns: int, window: Window) -> None:
    _, _, down, across, top, left, _, _ = window
    height, width = plane.shape
    for h in range(height):
        row = h + top
        at = (row % down * across * rows + row // down) * columns
        target = plane[h]
        for first in range(across):
            column = first + left
            start = at + column % across * rows * columns + column // across
            count = (width - first + across - 1) // across
            source = parts[start : start + count]
            if across == 1:
                for k in range(count):
                    target[k] = source[k]
            else:
                for k in range(count):
                    target[first + k * across] = source[k]


@inlined
def _to_run(run: Array, plane: Array, columns: int) -> None:
    """run: the rows of a plane, `columns` apart, with zeros between and behind them."""
    height, width = plane.shape
    run[:] = F(0)
    for h in range(height):
        target, source = run[h * columns : h * columns + width], plane[h]
        for w in range(width):
            target[w] = source[w]


@inlined
def _add(target: Array, source: Array, weight: float) -> None:
    for p in range(len(target)):
        target[p] += weight * source[p]


@vectorized
def convolve(out: Array, x: Array, w: Array, window: Window) -> None:
    """out (N, O, OH, OW) <- windows of x (N, C, H, W); w: (O, KH, KW); O is a multiple of C."""
    samples, channels, height, width = x.shape
    outs, down, across = out.shape[1:]
    rows, columns = _sizes(height, width, window)
    kernel_h, kernel_w, num_parts = window[0], window[1], window[2] * window[3]
    length = _length(down, across, columns)
    each = outs // channels
    planes = samples * channels
    tasks = min(planes, _TASKS)
    for task in prange(tasks):
        parts = np.empty(num_parts * rows * columns + _TURN, F)
        run = np.empty(length, F)
        for plane in range(planes * task // tasks, planes * (task + 1) // tasks):
            n, c = plane // channels, plane % channels
            _to_parts(parts, x[n, c], rows, columns, window)
            for o in range(c * each, (c + 1) * each):
                run[:] = F(0)
                for i in range(kernel_h):
                    for j in range(kernel_w):
                        at = _offset(i, j, rows, columns, window)
                        _add(run, parts[at : at + length], w[o, i, j])
                for h in range(down):
                    target, source = out[n, o, h], run[h * columns : h * columns + across]
                    for k in range(across):
                        target[k] = source[k]


@vectorized
def data_gradient(d_x: Array, d_out: Array, w: Array, window: Window) -> None:
    """d_x (N, C, H, W) <- d_out (N, O, OH, OW) and w (O, KH, KW)."""
    samples, channels, height, width = d_x.shape
    outs, down, across = d_out.shape[1:]
    rows, columns = _sizes(height, width, window)
    kernel_h, kernel_w, num_parts = window[0], window[1], window[2] * window[3]
    length = _length(down, across, columns)
    each = outs // channels
    planes = samples * channels
    tasks = min(planes, _TASKS)
    for task in prange(tasks):
        parts = np.empty(num_parts * rows * columns + _TURN, F)
        run = np.empty(length, F)
        for plane in range(planes * task // tasks, planes * (task + 1) // tasks):
            n, c = plane // channels, plane % channels
            parts[:] = F(0)
            for o in range(c * each, (c + 1) * each):
                _to_run(run, d_out[n, o], columns)
                for i in range(kernel_h):
                    for j in range(kernel_w):
                        at = _offset(i, j, rows, columns, window)
                        _add(parts[at : at + length], run, w[o, i, j])
            _from_parts(d_x[n, c], parts, rows, columns, window)


@vectorized
def filter_gradient(d_w: Array, d_out: Array, x: Array, window: Window) -> None:
    """d_w (O, KH, KW) <- d_out (N, O, OH, OW) and x (N, C, H, W)."""
    samples, channels, height, width = x.shape
    outs, down, across = d_out.shape[1:]
    rows, columns = _sizes(height, width, window)
    kernel_h, kernel_w, num_parts = window[0], window[1], window[2] * window[3]
    length = _length(down, across, columns)
    each = outs // channels
    tasks = min(channels, _TASKS)
    for task in prange(tasks):
        parts = np.empty(num_parts * rows * columns + _TURN, F)
        run = np.empty(length, F)
        for c in range(channels * task // tasks, channels * (task + 1) // tasks):
            d_w[c * each : (c + 1) * each] = F(0)
            for n in range(samples):
                _to_parts(parts, x[n, c], rows, columns, window)
                for o in range(c * each, (c + 1) * each):
                    _to_run(run, d_out[n, o], columns)
                    for i in range(kernel_h):
                        for j in range(kernel_w):
                            at, total = _offset(i, j, rows, columns, window), F(0)
                            some = parts[at : at + length]
                            for p in range(length):
                                total += run[p] * some[p]
                            d_w[o, i, j] += total
