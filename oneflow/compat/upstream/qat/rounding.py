"""The part that layers for quantization-aware training share: the rounding of input and weight."""

from __future__ import annotations

from oneflow.compat.upstream.quantization_layers import (
    FakeQuantization,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
)
from oneflow.core.dtype import int64
from oneflow.functional.creation import zeros
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


class Rounded(Module):
    """A layer with a weight, whose input and weight are rounded as integers would be.

    weight_quant_per_layer: one scale for all weights, or one per output channel.  The scale of
    inputs follows running extremes, of which input_quant_momentum is the weight of the past.
    """

    weight: Parameter
    current_train_step: Tensor
    weight_observer: MinMaxObserver
    input_observer: MovingAverageMinMaxObserver

    def _observe(
        self,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
        weight_quant_per_layer: bool = True,
        input_quant_momentum: float = 0.95,
        stop_update_after_iters: int = 2**62,
    ) -> None:
        kind = (quantization_formula, quantization_bit, quantization_scheme)
        self.weight_observer = MinMaxObserver(*kind, weight_quant_per_layer)
        self.input_observer = MovingAverageMinMaxObserver(
            stop_update_after_iters, *kind, input_quant_momentum
        )
        self.fake_quantization = FakeQuantization(*kind)
        self.register_buffer("current_train_step", zeros((1,), dtype=int64))

    def _rounded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The input and the weight, rounded."""
        if self.training:
            with no_grad():
                self.current_train_step.add_(1)
        observed = self.input_observer(x, self.current_train_step)
        weight = self.fake_quantization(self.weight, *self.weight_observer(self.weight))
        return self.fake_quantization(x, *observed), weight
