"""Layers whose products are of 8-bit integers, made by `nn.qat.convert`."""

from __future__ import annotations

from typing import NamedTuple

from oneflow.core.dtype import float32
from oneflow.functional.concat_split import cat
from oneflow.functional.elementwise import clamp, round
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.nn.modules.conv import Conv2d
from oneflow.nn.modules.linear import Linear
from oneflow.ops.quantized import integer_conv, integer_linear, padded_run, runs_of
from oneflow.tensor.tensor import Tensor

_FEW_CHANNELS = 16
"""Channels of a group below which products of floats are faster: runs of integers are short."""

_EXACT = 2**24
"""Sums of integers below it are exact in float32, in any order."""


class Scales(NamedTuple):
    """The scales and zero points between numbers and integers.

    steps, zeros: scale and zero point of each output's weights. unit, zero: those of the input,
    whose integers lie between low and high. largest: the bound of a sum of products.
    """

    steps: Tensor
    zeros: Tensor
    unit: Tensor
    zero: Tensor
    low: int
    high: int
    largest: int


class _Integer(Module):
    """A layer of integers; its buffers are qweight, int8, and the scales."""

    qweight: Tensor
    scales: Tensor
    zeros: Tensor
    unit: Tensor
    zero: Tensor
    bias: Tensor | None

    def _keep(self, qweight: Tensor, scales: Scales, bias: Tensor | None) -> None:
        self.low, self.high, self.largest = scales.low, scales.high, scales.largest
        self.register_buffer("qweight", qweight)
        for name in ("steps", "zeros", "unit", "zero"):
            own = "scales" if name == "steps" else name
            self.register_buffer(own, getattr(scales, name).detach().clone())
        self.register_buffer("bias", None if bias is None else bias.detach().to(float32))

    def _operands(self) -> tuple[Tensor, ...]:
        given = self.qweight, self.scales, self.zeros, self.unit, self.zero
        return given if self.bias is None else (*given, self.bias)


class IntegerLinear(_Integer):
    """x (..., in_features) -> unit * scales * (integers of x @ integers of the weight) + bias.

    qweight: (out_features, in_features rounded up to whole runs), int8.
    """

    @classmethod
    def from_levels(cls, layer: Linear, levels: Tensor, scales: Scales) -> IntegerLinear:
        """Make a layer of the integers of another one's weight."""
        made = cls()
        made.in_features, made.out_features = layer.in_features, layer.out_features
        made._keep(_in_runs(levels, scales.zeros), scales, layer.bias)
        return made

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = integer_linear(input, *self._operands(), low=self.low, high=self.high)
        return out

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class IntegerConv2d(_Integer):
    """The same for images (N, in_channels, H, W).

    qweight: (out_channels, runs, integers of a run), see oneflow/ops/quantized.py. With few
    channels in a group the integers are multiplied as floats, which are exact there too, and
    faster.
    """

    @classmethod
    def from_levels(cls, layer: Conv2d, levels: Tensor, scales: Scales) -> IntegerConv2d:
        """Make a layer of the integers of another one's weight."""
        made = cls()
        made.in_channels, made.out_channels = layer.in_channels, layer.out_channels
        made.kernel_size, made.stride, made.dilation = (
            layer.kernel_size, layer.stride, layer.dilation
        )  # fmt: skip
        made.groups, made.padding_mode = layer.groups, layer.padding_mode
        made.padding = tuple(before for before, _ in layer._padded_ends())
        count = layer.in_channels // layer.groups
        lines, places, run = runs_of(made.kernel_size, count, made.dilation)
        runs = levels.permute(0, 2, 3, 1).reshape(layer.out_channels, lines * places, run)
        made._keep(_in_runs(runs, scales.zeros), scales, layer.bias)
        return made

    def forward(self, input: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            ends = [n for before in reversed(padding) for n in (before, before)]
            input, padding = F.pad(input, ends, mode=self.padding_mode), (0, 0)
        if self.in_channels // self.groups < _FEW_CHANNELS and self.largest < _EXACT:
            return self._of_floats(input, padding)
        out: Tensor = integer_conv(
            input,
            *self._operands(),
            low=self.low,
            high=self.high,
            kernel=self.kernel_size,
            stride=self.stride,
            padding=padding,
            dilation=self.dilation,
            groups=self.groups,
        )
        return out

    def _of_floats(self, input: Tensor, padding: tuple[int, ...]) -> Tensor:
        level = clamp(round(input / self.unit) + self.zero, self.low, self.high) - self.zero
        sums = F.conv2d(
            level, self._weight(), None, self.stride, padding, self.dilation, self.groups
        )
        out = sums * (self.unit * self.scales).reshape(-1, 1, 1)
        return out if self.bias is None else out + self.bias.reshape(-1, 1, 1)

    def _weight(self) -> Tensor:
        """The integers less their zero points, (out, channels of a group, height, width)."""
        count = self.in_channels // self.groups
        run = runs_of(self.kernel_size, count, self.dilation)[2]
        whole = self.qweight[:, :, :run].to(float32) - self.zeros.reshape(-1, 1, 1)
        return whole.reshape(self.out_channels, *self.kernel_size, count).permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, bias={self.bias is not None}"
        )


def _in_runs(levels: Tensor, zeros: Tensor) -> Tensor:
    """Rows of integers, filled up to whole runs by their zero points."""
    count = levels.shape[-1]
    missing = padded_run(count) - count
    if not missing:
        return levels.contiguous()
    shape = (*levels.shape[:-1], missing)
    rest = zeros.reshape(-1, *(1,) * (levels.ndim - 1)).to(levels.dtype).expand(*shape)
    return cat([levels, rest], -1)
