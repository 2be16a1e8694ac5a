"""Convolutions of float32 images on a CPU that gather no windows: five ways, each for some shapes,
and the memory that they need. `native/conv_ways.py` runs them.

Pointwise: a kernel of one element is a matrix product of the samples as they lie (the gradient of
its weights: `native/pointwise.py`). Grouped (`native/grouped.py`): groups of 1, 2, 4 ...
channels, of which a vector holds some. Depthwise (`native/depthwise.py`): each channel by
itself, where there are too few for a vector, or several results of each. Direct
(`native/direct.py`): all others with two spatial dims, but for few channels a group and for
results narrower than a vector is worth; windows of 3 x 3 side by side turned, where that is faster
(`native/winograd.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING

from oneflow.core.config import current_config
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array
from oneflow.ops.conv import Geometry, Sizes

if TYPE_CHECKING:
    from oneflow.kernels.native.planes import Window

Shape = tuple[int, ...]
LEAST_WIDTH = 4
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
        return len(self.x) == 4 and self.w[1] == 1 and self.groups == self.x[1] > 1

    @property
    def is_grouped(self) -> bool:
        return self.groups > 1 and bool(compiled().in_blocks(self))

    @property
    def is_plain(self) -> bool:
        """Whether no dim has both a stride and a dilation."""
        return all(1 in sizes for sizes in zip(self.stride, self.dilation, strict=True))

    @property
    def is_square_of_three(self) -> bool:
        """Whether windows are of 3 x 3, side by side, and all channels are in one group."""
        is_close = set(self.stride) == {1} and set(self.dilation) == {1}
        return self.w[2:] == (3, 3) and is_close and self.groups == 1

    @property
    def is_turned(self) -> bool:
        """Whether the forward pass takes turned pixels (`native/winograd.py`)."""
        n, channels = self.x[:2]
        return self.is_square_of_three and is_turned_faster(n, channels, *self.out[1:])

    @property
    def is_turned_back(self) -> bool:
        """Whether the gradient of the data does."""
        n, outs = self.out[:2]
        is_inside = max(self.padding) <= 2
        return self.is_square_of_three and is_inside and is_turned_faster(n, outs, *self.x[1:])

    @property
    def is_dense(self) -> bool:
        return self.groups == 1 or min(self.w[1], self.w[0] // self.groups) >= _LEAST_CHANNELS

    @property
    def num_blocks(self) -> int:
        return -(-(self.w[0] // self.groups) // block_size())

    def window(self) -> Window:
        """The geometry as the functions of planes take it."""
        kernel, stride = pair(self.w[2:]), pair(self.stride)
        return (*kernel, *stride, *pair(self.padding), *pair(self.dilation))


def pair(sizes: Sizes) -> tuple[int, int]:
    return sizes[0], sizes[1]


def compiled() -> ModuleType:
    """The ways, run by machine code; llvmlite takes a moment to import."""
    from oneflow.kernels.native import conv_ways

    return conv_ways


def block_size() -> int:
    """Channels of a block of results."""
    return int(compiled().BLOCK)


def is_turned_faster(samples: int, channels: int, outs: int, height: int, width: int) -> bool:
    if current_config().convolutions == "direct":
        return False
    return bool(compiled().winograd.is_faster(samples, channels, outs, height, width))


def call_of(x: Array | TensorType, w: Array | TensorType, out: Array | TensorType,
            geometry: Geometry) -> Call:  # fmt: skip
    return Call(
        tuple(x.shape), tuple(w.shape), tuple(out.shape), tuple(geometry["stride"]),
        tuple(geometry["padding"]), tuple(geometry["dilation"]), geometry["groups"],
    )  # fmt: skip


# ---- what fits -----------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def conv_work(call: Call) -> tuple[Shape, ...] | None:
    """Shapes of the workspace of the forward pass; None if no way of this file fits."""
    if 0 in (*call.x, *call.w, *call.out):
        return None
    if call.is_pointwise:
        return _met(call)
    if call.is_grouped:
        return (compiled().forward_work(call),)
    if call.is_depthwise:
        return _depthwise_work(call)
    if len(call.x) != 4:
        return None
    if call.out[3] < LEAST_WIDTH or not call.is_dense:
        return None
    if call.is_turned:
        return *_turned(call.x[:2], call.out), _packed(call)
    return _pixels(call), _packed(call)


def _turned(given: Shape, out: Shape) -> tuple[Shape, Shape]:
    """Shapes of the padded image and of the turned weights. given: samples and channels."""
    winograd = compiled().winograd
    pixels = winograd.pixels_shape(*given, *out[2:])
    return pixels, winograd.weights_shape(given[1], out[1])


@lru_cache(maxsize=4096)
def data_grad_work(call: Call) -> tuple[Shape, ...] | None:
    """The same of the gradient of the data."""
    if 0 in (*call.x, *call.w, *call.out):
        return None
    if call.is_pointwise:
        return _met(call)
    if call.is_grouped and call.is_plain:
        return compiled().backward_work(call), (prod(call.w),)
    if call.is_depthwise:
        return _depthwise_work(call)
    if len(call.x) != 4:
        return None
    is_narrow = call.x[3] // call.stride[1] < LEAST_WIDTH or call.w[1] < _LEAST_CHANNELS
    if is_narrow or not call.is_dense or not call.is_plain:
        return None
    if call.is_turned_back:
        blocks = -(-call.w[1] // block_size())
        packed = 1, blocks, 3, 3, call.w[0], block_size()
        return *_turned(call.out[:2], call.x), packed
    down, across = phases_of(call, 0), phases_of(call, 1)
    taps = down.most_taps * across.most_taps
    pixels = call.out[0], down.size, across.size, call.out[1]
    blocks = call.groups * -(-call.w[1] // block_size())
    return pixels, (blocks * taps * (call.w[0] // call.groups) * block_size(),)


@lru_cache(maxsize=4096)
def filter_grad_work(call: Call) -> tuple[Shape, ...] | None:
    """The same of the gradient of the weights."""
    if 0 in (*call.x, *call.w, *call.out):
        return None
    if call.is_pointwise:
        return _met(call)
    if call.is_grouped:
        return (compiled().filter_work(call),)
    if len(call.x) != 4:
        return None
    if call.is_depthwise:
        return _depthwise_work(call)
    if call.out[3] < LEAST_WIDTH or not call.is_dense:
        return None
    blocks = call.groups * call.num_blocks, call.out[0], prod(call.out[2:]), block_size()
    return _pixels(call), blocks, _packed(call)


def _depthwise_work(call: Call) -> tuple[Shape, ...]:
    shapes: tuple[Shape, ...] = compiled().work_shapes(call.x, call.w, call.out, call.window())
    return shapes


def _met(call: Call) -> tuple[Shape, ...]:
    """Shape of the elements of x that a pointwise convolution meets, if its stride leaves some
    out."""
    return () if set(call.stride) == {1} else ((*call.x[:2], *call.out[2:]),)


def _pixels(call: Call) -> Shape:
    """Shape of x with its padding."""
    n, channels, *spatial = call.x
    sizes = [size + 2 * p for size, p in zip(spatial, call.padding, strict=True)]
    return n, *sizes, channels


def _packed(call: Call) -> Shape:
    outs, channels, *kernel = call.w
    return call.groups, -(-(outs // call.groups) // block_size()), *kernel, channels, block_size()


def types_of(shapes: tuple[Shape, ...], like: TensorType) -> tuple[TensorType, ...]:
    return tuple(like.with_shape(shape) for shape in shapes)


# ---- the gradient of the data: every residue of the stride by itself -----------------------------


@dataclass(frozen=True)
class Phase:
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
class Phases:
    """All residues of a dim. border, size: padding before d_out, and its padded size. is_full: does
    every element of x meet a window? dilation: distance of the taps in d_out."""

    phases: tuple[Phase, ...]
    border: int
    size: int
    is_full: bool
    dilation: int

    @property
    def most_taps(self) -> int:
        return max(phase.taps for phase in self.phases)


@lru_cache(maxsize=4096)
def phases_of(call: Call, dim: int) -> Phases:
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
    return Phases(
        tuple(Phase(b, origin + border, taps, first, stride) for b, origin, taps, first in found),
        border,
        border + max(out, last + 1),
        is_full,
        dilation,
    )
