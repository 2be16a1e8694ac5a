"""Convolutions of float32 images on a CPU that gather no windows: three ways, each for some shapes.

Pointwise: a kernel of one element is a matrix product of the samples as they lie. Depthwise
(`fused/depthwise.py`): each channel by itself. Direct (`fused/direct.py`): all others with two
spatial dims, but for few channels a group and for results narrower than a vector is worth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array
from oneflow.ops.conv import Geometry, Sizes

if TYPE_CHECKING:
    from oneflow.kernels.fused.depthwise import Window

Shape = tuple[int, ...]
_LEAST_WIDTH = 4
"""Positions in a row of the result from which the direct way beats products over windows."""

_LEAST_CHANNELS = 16
"""Channels of a group, on both sides, from which it does."""


@dataclass(frozen=True)
class Call:
    """Shapes of the three arrays and the geometry of a convolution or of one of its gradients."""

    x: Shape
    w: Shape
    out: Shape
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int

    @property
    def is_pointwise(self) -> bool:
        return self.groups == 1 and prod(self.w[2:]) == 1 and not any(self.padding)

    @property
    def is_depthwise(self) -> bool:
        return self.w[1] == 1 and self.groups == self.x[1]

    @property
    def is_dense(self) -> bool:
        return self.groups == 1 or min(self.w[1], self.w[0] // self.groups) >= _LEAST_CHANNELS

    @property
    def num_blocks(self) -> int:
        return -(-(self.w[0] // self.groups) // _block())

    def window(self) -> Window:
        """The geometry as the functions of planes take it."""
        kernel, stride = _pair(self.w[2:]), _pair(self.stride)
        return (*kernel, *stride, *_pair(self.padding), *_pair(self.dilation))


def _pair(sizes: Sizes) -> tuple[int, int]:
    return sizes[0], sizes[1]


def _block() -> int:
    from oneflow.kernels.fused.product import BLOCK

    return BLOCK


def call_of(x: Array | TensorType, w: Array | TensorType, out: Array | TensorType,
            geometry: Geometry) -> Call:  # fmt: skip
    return Call(
        tuple(x.shape), tuple(w.shape), tuple(out.shape), tuple(geometry["stride"]),
        tuple(geometry["padding"]), tuple(geometry["dilation"]), geometry["groups"],
    )  # fmt: skip


def _flat(x: Array) -> Array:
    """(N, C, positions)."""
    whole: Array = np.ascontiguousarray(x)
    return whole.reshape(*x.shape[:2], -1)


def _by_group(w: Array, groups: int) -> Array:
    """(groups, O / groups, C / groups, *kernel)."""
    whole: Array = np.ascontiguousarray(w)
    return whole.reshape(groups, w.shape[0] // groups, *w.shape[1:])


# ---- what fits -----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def conv_work(call: Call) -> tuple[Shape, ...] | None:
    """Shapes of the workspace of the forward pass; None if no way of this file fits."""
    if 0 in (*call.x, *call.w, *call.out):
        return None
    if call.is_pointwise and set(call.stride) == {1}:
        return ()
    if len(call.x) != 4:
        return None
    if call.is_depthwise:
        return ()
    if call.out[3] < _LEAST_WIDTH or not call.is_dense:
        return None
    return _pixels(call), _packed(call)


@lru_cache(maxsize=4096)
def data_grad_work(call: Call) -> tuple[Shape, ...] | None:
    """The same of the gradient of the data."""
    if 0 in (*call.x, *call.w, *call.out):
        return None
    if call.is_pointwise and set(call.stride) == {1}:
        return ()
    if len(call.x) != 4:
        return None
    if call.is_depthwise:
        return ()
    is_plain = all(1 in sizes for sizes in zip(call.stride, call.dilation, strict=True))
    is_narrow = call.x[3] // call.stride[1] < _LEAST_WIDTH or call.w[1] < _LEAST_CHANNELS
    if is_narrow or not call.is_dense or not is_plain:
        return None
    down, across = _phases(call, 0), _phases(call, 1)
    taps = down.most_taps * across.most_taps
    pixels = call.out[0], down.size, across.size, call.out[1]
    blocks = call.groups * -(-call.w[1] // _block())
    return pixels, (blocks * taps * (call.w[0] // call.groups) * _block(),)


@lru_cache(maxsize=4096)
def filter_grad_work(call: Call) -> tuple[Shape, ...] | None:
    """The same of the gradient of the weights."""
    if 0 in (*call.x, *call.w, *call.out) or len(call.x) != 4:
        return None
    if call.is_depthwise:
        return ()
    if call.out[3] < _LEAST_WIDTH or not call.is_dense:
        return None
    blocks = call.groups * call.num_blocks, call.out[0], prod(call.out[2:]), _block()
    return _pixels(call), blocks, _packed(call)


def _pixels(call: Call) -> Shape:
    """Of x with its padding; of a pointwise convolution only what its stride leaves."""
    n, channels, *spatial = call.x
    if call.is_pointwise:
        return n, *call.out[2:], channels
    sizes = [size + 2 * p for size, p in zip(spatial, call.padding, strict=True)]
    return n, *sizes, channels


def _packed(call: Call) -> Shape:
    outs, channels, *kernel = call.w
    return call.groups, -(-(outs // call.groups) // _block()), *kernel, channels, _block()


def types_of(shapes: tuple[Shape, ...], like: TensorType) -> tuple[TensorType, ...]:
    return tuple(like.with_shape(shape) for shape in shapes)


# ---- the ways ------------------------------------------------------------------------------------


def conv(call: Call, out: Array, x: Array, w: Array, work: tuple[Array, ...]) -> None:
    if not work and call.is_depthwise:
        from oneflow.kernels.fused import depthwise

        weights = np.ascontiguousarray(w[:, 0])
        return depthwise.convolve(out, np.ascontiguousarray(x), weights, call.window())
    if not work:
        np.matmul(w.reshape(w.shape[:2]), _flat(x), out=out.reshape(*out.shape[:2], -1))
        return None
    from oneflow.kernels.fused import direct
    from oneflow.kernels.fused.product import product as code

    pixels, packed = work
    stride = _to_pixels(call, pixels, x)
    _pack(call, packed, w)
    origin = begin = (0, 0)
    direct.convolve(
        out, pixels, packed, origin, stride, _pair(call.dilation), begin, (1, 1), code()
    )
    return None


def _to_pixels(call: Call, pixels: Array, x: Array) -> tuple[int, int]:
    """Fill `pixels`; return the stride of the windows over them."""
    from oneflow.kernels.fused import direct

    stride = _pair(call.stride)
    step = stride if call.is_pointwise else (1, 1)
    direct.to_pixels(pixels, np.ascontiguousarray(x), _pair(call.padding), step)
    return (1, 1) if call.is_pointwise else stride


def _pack(call: Call, packed: Array, w: Array) -> None:
    from oneflow.kernels.fused import direct

    own = _by_group(w, call.groups)
    direct.pack(
        packed.reshape(*packed.shape[:2], -1, *packed.shape[4:]), own.reshape(*own.shape[:3], -1)
    )


def data_grad(call: Call, d_x: Array, d_out: Array, w: Array, work: tuple[Array, ...]) -> None:
    if not work and call.is_depthwise:
        from oneflow.kernels.fused import depthwise

        weights = np.ascontiguousarray(w[:, 0])
        depthwise.data_gradient(d_x, np.ascontiguousarray(d_out), weights, call.window())
        return
    if not work:
        np.matmul(w.reshape(w.shape[:2]).T, _flat(d_out), out=d_x.reshape(*d_x.shape[:2], -1))
        return
    from oneflow.kernels.fused import direct
    from oneflow.kernels.fused.product import product as code

    pixels, packed = work
    down, across = _phases(call, 0), _phases(call, 1)
    direct.to_pixels(pixels, np.ascontiguousarray(d_out), (down.border, across.border), (1, 1))
    own = _by_group(w, call.groups)
    if not (down.is_full and across.is_full):
        d_x[...] = 0  # some elements meet no window
    steps = _pair(call.stride)
    dilation = (down.dilation, across.dilation)
    for a, b in product(down.phases, across.phases):
        shape = (call.groups, -(-call.w[1] // _block()), a.taps, b.taps, own.shape[1], _block())
        some = packed[: prod(shape)].reshape(shape)
        direct.pack_turned(some, own, (a.first, b.first), (a.step, b.step))
        origin, begin = (a.origin, b.origin), (a.begin, b.begin)
        direct.convolve(d_x, pixels, some, origin, (1, 1), dilation, begin, steps, code())


def filter_grad(call: Call, d_w: Array, d_out: Array, x: Array, work: tuple[Array, ...]) -> None:
    if not work:
        from oneflow.kernels.fused import depthwise

        target = d_w.reshape(d_w.shape[0], *d_w.shape[2:])
        given = np.ascontiguousarray(d_out), np.ascontiguousarray(x)
        depthwise.filter_gradient(target, *given, call.window())
        return
    from oneflow.kernels.fused import direct
    from oneflow.kernels.fused.product import product as code

    pixels, blocks, packed = work
    stride = _to_pixels(call, pixels, x)
    own = _flat(d_out)
    groups = call.groups
    by_group = own.reshape(own.shape[0] * groups, -1, own.shape[2])
    if groups == 1:
        direct.to_blocks(blocks, own)
    else:
        per_group = blocks.shape[0] // groups
        for g in range(groups):
            some = np.ascontiguousarray(
                by_group.reshape(own.shape[0], groups, -1, own.shape[2])[:, g]
            )
            direct.to_blocks(blocks[g * per_group : (g + 1) * per_group], some)
    direct.filter_gradient(
        packed, pixels, blocks, _pair(call.out[2:]), stride, _pair(call.dilation), code()
    )
    target = d_w.reshape(groups, d_w.shape[0] // groups, d_w.shape[1], -1)
    direct.unpack(target, packed.reshape(*packed.shape[:2], -1, *packed.shape[4:]))


# ---- the gradient of the data: every residue of the stride by itself -----------------------------


@dataclass(frozen=True)
class _Phase:
    """The elements begin, begin + stride, ... of one dim of x, and the windows that meet them.

    They are a convolution of d_out with stride 1: the first window has its first tap at `origin` of
    the padded d_out. Tap t is the kernel position first - t * step.
    """

    begin: int
    origin: int
    taps: int
    first: int
    step: int


@dataclass(frozen=True)
class _Phases:
    """All residues of a dim. border, size: padding before d_out, and its padded size. is_full: does
    every element of x meet a window? dilation: distance of the taps in d_out."""

    phases: tuple[_Phase, ...]
    border: int
    size: int
    is_full: bool
    dilation: int

    @property
    def most_taps(self) -> int:
        return max(phase.taps for phase in self.phases)


@lru_cache(maxsize=4096)
def _phases(call: Call, dim: int) -> _Phases:
    """x[h] meets kernel position k of window i where h + padding = i * stride + k * dilation; one
    of stride and dilation is 1.
    """
    size, out, kernel = call.x[2 + dim], call.out[2 + dim], call.w[2 + dim]
    stride, padding, dilation = call.stride[dim], call.padding[dim], call.dilation[dim]
    found, is_full = [], True
    for begin in range(min(stride, size)):
        residue = (begin + padding) % stride
        taps = len(range(residue, kernel, stride))
        if not taps:
            is_full = False
            continue
        first = residue + (taps - 1) * stride
        origin = (begin + padding - first * dilation) // stride
        found.append((begin, origin, taps, first))
    border = max(0, -min(origin for _, origin, _, _ in found))
    last = max(
        origin + (size - 1 - begin) // stride + (taps - 1) * dilation
        for begin, origin, taps, _ in found
    )
    return _Phases(
        tuple(_Phase(b, origin + border, taps, first, stride) for b, origin, taps, first in found),
        border,
        border + max(out, last + 1),
        is_full,
        dilation,
    )
