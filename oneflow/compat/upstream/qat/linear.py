"""Dense layers for quantization-aware training."""

from __future__ import annotations

from oneflow.compat.upstream.qat.rounding import Rounded
from oneflow.nn import functional as F
from oneflow.nn.modules.linear import Linear
from oneflow.tensor.tensor import Tensor

__all__ = ["QatLinear"]


class QatLinear(Rounded, Linear):
    """A dense layer of rounded inputs with rounded weights; gradients pass the rounding.

    weight_quant_per_layer: one scale for all weights, or one per output.  The scale of inputs
    follows running extremes, of which input_quant_momentum is the weight of the past.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
        weight_quant_per_layer: bool = True,
        input_quant_momentum: float = 0.95,
        stop_update_after_iters: int = 2**62,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self._observe(
            quantization_formula,
            quantization_bit,
            quantization_scheme,
            weight_quant_per_layer,
            input_quant_momentum,
            stop_update_after_iters,
        )

    def forward(self, input: Tensor) -> Tensor:
        x, weight = self._rounded(input)
        return F.linear(x, weight, self.bias)
