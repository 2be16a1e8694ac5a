"""Dense layers."""

from __future__ import annotations

import math
from typing import TypeVar

from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ArgumentError
from oneflow.functional.creation import empty
from oneflow.nn import functional as F
from oneflow.nn import init
from oneflow.nn.module import Module
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor

T = TypeVar("T")


class Identity(Module):
    """Returns its argument; takes and ignores any others when made."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def forward(self, input: T) -> T:
        return input


class Linear(Module):
    """x (..., in_features) -> x @ weight.T + bias (..., out_features).

    weight: (out_features, in_features), bias: (out_features,), both uniform within 1/√in_features.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty((out_features, in_features), device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty((out_features,), device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new first values."""
        reset_weight_and_bias(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class NonDynamicallyQuantizableLinear(Linear):
    """The dense layer behind attention, a class of its own as in PyTorch."""


def reset_weight_and_bias(weight: Tensor, bias: Tensor | None) -> None:
    """The default of dense layers and convolutions: both uniform within 1/√fan_in."""
    init.kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        fan_in = init.fans(weight.shape)[0]
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        init.uniform_(bias, -bound, bound)


class Bilinear(Module):
    """x1 @ weight[k] @ x2 + bias[k] for each output k; weight: (outputs, inputs1, inputs2)."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: DeviceLike | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ArgumentError(f"in1_features must be > 0, but got {in1_features}")
        shape = (out_features, in1_features, in2_features)
        self.weight = Parameter(empty(shape, device=device, dtype=dtype))
        self.register_parameter(
            "bias", Parameter(empty(shape[:1], device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight and the bias anew."""
        bound = self.weight.shape[1] ** -0.5
        for part in self.parameters():
            init.uniform_(part, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)
