"""Convolutions for quantization-aware training."""

from __future__ import annotations

from oneflow.compat.upstream.qat.rounding import Rounded
from oneflow.nn.modules.conv import Conv1d, Conv2d, Conv3d, _Conv
from oneflow.tensor.tensor import Tensor

__all__ = ["QatConv1d", "QatConv2d", "QatConv3d"]


class _QatConv(Rounded, _Conv):
    """A convolution of rounded inputs with rounded weights; gradients pass the rounding.

    weight_quant_per_layer: one scale for all weights, or one per output channel.  The scale of
    inputs follows running extremes, of which input_quant_momentum is the weight of the past.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] = 1,
        padding: int | tuple[int, ...] | str = 0,
        dilation: int | tuple[int, ...] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
        weight_quant_per_layer: bool = True,
        input_quant_momentum: float = 0.95,
        stop_update_after_iters: int = 2**62,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
        )
        self._observe(
            quantization_formula,
            quantization_bit,
            quantization_scheme,
            weight_quant_per_layer,
            input_quant_momentum,
            stop_update_after_iters,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self._convolve(*self._rounded(x))


class QatConv1d(_QatConv, Conv1d):
    __doc__ = _QatConv.__doc__


class QatConv2d(_QatConv, Conv2d):
    __doc__ = _QatConv.__doc__


class QatConv3d(_QatConv, Conv3d):
    __doc__ = _QatConv.__doc__
