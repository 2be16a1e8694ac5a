"""Convolutions for quantization-aware training."""

from __future__ import annotations

from oneflow.core.dtype import int64
from oneflow.functional.creation import zeros
from oneflow.nn.modules.conv import Conv1d, Conv2d, Conv3d, _Conv
from oneflow.nn.modules.quantization import (
    FakeQuantization,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
)
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

__all__ = ["QatConv1d", "QatConv2d", "QatConv3d"]


class _QatConv(_Conv):
    """A convolution of rounded inputs with rounded weights; gradients pass the rounding.

    weight_quant_per_layer: one scale for all weights, or one per output channel.  The scale of
    inputs follows running extremes, of which input_quant_momentum is the weight of the past.
    """

    current_train_step: Tensor

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
        kind = (quantization_formula, quantization_bit, quantization_scheme)
        self.weight_observer = MinMaxObserver(*kind, weight_quant_per_layer)
        self.input_observer = MovingAverageMinMaxObserver(
            stop_update_after_iters, *kind, input_quant_momentum
        )
        self.fake_quantization = FakeQuantization(*kind)
        self.register_buffer("current_train_step", zeros((1,), dtype=int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with no_grad():
                self.current_train_step.add_(1)
        observed = self.input_observer(x, self.current_train_step)
        weight = self.fake_quantization(self.weight, *self.weight_observer(self.weight))
        return self._convolve(self.fake_quantization(x, *observed), weight)


class QatConv1d(_QatConv, Conv1d):
    __doc__ = _QatConv.__doc__


class QatConv2d(_QatConv, Conv2d):
    __doc__ = _QatConv.__doc__


class QatConv3d(_QatConv, Conv3d):
    __doc__ = _QatConv.__doc__
