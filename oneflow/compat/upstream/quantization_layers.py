"""Quantization as layers: observers of ranges, and numbers rounded as integers would be."""

from __future__ import annotations

from oneflow.compat.upstream import quantization as ops
from oneflow.functional.creation import zeros
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor

__all__ = ["FakeQuantization", "MinMaxObserver", "MovingAverageMinMaxObserver", "Quantization"]


class _Quantizing(Module):
    def __init__(
        self,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
    ) -> None:
        super().__init__()
        ops.Integers(quantization_formula, quantization_bit, quantization_scheme)
        self.quantization_formula = quantization_formula
        self.quantization_bit = quantization_bit
        self.quantization_scheme = quantization_scheme

    @property
    def _kind(self) -> tuple[str, int, str]:
        return self.quantization_formula, self.quantization_bit, self.quantization_scheme

    def extra_repr(self) -> str:
        return ", ".join(f"{self._kind[i]}" for i in range(3))


class MinMaxObserver(_Quantizing):
    """Computes (scale, zero_point) of its argument, of all of it or of each slice of dim 0."""

    def __init__(
        self,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
        per_layer_quantization: bool = True,
    ) -> None:
        super().__init__(quantization_formula, quantization_bit, quantization_scheme)
        self.per_layer_quantization = per_layer_quantization

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        return ops.min_max_observer(input, *self._kind, self.per_layer_quantization)


class MovingAverageMinMaxObserver(_Quantizing):
    """Computes (scale, zero_point) of running extremes of its arguments.

    stop_update_after_iters: the last training step that moves them.  momentum: weight of the past.
    """

    moving_max: Tensor
    moving_min: Tensor

    def __init__(
        self,
        stop_update_after_iters: int = 1,
        quantization_formula: str = "google",
        quantization_bit: int = 8,
        quantization_scheme: str = "symmetric",
        momentum: float = 0.95,
    ) -> None:
        super().__init__(quantization_formula, quantization_bit, quantization_scheme)
        self.stop_update_after_iters, self.momentum = stop_update_after_iters, momentum
        self.register_buffer("moving_max", zeros((1,)))
        self.register_buffer("moving_min", zeros((1,)))

    def reset_running_stats(self) -> None:
        """Forget all extremes."""
        self.moving_max.zero_()
        self.moving_min.zero_()

    def forward(self, input: Tensor, current_train_step: Tensor) -> tuple[Tensor, Tensor]:
        return ops.moving_average_min_max_observer(
            input,
            current_train_step,
            self.moving_max,
            self.moving_min,
            self.training,
            self.stop_update_after_iters,
            *self._kind,
            self.momentum,
        )


class FakeQuantization(_Quantizing):
    """Rounds numbers as integers would be, given their scale and zero point; gradients pass."""

    def forward(self, input: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        return ops.fake_quantization(input, scale, zero_point, *self._kind)


class Quantization(_Quantizing):
    """Turns numbers into integers, given their scale and zero point, and keeps their dtype."""

    def forward(self, input: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        return ops.quantization(input, scale, zero_point, *self._kind)
