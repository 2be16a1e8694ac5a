"""Dense layers with ReLU between them, as one module."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.compat.upstream import fused
from oneflow.functional.creation import empty
from oneflow.nn.module import Module
from oneflow.nn.modules.linear import reset_weight_and_bias
from oneflow.nn.parameter import Parameter
from oneflow.tensor.tensor import Tensor

__all__ = ["FusedMLP"]


class FusedMLP(Module):
    """x (..., in_features) -> relu(x @ weight_0.T + bias_0) -> ... -> (..., out_features).

    hidden_dropout_rate: of each hidden layer; None for none.  skip_final_activation: the last layer
    has no ReLU.  Parameters are weight_0, bias_0, weight_1, ...
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: Sequence[int],
        out_features: int,
        hidden_dropout_rate: Sequence[float] | None = None,
        out_dropout_rate: float = 0.0,
        skip_final_activation: bool = False,
    ) -> None:
        super().__init__()
        sizes = (in_features, *hidden_features, out_features)
        rates = (*(hidden_dropout_rate or (0.0,) * len(hidden_features)), out_dropout_rate)
        if len(rates) != len(sizes) - 1:
            raise ValueError(
                f"FusedMLP: {len(hidden_features)} hidden layers need as many dropout rates, got "
                f"{hidden_dropout_rate}"
            )
        self.in_features, self.out_features = in_features, out_features
        self.hidden_features, self.dropout_rates = tuple(hidden_features), rates
        self.skip_final_activation = skip_final_activation
        for i, (rows, columns) in enumerate(zip(sizes[1:], sizes[:-1], strict=True)):
            self.register_parameter(f"weight_{i}", Parameter(empty((rows, columns))))
            self.register_parameter(f"bias_{i}", Parameter(empty((rows,))))
        self.reset_parameters()

    def weight(self, i: int) -> Parameter:
        """The weight of layer i, (outputs, inputs)."""
        return self.get_parameter(f"weight_{i}")

    def bias(self, i: int) -> Parameter:
        """The bias of layer i."""
        return self.get_parameter(f"bias_{i}")

    def weights(self) -> list[Parameter]:
        """The weights of all layers."""
        return [self.weight(i) for i in range(len(self.dropout_rates))]

    def biases(self) -> list[Parameter]:
        """The biases of all layers."""
        return [self.bias(i) for i in range(len(self.dropout_rates))]

    def reset_parameters(self) -> None:
        """Draws new first values, as those of Linear."""
        for weight, bias in zip(self.weights(), self.biases(), strict=True):
            reset_weight_and_bias(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        rates = self.dropout_rates if self.training else (0.0,) * len(self.dropout_rates)
        if not any(rates):
            return fused.fused_mlp(x, self.weights(), self.biases(), self.skip_final_activation)
        return fused.fused_matmul_bias_add_relu_dropout(
            x,
            self.weights(),
            self.biases(),
            skip_final_activation=self.skip_final_activation,
            dropout_rate_list=rates,
        )

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, hidden_features={self.hidden_features}, "
            f"out_features={self.out_features}, "
            f"skip_final_activation={self.skip_final_activation}"
        )
