"""The ways of `kernels/conv_direct.py`, run."""

from __future__ import annotations

from itertools import product as pairs
from math import prod

import numpy as np

from oneflow.kernels.array import Array, at
from oneflow.kernels.conv_direct import Call, pair, phases_of
from oneflow.kernels.cpu_products import multiply
from oneflow.kernels.native import depthwise, direct, grouped, pointwise, winograd
from oneflow.kernels.native.columns import from_columns, to_columns, transpose
from oneflow.kernels.native.grouped import backward_work, filter_work, forward_work, in_blocks
from oneflow.kernels.native.planes import work_shapes
from oneflow.kernels.native.product import BLOCK

__all__ = [
    "BLOCK", "backward_work", "conv", "data_grad", "filter_grad", "filter_work", "forward_work",
    "from_columns", "in_blocks", "to_columns", "transpose", "winograd", "work_shapes",
]  # fmt: skip


def _flat(x: Array) -> Array:
    """(N, C, positions)."""
    whole: Array = np.ascontiguousarray(x)
    return whole.reshape(*x.shape[:2], -1)


def _by_group(w: Array, groups: int) -> Array:
    """(groups, O / groups, C / groups, *kernel)."""
    whole: Array = np.ascontiguousarray(w)
    return whole.reshape(groups, w.shape[0] // groups, *w.shape[1:])


def conv(call: Call, out: Array, x: Array, w: Array, work: tuple[Array, ...]) -> None:
    if call.is_grouped:
        given = np.ascontiguousarray(x), np.ascontiguousarray(w)
        grouped.convolve(call, out, *given, *work)
        return
    if call.is_depthwise:
        given = np.ascontiguousarray(x), np.ascontiguousarray(w)
        depthwise.convolve(out, *given, call.window(), work)
        return
    if call.is_pointwise:
        _multiply(_matrix(w), _flat(_met(call, x, work)), _flat(out))
        return
    pixels, *turned, packed = work
    direct.to_pixels(pixels, np.ascontiguousarray(x), pair(call.padding))
    _pack(call, packed, w)
    if turned:
        winograd.turn_weights(turned[0], packed)
        winograd.convolve(out, pixels, turned[0])
        return
    origin = begin = (0, 0)
    stride, dilation = pair(call.stride), pair(call.dilation)
    direct.convolve(out, pixels, packed, origin, stride, dilation, begin, (1, 1))


def _multiply(w: Array, x: Array, out: Array) -> None:
    """out (N, O, positions) <- w (O, C) times x (N, C, positions). Samples of one position, as
    behind a pooling over all of an image, are the rows of one product: by itself each would read
    all weights for a column."""
    if x.shape[2] == 1:
        multiply(x[:, :, 0], w.T, out[:, :, 0])
    else:
        multiply(w, x, out)


def _matrix(w: Array) -> Array:
    """(O, C) of the weights of a pointwise convolution."""
    whole: Array = np.ascontiguousarray(w).reshape(w.shape[:2])
    return whole


def _met(call: Call, x: Array, work: tuple[Array, ...]) -> Array:
    """The elements of x that a pointwise convolution meets, copied if its stride leaves some
    out."""
    if not work:
        return x
    met = work[0]
    met[...] = _strided(call, x)
    return met


def _strided(call: Call, x: Array) -> Array:
    every: Array = x[at(..., *[slice(None, None, step) for step in call.stride])]
    return every


def _pack(call: Call, packed: Array, w: Array) -> None:
    own = _by_group(w, call.groups)
    direct.pack(
        packed.reshape(*packed.shape[:2], -1, *packed.shape[4:]), own.reshape(*own.shape[:3], -1)
    )


def data_grad(call: Call, d_x: Array, d_out: Array, w: Array, work: tuple[Array, ...]) -> None:
    if call.is_grouped and call.is_plain:
        given = np.ascontiguousarray(d_out), np.ascontiguousarray(w)
        grouped.data_gradient(call, d_x, *given, *work)
        return
    if call.is_depthwise:
        given = np.ascontiguousarray(d_out), np.ascontiguousarray(w)
        depthwise.data_gradient(d_x, *given, call.window(), work)
        return
    if call.is_pointwise:
        target = work[0] if work else d_x
        _multiply(_matrix(w).T, _flat(d_out), _flat(target))
        if work:
            d_x[...] = 0
            _strided(call, d_x)[...] = target
        return
    pixels, *turned, packed = work
    down, across = phases_of(call, 0), phases_of(call, 1)
    direct.to_pixels(pixels, np.ascontiguousarray(d_out), (down.border, across.border))
    own = _by_group(w, call.groups)
    if turned:
        direct.pack_turned(packed, own, (2, 2), (1, 1))
        winograd.turn_weights(turned[0], packed)
        winograd.convolve(d_x, pixels, turned[0])
        return
    if not (down.is_full and across.is_full):
        d_x[...] = 0  # some elements meet no window
    steps = pair(call.stride)
    dilation = (down.dilation, across.dilation)
    for a, b in pairs(down.phases, across.phases):
        shape = (call.groups, -(-call.w[1] // BLOCK), a.taps, b.taps, own.shape[1], BLOCK)
        some = packed[: prod(shape)].reshape(shape)
        direct.pack_turned(some, own, (a.first, b.first), (a.step, b.step))
        origin, begin = (a.origin, b.origin), (a.begin, b.begin)
        direct.convolve(d_x, pixels, some, origin, (1, 1), dilation, begin, steps)


def filter_grad(call: Call, d_w: Array, d_out: Array, x: Array, work: tuple[Array, ...]) -> None:
    if call.is_grouped:
        given = np.ascontiguousarray(d_out), np.ascontiguousarray(x)
        grouped.filter_gradient(call, d_w, *given, *work)
        return
    if call.is_depthwise:
        given = np.ascontiguousarray(d_out), np.ascontiguousarray(x)
        depthwise.filter_gradient(d_w, *given, call.window(), work)
        return
    if call.is_pointwise:
        pointwise.filter_gradient(_matrix(d_w), _flat(d_out), _flat(_met(call, x, work)))
        return
    pixels, blocks, packed = work
    direct.to_pixels(pixels, np.ascontiguousarray(x), pair(call.padding))
    groups = call.groups
    direct.to_blocks(blocks, _flat(d_out), groups)
    stride, dilation = pair(call.stride), pair(call.dilation)
    direct.filter_gradient(packed, pixels, blocks, pair(call.out[2:]), stride, dilation)
    target = d_w.reshape(groups, d_w.shape[0] // groups, d_w.shape[1], -1)
    direct.unpack(target, packed.reshape(*packed.shape[:2], -1, *packed.shape[4:]))
